"""The layout of H5MD files: where each field of a frame lies, in which unit and shape."""

from typing import Final

import h5py
import numpy as np

from mdgraph.system import System

_ELEMENTS: Final = {
    "positions": ("particles/all/position", "Angstrom"),
    "velocities": ("particles/all/velocity", "Angstrom fs-1"),
    "forces": ("particles/all/force", "eV Angstrom-1"),
    "cell": ("particles/all/box/edges", "Angstrom"),
    "energy": ("observables/potential_energy", "eV"),
    "kinetic_energy": ("observables/kinetic_energy", "eV"),
    "temperature": ("observables/temperature", "K"),
    "stress": ("observables/stress", "eV Angstrom-3"),
}
"""Field of a frame: its H5MD element and unit."""

CREATOR: Final = ("mdgraph", "layout 1")
"""Changes with the layout, so that a reader knows which files it understands."""

STEP: Final = "particles/all/position/step"
TIME: Final = "particles/all/position/time"
_CHUNK_BYTES: Final = 1 << 14


def frame_values(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The dataset of each field of a frame that the file holds."""
    return {
        name: file[element]["value"] for name, (element, _) in _ELEMENTS.items() if element in file
    }


def value_place(name: str) -> str:
    """Where the values of a field lie."""
    return f"{_ELEMENTS[name][0]}/value"


def value_shapes(atoms: int) -> dict[str, tuple[int, ...]]:
    """The shape of each field in one frame."""
    matrices = dict.fromkeys(("cell", "stress"), (3, 3))
    vectors = dict.fromkeys(("positions", "velocities", "forces"), (atoms, 3))
    return {**dict.fromkeys(_ELEMENTS, ()), **matrices, **vectors}


def lay_out(file: h5py.File, system: System) -> None:
    """Makes everything but frames in an empty file."""
    about = file.create_group("h5md")
    about.attrs["version"] = np.array([1, 1], dtype=np.int32)
    about.create_group("author").attrs["name"] = "unknown"
    creator = about.create_group("creator")
    creator.attrs["name"], creator.attrs["version"] = CREATOR
    about.create_group("modules/units").attrs["version"] = np.array([1, 0], dtype=np.int32)

    particles = file.create_group("particles/all")
    particles["species"] = system.numbers.astype(np.int32)
    particles["mass"] = system.masses
    particles["mass"].attrs["unit"] = "u"
    box = particles.create_group("box")
    box.attrs["dimension"] = 3
    box.attrs["boundary"] = np.where(system.pbc, b"periodic", b"none")

    fields = dict(_ELEMENTS)
    if not system.cell.any():
        del fields["cell"]
    if system.volume == 0:
        del fields["stress"]
    shapes = value_shapes(len(system))
    for name, (element, unit) in fields.items():
        group = file.create_group(element)
        _create(group, "value", shapes[name], np.float64, unit)
        if name == "positions":
            _create(group, "step", (), np.int64)
            _create(group, "time", (), np.float64, "fs")
        else:
            group["step"] = file[STEP]
            group["time"] = file[TIME]
    particles["position"].attrs["wrapping"] = (
        "unwrapped: atoms are not put back into the cell, so there is no image group"
    )


def _create(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: type, unit: str | None = None
) -> None:
    row_bytes = 8 * int(np.prod(shape))
    dataset = group.create_dataset(
        name,
        shape=(0, *shape),
        maxshape=(None, *shape),
        chunks=(max(1, _CHUNK_BYTES // row_bytes), *shape),
        dtype=dtype,
        fillvalue=-1 if dtype is np.int64 else np.nan,
    )
    if unit is not None:
        dataset.attrs["unit"] = unit
