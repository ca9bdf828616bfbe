"""Importers: every layout gives the same frames, and what is ambiguous is asked."""

import re
from pathlib import Path
from typing import Any

import ase.db
import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from copper_frames import BOHR, HARTREE, copper, labelled, written

from mdgraph.data import LabelledFrame
from mdgraph.data.importing import import_file
from mdgraph.data.keys import Keys, Request, Units
from mdgraph.errors import FileError, InputError


def imported(path: Path, **options: Any) -> list[LabelledFrame]:
    keys = {name: options.pop(name) for name in list(options) if name in vars(Keys())}
    return list(import_file(path, Request(keys=Keys(**keys), **options))[0])


def renamed(frames: list[Atoms], energy: str, forces: str, **more: float) -> list[Atoms]:
    found = []
    for atoms in frames:
        bare = Atoms(atoms.numbers, atoms.positions)
        bare.info |= {energy: atoms.get_potential_energy(), **more}
        bare.arrays[forces] = atoms.get_forces()
        found.append(bare)
    return found


@pytest.mark.parametrize(
    ("energy", "forces"),
    [("energy", "forces"), ("REF_energy", "REF_forces"), ("dft_energy", "force")],
)
def test_usual_names_are_found(tmp_path: Path, energy: str, forces: str) -> None:
    frames, path = copper(4), tmp_path / "a.xyz"
    plain = energy == "energy"
    ase.io.write(path, frames if plain else renamed(frames, energy, forces), format="extxyz")
    for atoms, frame in zip(frames, imported(path), strict=True):
        assert frame.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-7)
        np.testing.assert_allclose(frame.forces, atoms.get_forces(), atol=1e-7)
        assert frame.group == "a"


def test_an_ambiguous_name_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.xyz"
    ase.io.write(
        path, renamed(copper(2), "dft_energy", "f_forces", mp2_energy=3.0), format="extxyz"
    )
    with pytest.raises(InputError, match=r"dft_energy, mp2_energy, which differ.*--energy-key"):
        imported(path)
    assert imported(path, energy="mp2_energy")[0].energy == 3.0
    with pytest.raises(InputError, match=r"has no 'mp3_energy'.*mp2_energy"):
        imported(path, energy="mp3_energy")
    ase.io.write(tmp_path / "b.xyz", Atoms("H2", [[0, 0, 0], [0, 0, 0.7]]))
    with pytest.raises(InputError, match="no energy is found, so name it"):
        imported(tmp_path / "b.xyz")


def test_of_two_energies_of_ase_that_of_the_forces_is_told(tmp_path: Path) -> None:
    """Codes for metals write both where their electrons are smeared."""
    frames = copper(3)
    for one in frames:
        one.calc.results["free_energy"] = one.get_potential_energy() - 0.05
    ase.io.write(tmp_path / "a.traj", frames)
    with pytest.raises(InputError, match=r"ASE's free_energy is what forces are the derivatives"):
        imported(tmp_path / "a.traj")
    assert imported(tmp_path / "a.traj", energy="free_energy")[0].energy == pytest.approx(
        frames[0].calc.results["free_energy"]
    )


def test_missing_labels_are_refused_dropped_or_kept(tmp_path: Path) -> None:
    frames, path = renamed(copper(4), "energy_dft", "forces_dft"), tmp_path / "a.xyz"
    frames[2].info["energy_dft"] = np.nan
    ase.io.write(path, frames, format="extxyz")
    with pytest.raises(InputError, match=r"Frame 2 of a.xyz has no finite energy"):
        imported(path)
    assert len(imported(path, missing="drop")) == 3
    assert np.isnan(imported(path, missing="keep")[2].energy)


@pytest.mark.parametrize("pbc", [False, True])
def test_a_single_atom_needs_no_forces(tmp_path: Path, pbc: bool) -> None:
    """Free atoms are often computed in a periodic box, and without forces."""
    atom = Atoms("Cu", cell=np.eye(3) * 20.0, pbc=pbc)
    atom.calc = SinglePointCalculator(atom, energy=-1.5)
    ase.io.write(tmp_path / "a.xyz", [atom, *copper(2)], format="extxyz")
    first, *_ = imported(tmp_path / "a.xyz")
    assert first.energy == -1.5
    assert first.forces is not None
    assert first.forces.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("alike", [False, True])
