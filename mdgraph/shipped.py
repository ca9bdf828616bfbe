"""What comes with mdgraph: potentials that are loaded by name, and examples.

Imports nothing heavy, as the completion of the command line reads it too.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from mdgraph.errors import FileError, InputError, name_some, similar_names
from mdgraph.io.files import disk_failures, refuse_existing, write_atomically

FILE_NAME: Final = "model.safetensors"
"""Name of the file with the weights in the folder of a potential."""

_PACKAGE = Path(__file__).resolve().parent


def shipped_potentials() -> dict[str, Path]:
    """Name and folder of each potential that comes with mdgraph.

    They are inside an installed package, and beside the package in a clone.
    """
    folders: dict[str, Path] = {}
    for root in (_PACKAGE.parent / "potentials", _PACKAGE / "potentials"):
        folders |= {path.parent.name: path.parent for path in root.glob(f"*/{FILE_NAME}")}
    return dict(sorted(folders.items()))


@dataclass(frozen=True)
class Example:
    """Files to try mdgraph with.

    Attributes:
        summary: what they are.
        files: paths in the folder that is written, and of their sources in the repository.
        commands: what to do with them, in that folder.
    """

    summary: str
    files: dict[str, str]
    commands: tuple[str, ...]


_SAMPLE: Final = {"water27.extxyz": "data/water27.extxyz"}

_SCRIPTS: Final = (
    "01_water_ase.py",
    "02_water_openmm.py",
    "03_mixed_system.py",
    "04_own_checkpoint.py",
    "05_metal_npt.py",
    "06_relax_many.py",
    "07_replica_exchange.py",
    "08_export_torchforce.py",
    "09_own_ensemble.py",
    "10_metadynamics.py",
    "11_umbrella_sampling.py",
    "12_steered_torsion.py",
    "13_dispersion_and_wall.py",
    "observe_water.py",
    "run_md.py",
)

EXAMPLES: Final = {
    "water": Example(
        "a box of water: a run, and a protocol that heats it and finds its density",
        {
            "water.pdb": "examples/water/water.pdb",
            "water_md.yaml": "examples/water_md.yaml",
            "water_protocol.yaml": "examples/water_protocol.yaml",
        },
        (
            "mdgraph md water.pdb --config water_md.yaml",
            "mdgraph protocol water_protocol.yaml water.pdb --out stages",
        ),
    ),
    "silicon": Example(
        "a crystal of silicon at constant pressure",
        {
            "silicon.extxyz": "potentials/silicon-pbe/start.extxyz",
            "npt.yaml": "examples/silicon/npt.yaml",
        },
        ("mdgraph md silicon.extxyz --config npt.yaml",),
    ),
    "slab": Example(
        "a surface of copper whose bottom layers stay where they are",
        {"slab.extxyz": "examples/slab/slab.extxyz", "md.yaml": "examples/slab/md.yaml"},
        ("mdgraph md slab.extxyz --config md.yaml",),
    ),
    "molecule": Example(
        "aspirin in vacuum: a protocol that minimises, heats and runs at constant energy",
        {
            "aspirin.extxyz": "potentials/aspirin-pbe/start.extxyz",
            "protocol.yaml": "examples/molecule/protocol.yaml",
        },
        ("mdgraph protocol protocol.yaml aspirin.extxyz --out stages",),
    ),
    "ladder": Example(
        "acetylacetone in four replicas that exchange temperatures",
        {
            "acac.extxyz": "potentials/acac-pbe/start.extxyz",
            "replicas.yaml": "examples/ladder/replicas.yaml",
        },
        ("mdgraph md acac.extxyz --config replicas.yaml",),
    ),
    "free-energy": Example(
        "the hydrogen of acetylacetone between two oxygens: metadynamics of 64 walkers",
        {"transfer.yaml": "examples/free_energies/transfer.yaml"},
        (
            "mdgraph md --config transfer.yaml --out transfer",
            "mdgraph free-energy transfer",
        ),
    ),
    "torsions": Example(
        "a map of two torsions by metadynamics, windows and without a bias; needs aceff-1.1.ckpt",
        {
            name: f"examples/free_energies/{name}"
            for name in (
                "alanine.extxyz",
                "compare.py",
                "filling.yaml",
                "metadynamics.yaml",
                "unbiased.yaml",
                "windows.py",
            )
        },
        (
            "mdgraph md alanine.extxyz --config metadynamics.yaml --out metadynamics",
            "mdgraph md alanine.extxyz --config unbiased.yaml --out unbiased",
            "mdgraph md alanine.extxyz --config filling.yaml --out filling",
            "python windows.py filling",
        ),
    ),
    "frames": Example(
        "frames of water with energies, forces and stress, to train and to judge potentials",
        _SAMPLE,
        (
            "mdgraph train init water27.extxyz",
            "mdgraph eval water27.extxyz",
            "mdgraph validate water-pbe0 water27.extxyz --quick",
        ),
    ),
    "python": Example(
        "scripts for Python, ASE and OpenMM",
        {f"examples/{name}": f"examples/{name}" for name in _SCRIPTS}
        | {f"data/{name}": source for name, source in _SAMPLE.items()},
        ("python examples/run_md.py", "python examples/01_water_ase.py"),
    ),
}
"""All examples by their names."""


def write_example(name: str, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Writes the files of an example; none where one of them would replace another file.

    Args:
        name: of `EXAMPLES`.
        folder: where they go; it is made if it is missing.
        overwrite: whether files of the same names are replaced.

    Returns:
        The files that were written.

    Raises:
        InputError: there is no such example.
        FileError: a file exists, or the disk refused.
    """
    if name not in EXAMPLES:
        near = similar_names(name, EXAMPLES)
        advice = f"did you mean {near[0]}?" if near else f"there are {name_some(list(EXAMPLES))}."
        raise InputError(f"There is no example '{name}'; {advice}")
    targets = {folder / path: _source(source) for path, source in EXAMPLES[name].files.items()}
    for target in targets:
        refuse_existing(target, overwrite=overwrite, option=True)
    for target, source in targets.items():
        with disk_failures(source, "read"):
            content = source.read_bytes()
        with disk_failures(target.parent, "write"):
            target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, partial(_fill, content), new=not overwrite)
    return list(targets)


def _fill(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _source(path: str) -> Path:
    """A file of the repository, which an installed package has in folders of its own."""
    top, _, rest = path.partition("/")
    inside = _PACKAGE / ("examples/data" if top == "data" else top) / rest
    files = [place for place in (inside, _PACKAGE.parent / path) if place.is_file()]
    if not files:
        raise FileError(f"{path} is missing from this installation of mdgraph; install it again.")
    return files[0]
