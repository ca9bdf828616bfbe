"""A student is trained on what its teacher says of frames that it sampled."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from random_networks import TENSORNET, TENSORNET2, network, random_network
from training_sets import NETWORK, assert_same, clusters, prepare, settings

from mdgraph import load
from mdgraph.checkpoints import load_domain, save
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.data import open_dataset, read_split
from mdgraph.distil.config import SamplingConfig
from mdgraph.distil.pipeline import _too_few
from mdgraph.distil.sampling import Labelling, Sample, labelled, sampled
from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.structures import from_ase, read_system
from mdgraph.models import TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import precision_named
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.train.loop import train

pytestmark = pytest.mark.usefixtures("without_report")

SAMPLING = {
    "frames": 24,
    "trajectories": 2,
    "temperatures": [100, 300],
    "interval": 5,
    "timestep": 1.0,
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with set.h5, split.json and a short training of it in out."""
    folder = tmp_path_factory.mktemp("teacher")
    train(settings(prepare(folder, clusters(16), steps=30)), quiet=True)
    return folder


def write(folder: Path, source: Path, **changes: Any) -> Path:
    values = {
        "data": str(source / "set.h5"),
        "split": str(source / "split.json"),
        "teacher": str(source / "out"),
        "out": str(folder / "small"),
        "potential": NETWORK | {"channels": 8},
        "sampling": SAMPLING,
        "batch": 4,
        "steps": 10,
        "validations": 2,
        "learning_rate": 5e-3,
        "device": "cpu",
    } | changes
    path = folder / "distil.yaml"
    kept = {name: value for name, value in values.items() if value is not None}
    path.write_text(yaml.safe_dump(kept), encoding="utf-8")
    return path