def test_periodic_directions_of_arrays_are_read(tmp_path: Path, alike: bool) -> None:
    """Slabs of archives were periodic along all three vectors of their cells."""
    flags = np.array([1, 1, 0]) if alike else np.array([[True, True, False], [False, False, False]])
    arrays = {"z": [29], "R": np.zeros((2, 1, 3)), "E": [1.0, 2.0], "cell": [2.0, 3.0, 4.0]}
    np.savez(tmp_path / "a.npz", **arrays, pbc=flags)
    first, second = imported(tmp_path / "a.npz", forces="none")
    assert first.pbc.tolist() == [True, True, False]
    assert second.pbc.tolist() == (first.pbc.tolist() if alike else [False] * 3)
    for wrong in (np.array([1, 1]), np.array([1, 2, 0]), np.array(["T", "T", "F"])):
        np.savez(tmp_path / "a.npz", **arrays, pbc=wrong)
        with pytest.raises(InputError, match="give three of 0 and 1, of each frame or of all"):
            imported(tmp_path / "a.npz", forces="none")
    np.savez(tmp_path / "a.npz", **{name: arrays[name] for name in "zRE"}, pbc=np.ones(3))
    assert not imported(tmp_path / "a.npz", forces="none")[0].pbc.any()


def test_weights_of_frames_and_of_atoms(tmp_path: Path) -> None:
    """One key: a number weighs a frame, a number for each atom its forces; never by itself."""
    frames, expected = copper(4), [np.arange(5.0 - number % 2) for number in range(4)]
    for number, atoms in enumerate(frames):
        atoms.arrays["trust"], atoms.info["energy_weight"] = expected[number], 0.5 + number
    ase.io.write(tmp_path / "a.xyz", frames, format="extxyz")
    same = frames[0::2]
    np.savez(
        tmp_path / "a.npz",
        z=same[0].numbers,
        R=[one.positions for one in same],
        E=[one.get_potential_energy() for one in same],
        trust=expected[0::2],
        energy_weight=[0.5, 2.5],
    )
    for file, wanted in (("a.xyz", range(4)), ("a.npz", (0, 2))):
        path = tmp_path / file
        for number, frame in zip(wanted, imported(path, weight="trust"), strict=True):
            np.testing.assert_array_equal(frame.force_weights, expected[number])
            assert frame.weight == 1.0
        assert [one.weight for one in imported(path, weight="energy_weight")] == [
            0.5 + n for n in wanted
        ]
        assert all(one.force_weights is None and one.weight == 1.0 for one in imported(path))
        with pytest.raises(InputError, match="check --weight-key"):
            imported(path, weight="trus")


def test_a_database_of_ase(tmp_path: Path) -> None:
    with ase.db.connect(tmp_path / "a.db") as database:
        for atoms in copper(3):
            database.write(atoms, kind="cluster")
    frames = imported(tmp_path / "a.db", group="kind")
    assert [frame.group for frame in frames] == ["cluster"] * 3
    np.testing.assert_allclose(frames[1].forces, copper(3)[1].get_forces())


