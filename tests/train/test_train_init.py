"""`mdgraph train init`: from labelled frames to a training that runs."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import yaml
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from training_sets import NETWORK, clusters, crystals

from mdgraph.checkpoints import describe
from mdgraph.data import LabelledFrame, Provenance, open_dataset, read_split, write_dataset
from mdgraph.data.bonding import kind_of
from mdgraph.data.splits import together_split, trajectories
from mdgraph.errors import InputError
from mdgraph.io.structures import read_system
from mdgraph.runs.training import read_training
from mdgraph.train.config import TrainConfig
from mdgraph.train.recipes import RECIPES, training_text
from mdgraph.validate import dynamics_checks

SMALL = {"potential": NETWORK, "steps": 4, "validations": 1, "device": "cpu"}


def as_atoms(frame: LabelledFrame, **changes: Any) -> Atoms:
    atoms = Atoms(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc)
    labels: dict[str, Any] = {"energy": frame.energy, "forces": frame.forces} | changes
    labels = {name: value for name, value in labels.items() if value is not None}
    atoms.calc = SinglePointCalculator(atoms, **labels)
    if frame.group:
        atoms.info["config_type"] = frame.group
    return atoms


def write_frames(path: Path, frames: list[LabelledFrame]) -> Path:
    ase.io.write(path, [as_atoms(frame) for frame in frames], format="extxyz")
    return path


def in_groups(frames: list[LabelledFrame], *names: str) -> list[LabelledFrame]:
    """Frames in as many groups as there are names, in turn."""
    return [replace(frame, group=names[number % len(names)]) for number, frame in enumerate(frames)]


def dataset_of(folder: Path, frames: list[LabelledFrame]) -> Path:
    write_dataset(folder / "set.h5", [(frames, Provenance("made.xyz"))])
    return folder / "set.h5"


def run_init(command: Callable[..., Any], *arguments: object) -> Any:
    done = command("train", "init", *arguments)
    assert done.status == 0, done.err
    return done


@pytest.mark.usefixtures("without_report")
def test_a_newcomer_follows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """Every printed command runs, in a training made small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dynamics_checks, "MINUTES", (1 / 60, 1 / 60))
    write_frames(Path("set_450K.xyz"), in_groups(clusters(24), ""))
    done = run_init(mdgraph_command, "set_450K.xyz")
    text = Path("train.yaml").read_text(encoding="utf-8")
    settings = read_training(Path("train.yaml"), {})
    assert settings.potential.channels == RECIPES["molecule"].settings["potential"]["channels"]
    assert settings.loss.perturbation.weight == (0.3, 0.3)
    assert settings.loss.energy.weight == (20, 20)
    assert settings.batch == 8
    assert settings.optimizer == "muon"
    commands = [line for line in done.out.splitlines() if line.startswith("mdgraph ")]
    assert [shlex.split(line)[1] for line in commands] == ["data", "train", "validate", "md"]
    Path("train.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | SMALL), encoding="utf-8")
    for line in commands:
        short = line.replace("--time-ps 10", "--steps 3 --evaluator reference")
        short += " --device cpu" * line.startswith("mdgraph md")
        short += " --device cpu --quick --judge none" * line.startswith("mdgraph validate")
        finished = mdgraph_command(*shlex.split(short)[1:])
        judged = line.startswith(("mdgraph data check", "mdgraph validate"))
        assert finished.status == 0 or (judged and finished.status == 1), finished.err
    assert json.loads(Path("mdgraph-validation/validation.json").read_text())["checks"]
    assert "--temperature-K 450" in done.out
    assert Path("set_450K-potential/model.safetensors").exists()


@pytest.mark.usefixtures("without_report")
def test_crystals_with_stress_get_the_recipe_of_crystals(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    frames = crystals(24)
    atoms = [as_atoms(frame, stress=frame.stress) for frame in frames]
    ase.io.write(tmp_path / "cu.xyz", atoms, format="extxyz")
    path = tmp_path / "cu.yaml"
    done = run_init(mdgraph_command, tmp_path / "cu.xyz", "--out", path)
    assert "kind:      crystal" in done.out
    assert "stress:    24 frames have it, and it is fitted" in done.out
    settings = read_training(path, {})
    assert settings.loss.stress.weight[0] > 0.0
    assert settings.muon_edges
    assert settings.loss.energy.kind == "huber"
    assert settings.steps == 3000
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | SMALL), encoding="utf-8")
    assert mdgraph_command("train", path).status == 0
    metrics = json.loads((tmp_path / "cu-potential" / "metrics.json").read_text())
    assert "stress_rmse_meV_per_A3" in metrics["validation"]


