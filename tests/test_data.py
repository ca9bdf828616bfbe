"""Data sets: what goes in comes out, what is ambiguous is asked, what is wrong is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.db
import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from scipy.spatial.transform import Rotation

from mdgraph.data import LabelledFrame, Provenance, open_dataset, read_split, write_dataset
from mdgraph.data.consistency import energy_force_consistency
from mdgraph.data.findings import check_dataset
from mdgraph.data.importing import import_file
from mdgraph.data.keys import Keys, Request
from mdgraph.data.splits import (
    block_split,
    file_split,
    fold_splits,
    group_split,
    random_split,
    write_split,
)
from mdgraph.data.units import Units
from mdgraph.errors import FileError, InputError

HARTREE, BOHR = 27.211386245988, 0.529177210903


def copper(frames: int = 12, seed: int = 0, size: float = 0.1) -> list[Atoms]:
    """Rattled copper clusters with oxygen on them, with energies and forces of EMT."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        symbols = "Cu4" if number % 2 else "Cu4O"
        places = np.array([[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0], [0, 0, 2.5], [1.3, 1.3, -1.3]])
        atoms = Atoms(symbols, places[: 5 - number % 2])
        atoms.positions += generator.normal(scale=size, size=atoms.positions.shape)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        found.append(atoms)
    return found


def labelled(atoms: Atoms, **changes: Any) -> LabelledFrame:
    values = {
        "numbers": atoms.numbers.astype(np.int64),
        "positions": atoms.positions,
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces(),
        "group": str(atoms.symbols),
    }
    return LabelledFrame(**(values | changes))


def written(path: Path, frames: list[LabelledFrame], file: str = "made") -> Any:
    write_dataset(path, [(frames, Provenance(file))])
    return open_dataset(path)