def test_layouts_of_hdf5_and_npz_are_the_same_frames(tmp_path: Path) -> None:
    """SPICE stores gradients in atomic units and says so; ANI-1x hartree and A; all are one."""
    frames = copper(6)[0::2]
    positions = np.array([one.positions for one in frames])
    energy = np.array([one.get_potential_energy() for one in frames])
    forces = np.array([one.get_forces() for one in frames])
    with h5py.File(tmp_path / "spice.h5", "w") as file:
        group = file.create_group("cluster")
        group["atomic_numbers"] = frames[0].numbers
        group["conformations"] = positions / BOHR
        group["conformations"].attrs["units"] = "bohr"
        group["dft_total_energy"] = energy / HARTREE
        group["dft_total_energy"].attrs["units"] = "hartree"
        group["dft_total_gradient"] = -forces / HARTREE * BOHR
        group["formation_energy"] = energy
    with h5py.File(tmp_path / "ani.h5", "w") as file:
        group = file.create_group("Cu4O")
        group["atomic_numbers"] = frames[0].numbers
        group["coordinates"] = positions
        group["wb97x_dz.energy"] = energy / HARTREE
        group["wb97x_dz.forces"] = forces / HARTREE
    with h5py.File(tmp_path / "torchmd.h5", "w") as file:
        group = file.create_group("Cu4O")
        group["types"], group["pos"] = frames[0].numbers, positions
        group["energy"], group["forces"] = energy, forces
    kcal = 0.0433641042374
    np.savez(tmp_path / "a.npz", z=frames[0].numbers, R=positions, E=energy / kcal, F=forces / kcal)

    with h5py.File(tmp_path / "ani-1.h5", "w") as file:
        group = file.create_group("gdb/Cu4O")
        group["species"] = [symbol.encode() for symbol in frames[0].get_chemical_symbols()]
        group["coordinates"], group["energies"] = positions, energy / HARTREE
        group["forces"] = forces / HARTREE
    symbols = np.array(frames[0].get_chemical_symbols())
    np.savez(tmp_path / "text.npz", species=symbols, pos=positions, energy=energy, forces=forces)

    with pytest.raises(InputError, match="states that its conformations are in bohr"):
        imported(tmp_path / "spice.h5", energy="dft_total_energy")
    with pytest.raises(InputError, match="dft_total_energy, formation_energy"):
        imported(tmp_path / "spice.h5", units=Units("hartree", "bohr"))
    for read in (
        imported(tmp_path / "spice.h5", energy="dft_total_energy", units=Units("hartree", "bohr")),
        imported(tmp_path / "ani.h5", units=Units("hartree")),
        imported(tmp_path / "torchmd.h5"),
        imported(tmp_path / "a.npz", units=Units("kcal/mol")),
        imported(tmp_path / "ani-1.h5", units=Units("hartree")),
        imported(tmp_path / "text.npz"),
    ):
        assert len(read) == 3
        np.testing.assert_array_equal(read[0].numbers, frames[0].numbers)
        for frame, x, e, f in zip(read, positions, energy, forces, strict=True):
            np.testing.assert_allclose(frame.positions, x, rtol=1e-12)
            assert frame.energy == pytest.approx(e, rel=1e-9)
            np.testing.assert_allclose(frame.forces, f, rtol=1e-9, atol=1e-12)


def test_symbols_that_are_no_elements_are_refused(tmp_path: Path) -> None:
    arrays = {"pos": np.zeros((1, 2, 3)), "energy": np.zeros(1)}
    np.savez(tmp_path / "a.npz", species=np.array(["Cu", "Xx"]), **arrays)
    with pytest.raises(InputError, match=r"a\.npz, a has species 'Xx', which is not an element"):
        imported(tmp_path / "a.npz", forces="none")