def test_stresses_of_molecules_are_not_fitted(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """ASE's calculators may write them for what has no volume, and a training refuses them."""
    atoms = [as_atoms(frame, stress=np.zeros((3, 3))) for frame in clusters(12)]
    ase.io.write(tmp_path / "set.xyz", atoms, format="extxyz")
    path = tmp_path / "train.yaml"
    done = run_init(mdgraph_command, tmp_path / "set.xyz", "--out", path)
    assert "stress:    12 frames have it, and none of them is periodic and trained on" in done.out
    assert not any(read_training(path, {}).loss.stress.weight)
    short = {"data": str(tmp_path / "set.h5"), "out": str(tmp_path / "other")}
    path.write_text(yaml.safe_dump(short), encoding="utf-8")
    assert not any(read_training(path, {}).loss.stress.weight)


def with_a_potential(mdgraph_command: Callable[..., Any]) -> tuple[Path, Path]:
    """Frames on which set-potential was trained, and a folder for another training, both here."""
    path = write_frames(Path("set.xyz"), clusters(12))
    run_init(mdgraph_command, path)
    values = yaml.safe_load(Path("train.yaml").read_text(encoding="utf-8"))
    Path("train.yaml").write_text(yaml.safe_dump(values | SMALL), encoding="utf-8")
    assert mdgraph_command("train", "train.yaml").status == 0
    new = Path("new")
    new.mkdir()
    return path, new


@pytest.mark.usefixtures("without_report")
def test_kind_and_prior_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """A potential of one training is fine-tuned by the next, by another recipe."""
    monkeypatch.chdir(tmp_path)
    path, new = with_a_potential(mdgraph_command)
    options = "--kind", "crystal", "--prior", "set-potential", "--out", new / "train.yaml"
    done = run_init(mdgraph_command, path, *options)
    assert "kind:      crystal (frames looked at: 12 molecule)" in done.out
    settings = read_training(new / "train.yaml", {})
    assert settings.start_from == "set-potential"
    assert settings.elements == "data"
    assert settings.batch == RECIPES["crystal"].settings["batch"]
    assert (settings.optimizer, settings.steps) == ("adamw", 3000)
    small = {name: value for name, value in SMALL.items() if name != "potential"}
    values = yaml.safe_load((new / "train.yaml").read_text(encoding="utf-8"))
    (new / "train.yaml").write_text(yaml.safe_dump(values | small), encoding="utf-8")
    done = mdgraph_command("train", new / "train.yaml")
    assert done.status == 0, done.err


@pytest.mark.usefixtures("without_report")
def test_a_prior_of_molecules_is_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, new = with_a_potential(mdgraph_command)
    options = "--kind", "liquid", "--prior", "set-potential", "--out", new / "train.yaml"
    done = run_init(mdgraph_command, path, *options)
    assert "set-potential, a baseline" in done.out
    settings = read_training(new / "train.yaml", {})
    assert settings.baseline == ("set-potential",)
    assert settings.potential.channels == RECIPES["liquid"].settings["potential"]["channels"]
    assert not any(settings.loss.perturbation.weight)
    values = yaml.safe_load((new / "train.yaml").read_text(encoding="utf-8"))
    (new / "train.yaml").write_text(yaml.safe_dump(values | SMALL), encoding="utf-8")
    done = mdgraph_command("train", new / "train.yaml")
    assert done.status == 0, done.err
    assert describe(new / "set-potential")["architecture"] == "Sum"


def test_a_file_without_a_length_is_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_frames(Path("set.xyz"), clusters(12))
    run_init(mdgraph_command, path)
    whole = read_training(Path("train.yaml"), {})
    names = ("data", "split", "out")
    short = {name: value for name, value in whole.model_dump(mode="json").items() if name in names}

    def read(**changes: Any) -> TrainConfig:
        Path("short.yaml").write_text(yaml.safe_dump(short | changes), encoding="utf-8")
        return read_training(Path("short.yaml"), {"seed": 7})

    assert read() == whole.model_copy(update={"seed": 7})
    own = read(loss={"energy": {"weight": 5}, "displaced": {"depth": 2.0}}, batch_atoms=90)
    assert own.loss.energy.weight == (5.0, 5.0)
    assert own.loss.perturbation == whole.loss.perturbation.model_copy(update={"well_depth": 2.0})
    assert (own.batch, own.batch_atoms) == (None, 90)
    assert own.potential == whole.potential
    adam = read(optimizer="adamw")
    assert (adam.learning_rate, adam.betas) == (1e-3, (0.9, 0.999))
    assert adam.steps == whole.steps
    tuned = read(start_from="water-pbe0")
    assert (tuned.optimizer, tuned.learning_rate, tuned.start_from) == ("adamw", 3e-4, "water-pbe0")
    assert read(baseline="water-pbe0").steps == 12000
    # With a length nothing is filled in.
    assert read(steps=9).model_fields_set == {*names, "steps", "seed"}
    Path("short.yaml").write_text(yaml.safe_dump(short | {"steps": None}), encoding="utf-8")
    with pytest.raises(InputError, match="give steps or epochs"):
        read_training(Path("short.yaml"), {})


def test_each_key_has_the_docstring_of_its_field() -> None:
    for recipe in RECIPES.values():
        paths = {"data": "set.h5", "split": "split.json", "out": "out"}
        text = training_text([recipe.description], paths | dict(recipe.settings))
        values = yaml.safe_load(text)
        TrainConfig.model_validate(values)
        assert {name: values[name] for name in recipe.settings} == dict(recipe.settings)
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if not line.lstrip().startswith("#"):
                assert lines[number - 1].lstrip().startswith("#"), f"{line} has no comment"
        flat = " ".join(line.strip().removeprefix("#").strip() for line in lines)
        for name in ("optimizer", "keep", "steps"):
            description = TrainConfig.model_fields[name].description or "absent"
            assert description.replace("\n", " ") in flat


def test_groups_are_not_split(tmp_path: Path) -> None:
    """Twenty groups of four: two are held out, whole; a lone element's group stays."""
    frames = in_groups(clusters(80), *(f"group {number}" for number in range(20)))
    frames[7::20] = [
        replace(frame, numbers=np.array([79, *frame.numbers[1:]])) for frame in frames[7::20]
    ]
    with open_dataset(dataset_of(tmp_path, frames)) as dataset:
        for seed in range(12):
            split = together_split(dataset, trajectories(dataset), 0.1, seed)
            assert len(split.validation) == 8
            trained = set(dataset.group[split.train])
            assert not trained & set(dataset.group[split.validation])
            assert 7 in trained
            assert split.method == f"whole groups, seed {seed}"


def test_trajectories_and_look_alikes_are_not_split(tmp_path: Path) -> None:
    """One name for all: frames of one cell stay together, and so do copies in another place."""
    frames = []
    for number, frame in enumerate(crystals(60)):
        own = replace(frame, group="all", force_weights=None)
        moved = replace(own, positions=own.positions + 0.001 * np.sin(number + np.arange(3)))
        frames += [own, moved]
    order = np.random.default_rng(3).permutation(len(frames))
    with open_dataset(dataset_of(tmp_path, [frames[place] for place in order])) as dataset:
        number = trajectories(dataset)
        pairs = {}
        for place, original in enumerate(order // 2):
            pairs.setdefault(original, set()).add(int(number[place]))
        assert all(len(numbers) == 1 for numbers in pairs.values())
        split = together_split(dataset, trajectories(dataset), 0.1, 0)
        assert not set(number[split.train]) & set(number[split.validation])
        assert 6 <= len(split.validation) <= 18
        assert split.method.startswith("whole trajectories")


def test_long_trajectories_give_stretches_of_each_group(tmp_path: Path) -> None:
    frames = [
        replace(frame, group="long", numbers=clusters(1)[0].numbers) for frame in clusters(160)
    ]
    frames += [
        replace(frame, group="short", positions=frame.positions * 1.01) for frame in frames[:40]
    ]
    frames.append(
        replace(
            frames[0],
            numbers=np.array([8]),
            positions=np.zeros((1, 3)),
            forces=np.zeros((1, 3)),
            group="short",
        )
    )
    with open_dataset(dataset_of(tmp_path, frames)) as dataset:
        split = together_split(dataset, trajectories(dataset), 0.1, 0)
    held = np.isin(np.arange(201), split.validation)
    assert held[:160].sum() == 16
    assert held[160:200].sum() == 4
    assert not held[200]
    # Four stretches in the long one, one in the short one.
    assert (np.diff(held[:160].astype(int)) == 1).sum() == 4
    assert (np.diff(held[160:200].astype(int)) == 1).sum() == 1


@pytest.mark.parametrize("groups", [["all"], ["first", "second"]])
def test_copies_go_where_the_first_of_them_goes(tmp_path: Path, groups: list[str]) -> None:
    """A trajectory whose frames stand there twice, under one name or under two."""
    frames = [replace(frame, numbers=clusters(1)[0].numbers) for frame in clusters(40)]
    frames = [replace(frame, group=groups[0]) for frame in frames] + [
        replace(frame, group=groups[-1]) for frame in frames[:30]
    ]
    with open_dataset(dataset_of(tmp_path, frames)) as dataset:
        split = together_split(dataset, trajectories(dataset), 0.1, 0)
        assert 4 <= len(split.validation) <= 8
        assert not set(split.validation % 40) & set(split.train % 40)
    (tmp_path / "five").mkdir()
    with (
        open_dataset(dataset_of(tmp_path / "five", frames[3:4] * 5)) as dataset,
        pytest.raises(InputError, match="1 of the 5 frames have two atoms or more, copies"),
    ):
        together_split(dataset, trajectories(dataset), 0.1, 0)


def test_the_kind_of_a_frame_follows_from_its_bonds() -> None:
    def frame(atoms: Atoms) -> LabelledFrame:
        return LabelledFrame(
            atoms.numbers.astype(np.int64),
            atoms.positions,
            np.array(atoms.cell),
            np.array(atoms.pbc),
        )

    water = molecule("H2O", vacuum=2.0)
    assert kind_of(frame(water)) == "molecule"
    water.pbc = True
    assert kind_of(frame(water)) == "molecule"  # in a box of its own
    assert kind_of(frame(water * (2, 2, 2))) == "liquid"
    broken = water * (2, 2, 2)
    broken.positions += 2.3
    broken.wrap()
    assert kind_of(frame(broken)) == "liquid"  # through the walls of the cell
    for solid in (bulk("Cu"), bulk("Si"), bulk("Li"), bulk("NaCl", "rocksalt", a=5.64)):
        assert kind_of(frame(solid)) == "crystal"
        assert kind_of(frame(solid * (2, 2, 1))) == "crystal"
    slab = bulk("Cu", cubic=True) * (2, 2, 2)
    slab.center(vacuum=5.0, axis=2)
    slab.pbc = (True, True, False)
    assert kind_of(frame(slab)) == "crystal"


@pytest.mark.usefixtures("without_report")
def test_frames_of_one_charge_run_with_what_was_trained_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """The potential takes the charge that its frames have, also where all have the same."""
    monkeypatch.chdir(tmp_path)
    frames = [as_atoms(frame) for frame in clusters(12)]
    for atoms in frames:
        atoms.info["charge"] = -1
    ase.io.write("ions.xyz", frames, format="extxyz")
    done = run_init(mdgraph_command, "ions.xyz")
    assert "charge:    -1 e in all frames; the total charge enters the energy" in done.out
    values = yaml.safe_load(Path("train.yaml").read_text(encoding="utf-8"))
    network = NETWORK | {"charge_factor": values["potential"]["charge_factor"]}
    small = values | SMALL | {"potential": network}
    Path("train.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")
    trained = mdgraph_command("train", "train.yaml")
    assert trained.status == 0, trained.err
    assert "takes no notice" not in trained.err
    options = "--potential", "ions-potential", "--device", "cpu"
    evaluated = mdgraph_command("eval", "ions.xyz", *options, "--out", "energies.extxyz")
    assert evaluated.status == 0, evaluated.err


def test_kind_references_and_charges_are_printed(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """Isolated atoms give references; several charges enter the energy; kinds mix."""
    alone = [
        LabelledFrame(
            np.array([number]),
            np.zeros((1, 3)),
            energy=-1.0,
            forces=np.zeros((1, 3)),
            group="isolated_atom",
        )
        for number in (8, 29)
    ]
    charged = [as_atoms(frame) for frame in clusters(20) + crystals(20) + alone]
    for number, atoms in enumerate(charged[:20]):
        atoms.info["charge"] = number % 2
    ase.io.write(tmp_path / "mixed.xyz", charged, format="extxyz")
    done = run_init(mdgraph_command, tmp_path / "mixed.xyz", "--out", tmp_path / "train.yaml")
    assert "kind:      mixed" in done.out
    assert "isolated atoms of all elements give the reference energies" in done.out
    assert "charge:    0, 1 e; the total charge enters the energy" in done.out
    settings = read_training(tmp_path / "train.yaml", {})
    assert settings.potential.charge_factor
    assert settings.batch is None
    assert settings.batch_atoms == 335
    with open_dataset(tmp_path / "mixed.h5") as dataset:
        split = read_split(tmp_path / "mixed-split.json", dataset)
        assert dataset.atoms[split.validation].min() > 1


def test_runs_start_from_several_atoms_in_angstrom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """Whatever the units of the file, the name of its charge, and what it ends with."""
    monkeypatch.chdir(tmp_path)
    frames = [as_atoms(frame) for frame in clusters(12)]
    for atoms in frames:
        atoms.positions /= 0.529177210903
        atoms.info["q"] = 1
    ase.io.write("set.xyz", [*frames, Atoms("Cu"), Atoms("O")], format="extxyz")
    options = "--length-unit", "bohr", "--charge-key", "q", "--missing", "keep"
    done = run_init(mdgraph_command, "set.xyz", *options)
    assert "mdgraph md set-start.extxyz --potential set-potential" in done.out
    start = read_system("set-start.extxyz")
    np.testing.assert_allclose(start.positions, clusters(12)[-1].positions, atol=1e-7)
    assert start.charge == 1.0


def _no_energy(folder: Path) -> list[object]:
    frames = [Atoms(frame.numbers, frame.positions) for frame in clusters(6)]
    ase.io.write(folder / "bare.xyz", frames, format="extxyz")
    return [folder / "bare.xyz"]


def _no_forces(folder: Path) -> list[object]:
    ase.io.write(
        folder / "energies.xyz",
        [as_atoms(frame, forces=None) for frame in clusters(6)],
        format="extxyz",
    )
    return [folder / "energies.xyz"]


def _one_frame(folder: Path) -> list[object]:
    return [write_frames(folder / "one.xyz", clusters(1))]


def _damaged(folder: Path) -> list[object]:
    (folder / "damaged.xyz").write_text("5\nProperties=species:S:1:pos:R:3 energy=1\nCu 0 0\n")
    return [folder / "damaged.xyz"]


def _ions(folder: Path) -> list[object]:
    frames = [Atoms("Cu4", frame.positions[:4]) for frame in clusters(12)]
    for atoms in frames:
        atoms.info["charge"] = 1
        atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((4, 3)))
    ase.io.write(folder / "ions.xyz", frames, format="extxyz")
    return [folder / "ions.xyz"]


def _sound(folder: Path) -> list[object]:
    return [write_frames(folder / "sound.xyz", clusters(12))]


@pytest.mark.parametrize(
    ("files", "options", "sentence"),
    [
        (_no_energy, [], "no energy is found"),
        (_sound, ["--kind", "liquid", "--prior", "silicon-pbe"], "silicon-pbe does not know O, Cu"),
        (
            _ions,
            ["--kind", "liquid", "--prior", "copper-pbe"],
            "copper-pbe takes no total charge, and",
        ),
        (_no_forces, [], "No frame has forces; name the label in the file with --forces-key"),
        (
            _one_frame,
            [],
            "1 of the 1 frames have two atoms or more, copies not counted; give two",
        ),
        (_damaged, [], "Cannot read"),
        (lambda folder: [folder / "nowhere.xyz"], [], "there is no such file"),
        (_sound, ["--validation", "0"], "The split leaves no frame for validation"),
        (_sound, ["--validation", "1.5"], "give a share below 1, or a whole number of frames"),
        (_sound, ["--energy-key", "E"], "has no 'E'"),
        (_sound, ["--energy-unit", "apples"], "The unit 'apples' is not known"),
        (_sound, ["--out", "train.txt"], "end it in .yaml"),
        (_sound, ["--out", "absent/train.yaml"], "Cannot write absent"),
        (_sound, ["--prior", "nowhere.ckpt"], "nowhere.ckpt"),
        (_sound, ["--kind", "gas"], "is not one of 'molecule', 'liquid', 'crystal', 'mixed'"),
        (_sound, ["--nonsense"], "No such option"),
        (lambda folder: [], [], "Missing argument"),
    ],
)
def test_wrong_input_ends_in_one_sentence_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mdgraph_command: Callable[..., Any],
    files: Callable[[Path], list[object]],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = files(tmp_path)
    before = set(tmp_path.iterdir())
    done = mdgraph_command("train", "init", *inputs, *options)
    assert done.status == 1
    assert sentence in done.err
    errors = [line for line in done.err.splitlines() if line.startswith("mdgraph: error")]
    assert len(errors) == 1
    assert set(tmp_path.iterdir()) == before


def test_names_from_a_file_stay_within_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """A group's name may hold what YAML takes for the end of a line."""
    monkeypatch.chdir(tmp_path)
    arrays = {
        "numbers": np.array([29, 29]),
        "positions": np.cumsum(np.full((20, 2, 3), 1.5), axis=1)
        * np.linspace(1, 1.2, 20)[:, None, None],
        "energy": np.linspace(0, 1, 20),
        "forces": np.zeros((20, 2, 3)),
        "group": np.array(["a\x85seed: 7", "b\u2028seed: 8"] * 10),
    }
    np.savez("set.npz", **arrays)
    done = run_init(mdgraph_command, "set.npz", "--group-key", "group")
    assert "mdgraph md set-start.extxyz --potential set-potential" in done.out
    assert read_training(Path("train.yaml"), {}).seed == 0
    assert Path("train.yaml").read_text().count("seed: 7") == 2  # in comments


def test_existing_files_are_replaced_only_with_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_frames(Path("set.xyz"), clusters(12))
    for existing in ("train.yaml", "set.h5", "set-split.json", "set-start.extxyz"):
        Path(existing).write_text("mine")
        done = mdgraph_command("train", "init", path)
        assert done.status == 1
        assert f"{existing} exists already; replace it with --overwrite" in done.err
        assert {file.name for file in Path().iterdir()} == {"set.xyz", existing}
        Path(existing).unlink()
    run_init(mdgraph_command, path)
    first = Path("train.yaml").read_bytes()
    Path("train.yaml").write_text("mine")
    run_init(mdgraph_command, path, "--overwrite")
    assert Path("train.yaml").read_bytes() == first
    path = path.rename("set.h5")
    done = mdgraph_command("train", "init", path, "--overwrite")
    assert "set.h5 holds the frames, and the data set would replace it" in done.err


def test_a_file_of_the_name_init_is_trained_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("init").write_text("data: nowhere.h5\nout: out\nsteps: 1\n")
    done = mdgraph_command("train", "./init")
    assert "Cannot read nowhere.h5" in done.err
    help_text = mdgraph_command("train", "init", "--help").out
    assert "FRAMES" in help_text
    assert "--energy-key" in help_text
    assert "init" in mdgraph_command("train", "--help").out


@pytest.mark.parametrize(
    ("name", "kind", "batch", "steps"),
    [
        ("zuo2020/Ge_train.xyz.gz", "crystal", 4, 4700),
        ("3bpa/train_300K.xyz", "molecule", 8, 25000),
        ("water_pbe0/train.extxyz.gz", "liquid", 4, 10000),
    ],
)
def test_published_sets_get_the_recipe_of_the_shipped_potentials(
    tmp_path: Path,
    datasets_folder: Path,
    mdgraph_command: Callable[..., Any],
    name: str,
    kind: str,
    batch: int,
    steps: int,
) -> None:
    """And nothing is wrong with data and split."""
    path = tmp_path / "train.yaml"
    done = run_init(mdgraph_command, datasets_folder / name, "--out", path)
    assert f"kind:      {kind}" in done.out
    settings = read_training(path, {})
    assert (settings.batch, settings.steps) == (batch, steps)
    assert settings.loss.energy.weight == (20, 20)
    check = mdgraph_command("data", "check", settings.data, "--split", settings.split)
    assert check.status == 0, check.out