Command = Callable[..., Any]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty report tells that a training ended."""
    monkeypatch.setattr(
        "mdgraph.train.report.write_report", lambda path, *rest: path.write_text("")
    )


@pytest.mark.usefixtures("reports")
def test_two_rounds_give_a_potential_with_the_teachers_labels(
    tmp_path: Path, teacher: Path, mdgraph_command: Command
) -> None:
    done = mdgraph_command("distil", write(tmp_path, teacher, earlier_steps=2))
    assert done.status == 0, done.err
    folder = tmp_path / "small"
    student = load(folder)
    assert isinstance(student, TensorNetPotential)
    assert (student.config.channels, student.config.name) == (8, "small")
    assert load_domain(folder) is not None
    metrics = json.loads((folder / "metrics.json").read_text())
    first = json.loads((folder / "round-1" / "student" / "metrics.json").read_text())
    assert (first["steps"], metrics["steps"]) == (2, 10)
    told = metrics["distilled"]
    assert told["teachers"][0]["sha256"] == potential_sha256(teacher / "out")
    assert len(told["rounds"]) == 2
    card = (folder / "card.md").read_text()
    assert f"sha256 {potential_sha256(teacher / 'out')[:12]}" in card
    assert "sha256 )" not in card
    with open_dataset(folder / "round-2" / "set.h5") as dataset:
        split = read_split(folder / "round-2" / "split.json", dataset)
        sampled = np.flatnonzero(dataset.source == 1)
        assert len(sampled) == sum(sum(one["frames"].values()) for one in told["rounds"])
        for number in (sampled[0], sampled[-1]):
            frame = dataset.frame(int(number))
            system = System(frame.numbers, frame.positions)
            at = Calculation([system], teacher / "out", device="cpu")
            at.compute()
            assert frame.energy == pytest.approx(float(at.state.energy[0]), abs=1e-6)
            np.testing.assert_allclose(frame.forces, at.state.forces.numpy(), atol=1e-6)
        held_out = set(split.validation.tolist()) & set(sampled.tolist())
        assert len(held_out) == sum(one["held_out"] for one in told["rounds"])
        assert not set(split.train.tolist()) & set(split.validation.tolist())


@pytest.mark.usefixtures("reports")
def test_training_frames_of_the_data_stand_several_times_in_a_set(
    tmp_path: Path, teacher: Path, mdgraph_command: Command
) -> None:
    path = write(tmp_path, teacher, label_copies=3, label_weight=2.0, steps=2, rounds=1)
    assert mdgraph_command("distil", path).status == 0
    folder = tmp_path / "small" / "round-1"
    with open_dataset(teacher / "set.h5") as data, open_dataset(folder / "set.h5") as dataset:
        own = read_split(teacher / "split.json", data)
        split = read_split(folder / "split.json", dataset)
        copies = np.flatnonzero(dataset.source == 1).tolist()
        assert [source.file for source in dataset.sources[1:]] == ["copies", "sampled"]
        assert len(copies) == 2 * len(own.train)
        assert set(copies) <= set(split.train.tolist())
        assert set(own.validation.tolist()) <= set(split.validation.tolist())
        for number, source in zip(copies, np.repeat(own.train, 2).tolist(), strict=True):
            frame, origin = dataset.frame(number), data.frame(source)
            assert (frame.energy, frame.weight) == (origin.energy, 2.0 * origin.weight)
            np.testing.assert_array_equal(frame.positions, origin.positions)


@pytest.mark.usefixtures("reports")
def test_dynamics_start_from_structures_alone_where_that_is_asked(
    tmp_path: Path, teacher: Path, mdgraph_command: Command
) -> None:
    """A structure with an atom less than the data tells them apart; the data are trained on."""
    frame = clusters(1)[0]
    ase.io.write(tmp_path / "start.xyz", Atoms(frame.numbers, frame.positions)[:-1])
    for starts, from_data in (("all", True), ("structures", False)):
        sampling = SAMPLING | {"starts": starts}
        options = {"structures": [str(tmp_path / "start.xyz")], "sampling": sampling, "rounds": 1}
        path = write(tmp_path, teacher, steps=2, out=str(tmp_path / starts), **options)
        done = mdgraph_command("distil", path)
        assert done.status == 0, done.err
        with (
            open_dataset(teacher / "set.h5") as data,
            open_dataset(tmp_path / starts / "round-1" / "set.h5") as dataset,
        ):
            split = read_split(tmp_path / starts / "round-1" / "split.json", dataset)
            sampled = np.flatnonzero(dataset.source == 1)
            sizes = set(dataset.atoms[sampled].tolist())
            assert (len(frame.numbers) in sizes) == from_data
            own = read_split(teacher / "split.json", data)
            assert set(own.train.tolist()) <= set(split.train.tolist())


@pytest.mark.usefixtures("reports")
def test_it_goes_on_where_it_was_stopped(
    tmp_path: Path, teacher: Path, mdgraph_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    path = write(tmp_path, teacher)
    assert mdgraph_command("distil", path, "--out", once).status == 0
    with monkeypatch.context() as broken:
        broken.setattr("mdgraph.distil.pipeline.labelled", interrupted)
        done = mdgraph_command("distil", path, "--out", twice)
        assert done.status == 130
        assert f"mdgraph distil {twice / 'distil.yaml'} --resume" in done.err
    with monkeypatch.context() as broken:
        broken.setattr("mdgraph.train.report.write_potential", interrupted)
        broken.setattr("mdgraph.train.loop.write_potential", interrupted)
        assert mdgraph_command("distil", twice / "distil.yaml", "--resume").status == 130
    done = mdgraph_command("distil", twice / "distil.yaml", "--resume")
    assert done.status == 0, done.err
    assert_same(once, twice)
    done = mdgraph_command("distil", path, "--out", twice)
    assert done.status == 1
    assert "holds files already; continue with --resume" in done.err
    changed = write(tmp_path, teacher, rounds=3)
    done = mdgraph_command("distil", changed, "--out", twice, "--resume")
    assert done.status == 1
    assert "has other settings" in done.err


def interrupted(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None, "split": None}, "nothing says where dynamics start"),
        ({"sampling": {"starts": "structures"}}, "sampling.starts is structures, and none are"),
        ({"teacher": None}, "teacher is missing"),
        ({"teacher": "nowhere"}, "There is no file or folder 'nowhere'"),
        ({"baseline": "x"}, "a student replaces its teacher"),
        ({"rounds": 0}, "rounds is 0"),
        ({"sampling": {"frame": 3}}, "unknown key frame; did you mean frames?"),
        ({"sampling": {"temperatures": [-5]}}, "sampling.temperatures"),
        ({"sampling": {"temperatures": []}}, "is []; it should have at least 1 in its list."),
        ({"sampling": SAMPLING | {"largest_force": 1e-6}}, "No frame got a label"),
    ],
)
def test_bad_options_end_in_a_sentence(
    tmp_path: Path,
    teacher: Path,
    mdgraph_command: Command,
    changes: dict[str, Any],
    message: str,
) -> None:
    done = mdgraph_command("distil", write(tmp_path, teacher, **changes))
    assert done.status == 1, done.err
    assert message in done.err.replace("\n", " ")
    assert "Traceback" not in done.err
    assert not (tmp_path / "small").exists()


def test_structures_that_teacher_or_student_cannot_take_are_refused_at_once(
    tmp_path: Path, mdgraph_command: Command
) -> None:
    """Not after a round, whose dynamics would all end early, nor with another reason."""
    ion = Atoms("OH3", [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], info={"charge": 1})
    ase.io.write(tmp_path / "ion.extxyz", ion)
    ion.info.pop("charge")
    ion.set_cell(3 * [9.0])
    ion.pbc = True
    ase.io.write(tmp_path / "box.extxyz", ion)
    for name, network_settings in {
        "neutral": TENSORNET,
        "charged": TENSORNET | {"charge_factor": True},
        "all-pairs": TENSORNET2 | {"coulomb": {}},
    }.items():
        save(random_network(1.0, network_settings), tmp_path / f"{name}.safetensors")
    refused = {
        (
            "neutral",
            "ion",
        ): "teacher: neutral takes no total charge, and 1 of 1 structures have one; choose",
        (
            "charged",
            "ion",
        ): "The student takes no total charge, and 1 of 1 structures have one; take charge_",
        ("all-pairs", "box"): "teacher: all-pairs's Coulomb energy runs over all pairs, which have "
        "no end in a periodic system; give a file with a reaction field, which 'mdgraph convert",
    }
    for (teacher_name, structure), message in refused.items():
        alone = {"data": None, "split": None, "structures": str(tmp_path / f"{structure}.extxyz")}
        of_teacher = {"teacher": str(tmp_path / f"{teacher_name}.safetensors")}
        done = mdgraph_command("distil", write(tmp_path, tmp_path, **alone, **of_teacher))
        assert done.status == 1
        assert message in done.err.replace("\n", " ")
        assert "Round 1" not in done.err
        assert not (tmp_path / "small").exists()


def test_a_student_that_leads_nowhere_is_told_as_the_reason() -> None:
    """Limits and temperatures are those of the round before, which had labels."""
    frames = clusters(2)
    assert "No frame got a label; lower" in _too_few(Labelling([], 0), 1)
    assert "the student of round 1, which is too far" in _too_few(Labelling([], 0), 2)
    assert "All 2 frames that got a label would be held out" in _too_few(Labelling(frames, 0), 1)
    assert "All 2 frames that got a label would be trained on" in _too_few(Labelling(frames, 2), 1)


def test_an_element_that_the_teacher_lacks_is_named(
    tmp_path: Path, teacher: Path, mdgraph_command: Command
) -> None:
    lone = tmp_path / "lone.safetensors"
    save(network(species=(29,), channels=4, layers=1, cutoff=4.0), lone)
    done = mdgraph_command("distil", write(tmp_path, teacher, teacher=str(lone)))
    assert done.status == 1
    assert "lone does not know O, which structures or data hold" in done.err


def test_frames_on_which_teachers_disagree_get_no_label(teacher: Path) -> None:
    potential = load(teacher / "out").at_precision(torch.float64)
    other = load(teacher / "out").at_precision(torch.float64)
    other.references.add_(0.1)  # by 0.5 eV for five atoms
    systems = [System(frame.numbers, frame.positions) for frame in clusters(4)]
    samples = [Sample(system, "300 K", False) for system in systems]
    device = torch.device("cpu")
    config = SamplingConfig(largest_energy=10.0)
    both = [AutogradEvaluator(potential), AutogradEvaluator(other)]
    result = labelled(samples, both, None, config, device)
    assert (len(result.frames), result.unlabelled) == (0, 4)
    generous = config.model_copy(update={"disagreement": 0.6})
    result = labelled(samples, both, None, generous, device)
    assert result.training == 4
    lower = labelled(samples, both[:1], None, config, device)
    for frame, own in zip(result.frames, lower.frames, strict=True):
        assert frame.energy == pytest.approx(own.energy + 0.25, abs=1e-8)


def test_a_hole_of_one_teacher_makes_no_other_frame_extreme(teacher: Path) -> None:
    potential = load(teacher / "out").at_precision(torch.float64)
    systems = [System(frame.numbers, frame.positions) for frame in clusters(4)]
    samples = [Sample(system, "300 K", False) for system in systems]

    class Hole(AutogradEvaluator):
        """Lies 50 eV too low at the first structure."""

        def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
            super().evaluate_(state, lists)
            first = torch.tensor(systems[0].positions, device=state.device)
            near = (state.positions[: len(first)] - first).abs().max() < 1e-6
            state.energy[0] -= 50.0 * near

    device = torch.device("cpu")
    config = SamplingConfig(largest_energy=3.0)
    both = [Hole(potential), AutogradEvaluator(potential)]
    result = labelled(samples, both, None, config, device)
    assert (len(result.frames), result.unlabelled, result.extreme) == (3, 1, 0)


def test_limits_hold_for_the_frame_itself_where_sizes_are_mixed(teacher: Path) -> None:
    """Batches order frames by size; a larger frame before a smaller one keeps its own energy."""
    potential = load(teacher / "out").at_precision(torch.float64)
    potential.references.sub_(100.0)
    small = [System(frame.numbers, frame.positions) for frame in clusters(4)]
    numbers = np.tile(small[0].numbers, 2)
    far = np.array([50.0, 0.0, 0.0])
    large = [
        System(numbers, np.vstack([system.positions, system.positions + far]))
        for system in small[:2]
    ]
    samples = [Sample(system, "300 K", False) for system in [*large, *small]]
    config = SamplingConfig(largest_energy=3.0, largest_force=1e3)
    result = labelled(samples, [AutogradEvaluator(potential)], None, config, torch.device("cpu"))
    assert (len(result.frames), result.extreme) == (6, 0)
    assert [len(frame.numbers) for frame in result.frames] == [len(s.system) for s in samples]


def test_frames_whose_atoms_or_images_touch_are_left_out(teacher: Path) -> None:
    """Where a teacher's forces are small all the same; one frame's atom touches its own image."""
    potential = load(teacher / "out").at_precision(torch.float64)
    systems = [System(frame.numbers, frame.positions) for frame in clusters(3)]
    touching = systems[0].positions.copy()
    touching[1] = touching[0] + [0.0, 0.0, 0.3]
    systems[1] = systems[1].replace(positions=touching)
    systems[2] = systems[2].replace(cell=np.diag([20.0, 20.0, 0.5]), pbc=[False, False, True])
    samples = [Sample(system, "300 K", False) for system in systems]
    limits = {"largest_energy": 1e4, "largest_force": 1e6}
    config = SamplingConfig(**limits)
    evaluators = [AutogradEvaluator(potential)]
    result = labelled(samples, evaluators, None, config, torch.device("cpu"))
    assert (len(result.frames), result.extreme) == (1, 2)
    np.testing.assert_array_equal(result.frames[0].positions, systems[0].positions)
    without = SamplingConfig(**limits, shortest_distance=0.0)
    result = labelled(samples, evaluators, None, without, torch.device("cpu"))
    assert (len(result.frames), result.extreme) == (3, 0)


def test_relaxed_frames_lie_lower_for_the_potential_that_drives(
    teacher: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One and the same moves, relaxed and not."""
    evaluator = AutogradEvaluator(load(teacher / "out").at_precision(torch.float64))
    starts = [System(frame.numbers, frame.positions) for frame in clusters(2)]
    device = torch.device("cpu")
    means = []
    for share in (0.0, 1.0):
        config = SamplingConfig(
            frames=24, temperatures=(100.0,), trajectories=2, interval=2, moved=0.5, relaxed=share
        )
        moved = sampled(starts, evaluator, config, device, 1)[12:]
        assert len(moved) == 12
        kinds = {sample.kind for sample in moved}
        assert (kinds == {"relaxed"}) == (share == 1.0)
        batches = Batches(evaluator, device, precision_named("double"))
        own = [sample.system for sample in moved]
        result = dict(batches.evaluate(own, ["moved"] * len(own)))
        means.append(np.mean([result[place].energy / len(own[place]) for place in range(len(own))]))
    assert means[1] < means[0]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_drawn_frames_come_beside_all_others(tiny_potential: Path, water_file: Path) -> None:
    evaluator = AutogradEvaluator(load(tiny_potential).at_precision(torch.float64))
    starts = [read_system(water_file)]
    options = {"temperatures": (100.0,), "trajectories": 2, "interval": 2, "relaxed": 0.0}
    rows = [
        sampled(starts, evaluator, SamplingConfig(**options, **more), torch.device("cpu"), 1)
        for more in ({"frames": 24, "moved": 0.5}, {"frames": 36, "moved": 1 / 3, "drawn": 1 / 3})
    ]
    assert len(rows[0]) == 24
    assert 30 <= len(rows[1]) <= 36  # where no hydrogen can be drawn there is no frame
    for one, other in zip(*rows, strict=False):
        assert one.kind == other.kind
        np.testing.assert_array_equal(one.system.positions, other.system.positions)
    assert {sample.kind for sample in rows[1][24:]} == {"drawn"}
    with pytest.raises(ValueError, match="leave no frame of dynamics"):
        SamplingConfig(moved=0.5, drawn=0.5)


def test_near_copies_are_dropped(teacher: Path) -> None:
    from ase.build import molecule

    potential = load(teacher / "out")
    rng = np.random.default_rng(1)
    systems = [System(frame.numbers, frame.positions) for frame in clusters(6)]
    near = [s.replace(positions=s.positions + rng.normal(scale=1e-4, size=(5, 3))) for s in systems]
    samples = [Sample(system, "", False) for system in (*systems, *near)]
    evaluators = [AutogradEvaluator(potential.at_precision(torch.float64))]
    config = SamplingConfig(largest_energy=10.0)
    result = labelled(samples, evaluators, potential, config, torch.device("cpu"))
    assert result.copies == 6
    assert len(result.frames) == 6
    assert len(from_ase(molecule("H2O"))) == 3