@pytest.mark.parametrize("key", ["charge", "total_charge"])
def test_usual_names_of_a_charge_are_found(tmp_path: Path, key: str) -> None:
    frames = renamed(copper(2), "energy", "forces", **{key: -1.0})
    ase.io.write(tmp_path / "a.xyz", frames, format="extxyz")
    assert [frame.charge for frame in imported(tmp_path / "a.xyz")] == [-1.0, -1.0]
    assert [frame.charge for frame in imported(tmp_path / "a.xyz", charge="none")] == [0.0, 0.0]
    positions = np.array([one.positions for one in copper(2)[::2]])
    arrays = {"z": copper(1)[0].numbers, "pos": positions, "energy": np.zeros(1)}
    np.savez(tmp_path / "a.npz", **arrays, **{key: np.array([2])})
    assert imported(tmp_path / "a.npz", forces="none")[0].charge == 2.0


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 6)])
def test_virials_and_cells_of_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A virial is minus the stress times the volume, here 24 A^3; edges make a cell."""
    stress = 0.01 * np.arange(1.0, 13.0).reshape(2, 6)
    whole = stress[:, [0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(2, 3, 3)
    arrays = {
        "z": [29],
        "R": np.zeros((2, 1, 3)),
        "E": [1.0, 2.0],
        "cell": [2.0, 3.0, 4.0],
        "virial": -24.0 * (stress if len(shape) == 2 else whole),
        "charge": [1, -1],
    }
    np.savez(tmp_path / "a.npz", **arrays)
    for frame, expected in zip(imported(tmp_path / "a.npz"), whole, strict=True):
        np.testing.assert_allclose(frame.stress, expected)
        np.testing.assert_array_equal(frame.cell, np.diag([2.0, 3.0, 4.0]))
        assert frame.charge in (1.0, -1.0)


def copper_oxide(file: h5py.File) -> list[h5py.Group]:
    """Two new groups of three frames each."""
    groups = [file.create_group(name) for name in "ab"]
    for group in groups:
        group["z"], group["R"], group["E"] = [29, 8], np.zeros((3, 2, 3)), np.arange(3.0)
        group["F"] = np.zeros((3, 2, 3))
    return groups


@pytest.mark.parametrize(
    ("name", "unit", "expected"),
    [
        ("stress", "GPa", "its stress are in GPa, not in eV/A^3; give --stress-unit GPa"),
        ("stress", "gpa", "its stress are in gpa, not in eV/A^3"),
        ("virial", "hartree", "its virial are in hartree, not in eV; give --energy-unit hartree"),
        ("cell", "bohr", "its cell are in bohr, not in A; give --length-unit bohr"),
    ],
)
def test_other_units_that_hdf5_states_of_stress_and_cell_are_refused(
    tmp_path: Path, name: str, unit: str, expected: str
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for group in copper_oxide(file):
            group["cell"] = np.broadcast_to(9.0 * np.eye(3), (3, 3, 3))
            group["virial" if name == "virial" else "stress"] = np.ones((3, 6))
            group[name].attrs["units"] = unit
    with pytest.raises(InputError, match=re.escape(expected)):
        imported(path)


def test_a_stated_unit_that_is_not_known_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for group in copper_oxide(file):
            group["E"].attrs["units"] = "Eh"
    assert len(imported(path)) == 6
    (text,) = [one.getMessage() for one in caplog.records if "known here" in one.getMessage()]
    assert "its E are in 'Eh'" in text
    assert "read as eV, and --energy-unit" in text


def test_arrays_of_wrong_shape_or_unit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["z"], file["R"], file["E"] = [29, 8], np.zeros((3, 2, 3)), np.arange(3.0)
        file["steps"], file["F"] = np.arange(5.0), np.zeros((3, 2, 3))
        file["F"].attrs["units"] = "hartree/bohr"
    with pytest.raises(InputError, match="energy in steps, of shape"):
        imported(path, energy="steps", forces="none")
    with pytest.raises(InputError, match=r"states that its F are in hartree/bohr, not in eV/A"):
        imported(path)
    assert len(imported(path, forces="none")) == 3
    with (
        written(tmp_path / "set.h5", [labelled(one) for one in copper(2)]),
        pytest.raises(InputError, match="is a data set already"),
    ):
        imported(tmp_path / "set.h5")


@pytest.mark.parametrize(
    ("label", "name", "shape"),
    [
        ("energy", "energy", (2,)),
        ("energy", "E", (2,)),
        ("forces", "forces", (3, 2, 2)),
        ("forces", "forces", (3, 2)),
        ("forces", "F", (2, 2, 3)),
    ],
)
def test_a_label_of_wrong_shape_is_not_overlooked(
    tmp_path: Path, label: str, name: str, shape: tuple[int, ...]
) -> None:
    arrays = {"energy": np.zeros(3), "forces": np.zeros((3, 2, 3))}
    del arrays[label]
    arrays[name] = np.zeros(shape)
    np.savez(tmp_path / "a.npz", z=[29, 8], R=np.ones((3, 2, 3)), **arrays)
    with pytest.raises(InputError, match=rf"{label} in {name}, of shape \({shape[0]},"):
        imported(tmp_path / "a.npz")


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize(
    ("label", "first", "second"),
    [
        ("energy", "energy", "energies"),
        ("energy", "E", "total_energy"),
        ("forces", "forces", "F"),
        ("forces", "force_dft", "F"),
        ("stress", "stress", "virial"),
    ],
)
@pytest.mark.parametrize("equal", [False, True])
def test_where_two_keys_would_fit_an_archive_is_asked_about(
    tmp_path: Path, frames: int, label: str, first: str, second: str, equal: bool
) -> None:
    """A single frame comes without the axis of frames, as `savez` of one structure has it."""
    shapes = {"energy": (), "forces": (2, 3), "stress": (3, 3)}
    labels = {
        name: np.full(shape, 0.5) if frames == 1 else np.full((frames, *shape), 0.5)
        for name, shape in shapes.items()
    }
    value = labels.pop(label)
    geometry = {"z": [29, 8], "R": np.ones((2, 3)) if frames == 1 else np.ones((frames, 2, 3))}
    geometry["cell"] = 9.0 * np.eye(3)
    path = tmp_path / "a.npz"
    np.savez(path, **geometry, **labels, **{first: value, second: value if equal else 2.0 * value})
    with pytest.raises(InputError) as caught:
        imported(path)
    names = sorted((first, second), key=lambda name: (name != label, name))
    assert str(caught.value) == (
        f"a.npz may have its {label} in {names[0]}, {names[1]}; choose one with --{label}-key, or "
        f"leave it out with --{label}-key none."
    )
    (frame, *_) = imported(path, **{label: second})
    scale = 1.0 if equal else 2.0
    expected = 0.5 * scale * (-1.0 / 9.0**3 if second == "virial" else 1.0)
    assert np.allclose(getattr(frame, label), expected)


@pytest.mark.parametrize(
    ("names", "value"),
    [(("positions", "R"), np.ones((3, 2, 3))), (("cell", "box"), np.full((3, 3, 3), 9.0))],
)
def test_two_geometries_are_asked_about(
    tmp_path: Path, names: tuple[str, str], value: np.ndarray
) -> None:
    """Else the labels would be taken for those of the other one."""
    arrays = {"z": [29, 8], "R": np.ones((3, 2, 3)), "energy": np.zeros(3)}
    arrays |= {"forces": np.zeros((3, 2, 3)), "cell": 9.0 * np.eye(3) * np.ones((3, 1, 1))}
    path = tmp_path / "a.npz"
    first, second = names
    np.savez(path, **arrays | {first: arrays["R" if first == "positions" else first]})
    assert len(imported(path)) == 3
    np.savez(path, **arrays | {first: 1.5 * value, second: value})
    with pytest.raises(InputError, match=f"in {first} or in {second}, which differ; write a file"):
        imported(path)


def test_forces_that_are_not_found_are_missed_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A training would run on energies alone, and nobody would know why it learns little."""
    path = tmp_path / "a.xyz"
    ase.io.write(path, renamed(copper(2), "energy_dft", "pull"), format="extxyz")
    imported(path, forces="none")
    assert "no forces" not in caplog.text
    ase.io.write(tmp_path / "b.xyz", Atoms("Cu", info={"energy_dft": 1.0}), format="extxyz")
    imported(tmp_path / "b.xyz")
    assert "no forces" not in caplog.text  # nothing acts on a single atom
    imported(path)
    assert "no forces are found among energy_dft, pull; name them with --forces-key" in caplog.text