def test_everything_comes_back_and_more_can_be_added(tmp_path: Path) -> None:
    path, generator = tmp_path / "set.h5", np.random.default_rng(1)
    full = LabelledFrame(
        numbers=np.array([14, 8]),
        positions=generator.normal(size=(2, 3)),
        cell=generator.normal(size=(3, 3)),
        pbc=np.array([True, False, True]),
        energy=-1234.5678901234567,
        forces=generator.normal(size=(2, 3)),
        stress=generator.normal(size=(3, 3)),
        dipole=generator.normal(size=3),
        charge=-1.0,
        weight=0.25,
        group="glass",
    )
    frames = [labelled(one) for one in copper()]
    with written(path, frames) as dataset:
        before = dataset.sha256()
        for index, frame in enumerate(frames):
            np.testing.assert_array_equal(dataset.frame(index).forces, frame.forces)
        assert np.isnan(dataset.stress).all()
    assert write_dataset(path, [([full], Provenance("glass.xyz", licence="MIT"))], append=True) == 1
    with open_dataset(path) as dataset:
        assert dataset.sha256() != before
        assert [source.file for source in dataset.sources] == ["made", "glass.xyz"]
        assert dataset.sources[1].licence == "MIT"
        assert len(dataset) == len(frames) + 1
        last = dataset.frame(len(frames))
        for name, value in vars(full).items():
            np.testing.assert_array_equal(getattr(last, name), value)
        assert [frame.group for frame in dataset.frames([1, 0])] == ["Cu4", "Cu4O"]
        assert dataset.frame(0).energy == frames[0].energy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"forces": np.zeros((3, 3))}, "forces of shape"),
        ({"positions": np.full((5, 3), np.nan)}, "not finite"),
        ({"pbc": np.array([True, False, False])}, "periodic along a vector"),
        ({"numbers": np.array([29, 29, 29, 29, 0])}, "atomic number 0"),
    ],
)
def test_frames_that_cannot_be_are_refused_whole(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    good, bad = copper(3)[0::2]
    with pytest.raises(InputError, match=said):
        written(tmp_path / "set.h5", [labelled(good), labelled(bad, **change)])
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_no_data_sets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = 1
    with pytest.raises(FileError, match="no data set of mdgraph"):
        open_dataset(tmp_path / "other.h5")
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(FileError, match="no data set of mdgraph; make one"):
        open_dataset(tmp_path / "text.h5")
    written(tmp_path / "set.h5", [labelled(copper(3)[0])])
    content = (tmp_path / "set.h5").read_bytes()
    (tmp_path / "half.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match="damaged"):
        open_dataset(tmp_path / "half.h5")


# Importers


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
    with pytest.raises(InputError, match="No energy is found"):
        imported(tmp_path / "b.xyz")


def test_missing_labels_are_refused_dropped_or_kept(tmp_path: Path) -> None:
    frames, path = renamed(copper(4), "energy_dft", "forces_dft"), tmp_path / "a.xyz"
    frames[2].info["energy_dft"] = np.nan
    ase.io.write(path, frames, format="extxyz")
    with pytest.raises(InputError, match=r"Frame 2 of a.xyz has no finite energy"):
        imported(path)
    assert len(imported(path, missing="drop")) == 3
    assert np.isnan(imported(path, missing="keep")[2].energy)


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

    with pytest.raises(InputError, match="states that its conformations are in bohr"):
        imported(tmp_path / "spice.h5", energy="dft_total_energy")
    with pytest.raises(InputError, match="dft_total_energy, formation_energy"):
        imported(tmp_path / "spice.h5", units=Units("hartree", "bohr"))
    for read in (
        imported(tmp_path / "spice.h5", energy="dft_total_energy", units=Units("hartree", "bohr")),
        imported(tmp_path / "ani.h5", units=Units("hartree")),
        imported(tmp_path / "torchmd.h5"),
        imported(tmp_path / "a.npz", units=Units("kcal/mol")),
    ):
        assert len(read) == 3
        for frame, x, e, f in zip(read, positions, energy, forces, strict=True):
            np.testing.assert_allclose(frame.positions, x, rtol=1e-12)
            assert frame.energy == pytest.approx(e, rel=1e-9)
            np.testing.assert_allclose(frame.forces, f, rtol=1e-9, atol=1e-12)


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


# Splits


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    frames = [labelled(one, group=f"g{i // 4}") for i, one in enumerate(copper(40))]
    with written(tmp_path / "set.h5", frames) as opened:
        yield opened


def test_splits_cover_every_frame_once_and_know_their_data(dataset: Any, tmp_path: Path) -> None:
    for split in (
        random_split(dataset, 0.2, 5, seed=1),
        group_split(dataset, 0.2, 0.2, seed=1),
        *fold_splits(dataset, 4, 0.1, seed=1),
    ):
        every = np.concatenate([split.train, split.validation, split.test])
        assert sorted(every) == list(range(40))
    grouped = group_split(dataset, 0.2, 0.2, seed=1)
    parts = [set(dataset.group[chosen]) for _, chosen in grouped.parts()]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]
    folds = fold_splits(dataset, 4, 0.1, seed=1)
    held = np.concatenate([fold.validation for fold in folds])
    assert len(held) == len(set(held)) == 36

    write_split(grouped, tmp_path / "split.json")
    same = read_split(tmp_path / "split.json", dataset)
    np.testing.assert_array_equal(same.validation, grouped.validation)
    copy = tmp_path / "other.h5"
    with written(copy, [labelled(one) for one in copper(40, seed=2)]) as other:  # noqa: SIM117
        with pytest.raises(InputError, match="changed since the split"):
            read_split(tmp_path / "split.json", other)
    record = json.loads((tmp_path / "split.json").read_text())
    record["test"][0] = 40
    (tmp_path / "split.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="one that is not there"):
        read_split(tmp_path / "split.json", dataset)
    (tmp_path / "split.json").write_text('{"format": 1}')
    with pytest.raises(FileError, match="no split"):
        read_split(tmp_path / "split.json", dataset)


def test_unseen_elements_and_empty_parts_are_refused(tmp_path: Path) -> None:
    path, (oxide, metal, *_) = tmp_path / "set.h5", copper(4)
    parts = [
        ([labelled(metal)] * 3, Provenance("metal.xyz")),
        ([labelled(oxide)], Provenance("o.xyz")),
    ]
    write_dataset(path, parts)
    with open_dataset(path) as dataset:
        with pytest.raises(InputError, match="O is in frames of validation and in none of train"):
            file_split(dataset, 0, 0, ["o.xyz"], [], seed=0)
        with pytest.raises(InputError, match="no frame for validation"):
            random_split(dataset, 0, 0, seed=0)
        with pytest.raises(InputError, match=r"the files are metal.xyz, o.xyz"):
            file_split(dataset, 0, 0, ["oxide.xyz"], [], seed=0)


def test_blocks_of_a_shuffled_walk_are_contiguous_in_time(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    steps = generator.normal(scale=0.1, size=(60, 5, 3))
    walk = 2.0 * np.arange(15.0).reshape(5, 3) + np.cumsum(steps, axis=0)
    order = generator.permutation(60)
    numbers, cell = np.full(5, 29), 40.0 * np.eye(3)
    frames = [
        LabelledFrame(numbers, walk[time] % 40.0, cell, np.full(3, True), float(time))
        for time in order
    ]
    with written(tmp_path / "set.h5", frames) as dataset:
        split = block_split(dataset, 20, 2, shuffled=True)
        times = np.sort(dataset.energy[split.validation])
        assert len(times) == 20
        # Neighbors in time may change places, blocks may not.
        assert np.sum(np.diff(times) > 3) == 1
        plain = block_split(dataset, 20, 2)
        assert np.sum(np.diff(plain.validation) > 1) == 1
        assert np.sum(np.diff(np.sort(dataset.energy[plain.validation])) > 1) > 5


# Checks


def trajectory(count: int = 40, scale: float = 0.03) -> list[Atoms]:
    return copper(2 * count, seed=3, size=scale)[0::2]


def findings(tmp_path: Path, frames: list[LabelledFrame], **options: Any) -> list[str]:
    (tmp_path / "set.h5").unlink(missing_ok=True)
    with written(tmp_path / "set.h5", frames) as dataset:
        split = random_split(dataset, 0.25, 0, seed=0) if options.get("split") else None
        return [one.text for one in check_dataset(dataset, split) if one.wrong]


def test_good_data_pass(tmp_path: Path) -> None:
    assert findings(tmp_path, [labelled(one) for one in trajectory()], split=True) == []


def test_leakage_is_seen_through_rotation_and_order(tmp_path: Path) -> None:
    frames = trajectory()
    with written(tmp_path / "set.h5", [labelled(one) for one in frames]) as dataset:
        split = random_split(dataset, 0.25, 0, seed=0)
    leak, source = int(split.validation[0]), int(split.train[0])
    turn = Rotation.random(random_state=1).as_matrix()
    order = [3, 1, 0, 2, 4]
    turned = Atoms(frames[source].numbers[order], (frames[source].positions @ turn.T)[order] + 3.0)
    forces = (frames[source].get_forces() @ turn.T)[order]
    energy = frames[source].get_potential_energy()
    turned.calc = SinglePointCalculator(turned, energy=energy, forces=forces)
    frames[leak] = turned
    (found,) = findings(tmp_path, [labelled(one) for one in frames], split=True)
    assert "train and validation are the same" in found
    assert f"{min(leak, source)} and {max(leak, source)}" in found


@pytest.mark.parametrize(
    ("factor", "sign", "said"),
    [(HARTREE, 1.0, "hartree"), (1.0, -1.0, "wrong sign"), (0.0433641042374, 1.0, "kcal/mol")],
)
def test_forces_in_other_units_are_suspected(
    tmp_path: Path, factor: float, sign: float, said: str
) -> None:
    frames = [labelled(one, forces=sign * one.get_forces() / factor) for one in trajectory()]
    with written(tmp_path / "set.h5", frames) as dataset:
        found = energy_force_consistency(dataset)
    assert found.certain
    assert abs(found.slope) == pytest.approx(factor, rel=0.1)
    assert said in found.suspicion


def test_faults_of_single_frames_are_named(tmp_path: Path) -> None:
    frames = [labelled(one) for one in trajectory()]
    atoms = trajectory()[7]
    close, far, force = (
        atoms.positions.copy(),
        atoms.get_potential_energy() + 50.0,
        atoms.get_forces(),
    )
    close[1] = close[0] + [0.6, 0.0, 0.0]
    force[0, 0] += 100.0
    force[1, 0] -= 100.0
    for change, said in (
        ({"positions": close}, "too close in 1 frames (7)"),
        ({"energy": far}, "eV an atom off"),
        ({"forces": force}, "(7)"),
    ):
        assert any(
            said in text
            for text in findings(tmp_path, [*frames[:7], labelled(atoms, **change), *frames[8:]])
        )
    shifted = [labelled(one, forces=one.get_forces() + 0.3) for one in trajectory()]
    assert any("net force" in text for text in findings(tmp_path, shifted))


# Commands


def test_commands_from_a_file_to_a_checked_split(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    ase.io.write(tmp_path / "a.xyz", copper(20), format="extxyz")
    ase.io.write(tmp_path / "b.xyz", copper(10, seed=5), format="extxyz")
    data, split = tmp_path / "set.h5", tmp_path / "split.json"
    done = mdgraph_command("data", "convert", tmp_path / "a.xyz", data, "--licence", "MIT")
    assert done.status == 0, done.err
    assert mdgraph_command("data", "convert", tmp_path / "a.xyz", data).status == 1
    assert mdgraph_command("data", "convert", tmp_path / "b.xyz", data, "--append").status == 0
    picture = tmp_path / "a.png"
    said = mdgraph_command("data", "inspect", data, "--picture", picture).out
    assert "30 (30 with energy, 30 with forces" in said
    assert "a.xyz, level of theory not stated, MIT" in said
    assert picture.stat().st_size > 1000
    options = ["--method", "file", "--test-file", "b.xyz", "--validation", 4]
    assert mdgraph_command("data", "split", data, split, *options).status == 0
    assert [
        len(json.loads(split.read_text())[part]) for part in ("train", "validation", "test")
    ] == [
        16,
        4,
        10,
    ]
    assert mdgraph_command("data", "check", data, "--split", split).out == "Nothing is wrong.\n"
    assert mdgraph_command("data", "convert", tmp_path / "b.xyz", data, "--append").status == 0
    done = mdgraph_command("data", "check", data, "--split", split)
    assert (done.status, "changed since the split" in done.err) == (1, True)
    assert mdgraph_command("data", "convert", tmp_path / "no.xyz", tmp_path / "no.h5").status == 1