@pytest.mark.parametrize(
    ("unit", "factor"), [("debye", 0.2081943332), ("e*bohr", BOHR), ("e*A", 1.0), (None, 0.1)]
)
def test_dipoles_come_in_debye_too(tmp_path: Path, unit: str | None, factor: float) -> None:
    """One debye is 3.33564e-30 C m; without a unit dipoles are in e times the unit of lengths."""
    frames, path = renamed(copper(2), "energy", "forces"), tmp_path / "a.xyz"
    for atoms in frames:
        atoms.info["mu"] = np.array([1.0, -2.0, 0.5])
    ase.io.write(path, frames, format="extxyz")
    units = Units(length="A" if unit else "nm", dipole=unit)
    factor *= 1.0 if unit else 100.0
    first = imported(path, dipole="mu", units=units)[0]
    np.testing.assert_allclose(first.dipole, factor * np.array([1.0, -2.0, 0.5]), rtol=1e-9)
    with pytest.raises(InputError, match="'tesla' of dipoles is not known; give debye"):
        imported(path, dipole="mu", units=Units(dipole="tesla"))


def test_a_unit_of_forces_is_an_energy_over_a_length() -> None:
    with pytest.raises(InputError, match="'hartree' of forces is no energy over a length"):
        assert Units(forces="hartree").force_factor


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").touch()
    with pytest.raises(FileError, match="it is empty"):
        imported(tmp_path / "a.xyz")


def test_stress_in_voigt_order_and_virial_sign(tmp_path: Path) -> None:
    atoms = Atoms("Cu", cell=[3.0, 3.0, 4.0], pbc=True)
    stress = np.arange(1.0, 7.0) * 0.01
    atoms.calc = SinglePointCalculator(atoms, energy=1.0, forces=np.zeros((1, 3)), stress=stress)
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz")
    bare = Atoms("Cu", cell=[3.0, 3.0, 4.0], pbc=True)
    bare.info |= {"energy_a": 1.0, "virial": -36.0 * atoms.get_stress(voigt=False)}
    ase.io.write(tmp_path / "b.xyz", bare, format="extxyz")
    expected = atoms.get_stress(voigt=False)
    for name in ("a.xyz", "b.xyz"):
        np.testing.assert_allclose(imported(tmp_path / name)[0].stress, expected, atol=1e-8)


def tables(path: Path, **changes: Any) -> Path:
    """One group of two frames, with some of its arrays replaced or, by None, left out."""
    frames = copper(3)[::2]
    arrays: dict[str, Any] = {
        "atomic_numbers": frames[0].numbers,
        "positions": np.array([one.positions for one in frames]),
        "energy": np.array([one.get_potential_energy() for one in frames]),
        "forces": np.array([one.get_forces() for one in frames]),
    }
    arrays = {name: value for name, value in (arrays | changes).items() if value is not None}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            if callable(value):
                value(file.create_group("Cu4O") if "Cu4O" not in file else file["Cu4O"], name)
            else:
                file.require_group("Cu4O")[name] = value
    return path


def _virtual(group: h5py.Group, name: str) -> None:
    """Of a source that is gone, of which the library makes zeros."""
    layout = h5py.VirtualLayout((2, 5, 3), float)
    layout[...] = h5py.VirtualSource("gone.h5", name, shape=(2, 5, 3))
    group.create_virtual_dataset(name, layout)


def _outside(group: h5py.Group, name: str) -> None:
    outside = [("outside.raw", 0, h5py.h5f.UNLIMITED)]
    group.create_dataset(name, (2, 5, 3), float, external=outside)


def _external(group: h5py.Group, name: str) -> None:
    group[name] = h5py.ExternalLink("gone.h5", "/x")


def _broken(group: h5py.Group, name: str) -> None:
    group[name] = h5py.SoftLink("/nowhere")


def _group(group: h5py.Group, name: str) -> None:
    group.create_group(name)


def _huge(group: h5py.Group, name: str) -> None:
    group.create_dataset(name, (10**12, 5, 3), float, chunks=True, compression="gzip")


def _circle(group: h5py.Group, name: str) -> None:
    file = group.file
    del file["Cu4O"]
    file["Cu4O"] = file["/"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("positions", _virtual, "numbers of /Cu4O/positions in other files"),
        ("forces", _virtual, "numbers of /Cu4O/forces in other files"),
        ("positions", _outside, "in other files"),
        ("positions", _external, "in another file, gone.h5"),
        ("energy", _broken, "/Cu4O/energy that leads nowhere"),
        ("positions", _group, "has a group where the positions"),
        ("positions", _huge, r"says that its /Cu4O/positions has 120,000,000,000,000 bytes"),
        ("positions", None, "atomic_numbers in 'Cu4O' without the other"),
        ("atomic_numbers", None, "positions in 'Cu4O' without the other"),
        ("positions", np.ones((2, 5, 3)) * 1j, "holds no real numbers"),
        ("positions", np.full((2, 5, 3), b"a"), "holds no real numbers"),
        ("positions", 1.0, "shape"),
        ("positions", np.full((2, 5, 3), np.nan), "not finite"),
        ("positions", np.full((2, 5, 3), 1e12), "give the right --length-unit"),
        ("atomic_numbers", [29.0, 29.0, 29.0, 29.0, 8.5], "not atomic numbers"),
        ("atomic_numbers", [29, 29, 29, 29, 119], "an atomic number 119"),
        ("energy", np.array([1.0, 2.0]) + 1j, "and type complex128"),
        ("energy", np.array([1.0, 1e9]), "beyond that of all electrons"),
        ("charge", np.array([-12632.4, 0.0]), "a charge of -12632.4 e"),
        ("charge", np.array([0.0, 0.5]), "a charge of 0.5 e, which must be whole"),
        ("charge", np.array([0.0, np.nan]), "a charge of nan e"),
        ("other", _circle, "leads back to a group which holds it"),
    ],
)
def test_arrays_that_cannot_be_are_refused(
    tmp_path: Path, name: str, value: Any, sentence: str
) -> None:
    def checked() -> None:
        for frame in imported(tables(tmp_path / "a.h5", **{name: value})):
            frame.check("It")

    with pytest.raises((FileError, InputError), match=sentence):
        checked()


def test_whole_charges_in_floating_point_are_charges(tmp_path: Path) -> None:
    (first, second) = imported(tables(tmp_path / "a.h5", charge=np.array([-1.0, 2.0])))
    first.check("It")
    assert (first.charge, second.charge) == (-1.0, 2.0)


def test_an_array_that_the_library_has_compressed_much_is_read(tmp_path: Path) -> None:
    """Zeros are stored in a thousandth of their size."""
    path = tables(tmp_path / "a.h5", forces=None)
    with h5py.File(path, "r+") as file:
        values = np.zeros((2, 5, 3))
        file["Cu4O"].create_dataset("forces", data=values, chunks=(2, 5, 3), compression="gzip")
        file["Cu4O"].create_dataset("more", data=np.zeros(10**7), compression="gzip")
    assert len(imported(path)) == 2


def test_archives_that_hold_objects_or_more_than_they_can(tmp_path: Path) -> None:
    path = tables(tmp_path / "a.npz", positions=np.array([{}] * 2, dtype=object))
    with pytest.raises(FileError, match="holds Python objects, which may run code"):
        imported(path)
    np.savez_compressed(path, **dict.fromkeys("abc", np.zeros(2 * 10**7)))
    with pytest.raises(FileError, match="it says that it unpacks to 480,000,"):
        imported(path)
    path = tables(tmp_path / "b.npz")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"'shape': (2, 5, 3)", b"'shape': (9, 9, 9)"))
    with pytest.raises(FileError, match=r"b\.npz"):
        imported(path)
    assert len(imported(tables(tmp_path / "c.npz"))) == 2


def test_frames_of_several_spins_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = renamed(copper(4), "energy", "forces", multiplicity=1)
    path = tmp_path / "a.xyz"
    ase.io.write(path, frames, format="extxyz")
    imported(path)
    assert "spin" not in caplog.text
    frames[2].info["multiplicity"] = 3
    ase.io.write(path, frames, format="extxyz")
    imported(path)
    assert "spins 1, 3 in 'multiplicity', which are not read" in caplog.text


def test_units_that_an_archive_of_sgdml_states_are_those_of_the_import(tmp_path: Path) -> None:
    frames = copper(6)[::2]
    arrays = {
        "z": frames[0].numbers,
        "R": np.array([one.positions for one in frames]),
        "E": np.array([[one.get_potential_energy()] for one in frames]),
        "F": np.array([one.get_forces() for one in frames]),
    }
    path = tmp_path / "a.npz"
    np.savez(path, **arrays, e_unit="kcal/mol", r_unit="Ang")
    with pytest.raises(InputError, match=r"E are in kcal/mol, not in eV; give --energy-unit"):
        imported(path)
    assert len(imported(path, units=Units(energy="kcal/mol"))) == 3
    np.savez(path, **arrays, e_unit="eV", r_unit="bohr")
    with pytest.raises(InputError, match=r"R are in bohr, not in A"):
        imported(path)


@pytest.mark.parametrize("key", ["tot_charge", "REF_charge", "q"])
def test_names_like_that_of_a_charge_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    caplog.set_level("INFO")
    frames, path = renamed(copper(4), "energy", "forces", **{key: -1.0}), tmp_path / "a.xyz"
    ase.io.write(path, frames, format="extxyz")
    assert [frame.charge for frame in imported(path)] == [-1.0] * 4
    assert f"'{key}' is taken for the charge" in caplog.text
    assert [frame.charge for frame in imported(path, charge="none")] == [0.0] * 4
    np.savez(
        tmp_path / "a.npz",
        z=frames[0].numbers,
        R=[frame.positions for frame in frames[::2]],
        E=[1.0, 2.0],
        F=[frame.arrays["forces"] for frame in frames[::2]],
        **{key: [0, -1]},
    )
    assert [frame.charge for frame in imported(tmp_path / "a.npz")] == [0.0, -1.0]


@pytest.mark.parametrize("column", ["charge", "initial_charges"])
def test_charges_of_atoms_that_make_an_ion_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    frames, path = renamed(copper(4), "energy", "forces"), tmp_path / "a.xyz"
    for total, told in ((0.0, False), (1.0, True)):
        caplog.clear()
        for frame in frames:
            frame.arrays[column] = np.full(len(frame), total / len(frame))
        ase.io.write(path, frames, format="extxyz")
        assert [frame.charge for frame in imported(path)] == [0.0] * 4
        assert ("charges of atoms add up to 1.0 e and are not read" in caplog.text) is told


def test_a_virial_stress_is_a_stress(tmp_path: Path) -> None:
    stress = np.array([[1.0, 0.2, 0.3], [0.2, -2.0, 0.4], [0.3, 0.4, 3.0]])
    for frame in (frames := renamed(copper(2), "energy", "forces")):
        frame.info |= {"virial_stress": stress}
        frame.cell, frame.pbc = [10.0, 11.0, 12.0], True
    ase.io.write(tmp_path / "a.xyz", frames, format="extxyz")
    (first, _) = imported(tmp_path / "a.xyz")
    np.testing.assert_allclose(first.stress, stress)


@pytest.mark.parametrize(
    ("energy", "forces", "stress", "units", "said"),
    [
        ("energy_kcal_mol", "forces", "stress", {}, ["'energy_kcal_mol' tells kcal/mol"]),
        ("energy_eV", "forces_eV", "stress_kbar", {"stress": "kbar"}, []),
        ("energy_kcal", "forces_kcal", "virial_kcal", {"energy": "kcal/mol"}, []),
        ("energy_Ha", "forces_Ha_bohr", "s_virial", {"energy": "Ha", "forces": "Ha/bohr"}, []),
        (
            "energy",
            "hartree_forces",
            "stress",
            {},
            ["'hartree_forces' tells hartree, but its numbers are read as eV/A; if they are not"],
        ),
        ("energy", "force", "stress_GPa", {}, ["GPa, but its numbers are read as eV/A^3"]),
    ],
)
def test_another_unit_in_a_name_is_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    energy: str,
    forces: str,
    stress: str,
    units: dict[str, str],
    said: list[str],
) -> None:
    for frame in (frames := renamed(copper(2), energy, forces)):
        frame.info |= {stress: np.eye(3)}
        frame.cell, frame.pbc = [10.0, 11.0, 12.0], True
    ase.io.write(tmp_path / "a.xyz", frames, format="extxyz")
    imported(tmp_path / "a.xyz", units=Units(**units))
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == len(said)
    assert all(part in text for part, text in zip(said, warnings, strict=True))
