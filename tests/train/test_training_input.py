"""Configurations, data and folders that do not fit are refused in one sentence."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.emt import EMT
from training_sets import NETWORK, clusters, crystals, prepare, settings

from mdgraph.data import Split, open_dataset
from mdgraph.data.splits import write_split
from mdgraph.errors import InputError
from mdgraph.runs.training import read_training
from mdgraph.train.loop import train
from mdgraph.train.progress import training_hash

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rat": 1e-3}, r"line \d+: unknown key learning_rat; .*learning_rate"),
        ({"channels": 8}, r"unknown key channels; it belongs beneath potential\."),
        ({"chanels": 8}, "unknown key chanels; did you mean channels, .* beneath potential"),
        ({"hidden": [8]}, r"unknown key hidden; it belongs beneath potential\.readout\."),
        ({"loss": {"batch": 8}}, "unknown key batch; it belongs to the file, beneath no key"),
        ({"potential": {"chanels": 8}}, "unknown key chanels; .*channels"),
        ({"potential": {"repulsion": [{"kin": "zbl"}]}}, "unknown key kin; .*kind"),
        (
            {"potential": {"repulsion": [{"kind": "torchmdnet_network", "cutoff": 3.0}]}},
            "come with a checkpoint alone; take matgl or torchmdnet_prior",
        ),
        ({"loss": {"energy": {"weigth": 1}}}, "unknown key weigth; .*weight"),
        ({"loss": {"energy": {"weight": -1}}}, r"loss\.energy\.weight"),
        (
            {"loss": {"perturbation": {"weight": "1:2:3"}}},
            "is '1:2:3'; give a number, or start:end",
        ),
        ({"loss": {"energy": 3}}, r"loss\.energy is 3; write its options .* loss\.energy: \{KEY"),
        ({"references": "lsq"}, r"references is 'lsq'; it should be 'auto', 'least-squares'"),
        ({"epochs": 3}, "give one"),
        ({"batch_edges": 900}, "batch and batch_edges both give the size of a step; give one"),
        ({"batch_edgs": 900}, "unknown key batch_edgs; .*batch_edges"),
        ({"batch": None, "batch_edges": 0}, "batch_edges is 0"),
        ({"data": None}, "data is missing"),
        ({"start_from": "water-pbe0"}, "leave potential out"),
        (
            {"start_from": "water-pbe0", "potential": None, "initialization": "torch"},
            "start_from brings its own weights; leave initialization out",
        ),
        ({"freeze": ["embeding"]}, "no weight begins with 'embeding'"),
        ({"device": "abacus"}, "Unknown device .abacus."),
        ({"precision": "bf16"}, "precision is 'bf16'; it should be 'mixed', 'tf32' or 'double'"),
        ({"loss": {"elements": {"Xx": 1.0}}}, "Xx is not an element"),
        ({"potential": {"architecture": "tensornet2"}}, "tensornet2 needs charge_channels"),
        (
            {"loss": {"energy": {"weight": 0}, "forces": {"weight": 0}}},
            "all weights of the loss are 0, so that nothing is fitted",
        ),
        ({"potential": {"channels": 10**5}}, r"potential\.channels is 100000"),
        ({"potential": {"cutoff": 1e6}}, r"potential\.cutoff is 1000000\.0"),
        ({"potential": {"layers": 10**6}}, r"potential\.layers is 1000000"),
        ({"learning_rate": 1e10}, "learning_rate is 10000000000.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"batch": 10**12}, "batch is 1000000000000"),
        ({"also_log": "wandb"}, r"also_log is 'wandb'; it should be a list, such as \[a, b\]"),
        ({"loss": {"elements": {"Xe": 2.0}}}, "loss.elements weighs Xe, and no frame has such"),
        ({"seed": -1}, "seed is -1"),
        (
            {"potential": {"channels": 4096, "layers": 64}},
            r"A network of [\d,]+ parameters would take about .* GB of memory.* fewer channels",
        ),
    ],
)
def test_wrong_configurations_end_in_one_sentence(
    tmp_path: Path, mdgraph_command: Callable[..., Any], changes: dict[str, Any], said: str
) -> None:
    prepare(tmp_path, clusters(8))
    path = prepare(tmp_path, [], **changes)
    done = mdgraph_command("train", path)
    assert done.status == 1
    assert done.err.count("\n") <= 3
    assert re.search(said, done.err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("bare", "loss", "said"),
    [
        ("none", {"stress": {"weight": 1.0}}, "loss.stress: no training frame with a cell has a"),
        ("all", {}, "No training frame has a label of what the loss asks for"),
        ("validation", {}, "No validation frame has a label of what the loss asks for"),
    ],
)
def test_losses_without_labels_are_refused(
    tmp_path: Path, bare: str, loss: dict[str, Any], said: str
) -> None:
    """Nothing would be learned, or the first validation would look as good as any."""
    frames = [replace(one, stress=np.zeros((3, 3))) for one in clusters(8)]
    held = {"none": [], "all": range(8), "validation": [2, 5]}[bare]
    for number in held:
        frames[number] = replace(frames[number], energy=np.nan, forces=None)
    path = prepare(tmp_path, frames, loss=loss)
    with open_dataset(tmp_path / "set.h5") as dataset:
        parts = np.setdiff1d(np.arange(8), [2, 5]), np.array([2, 5]), np.zeros(0, dtype=np.int64)
        write_split(
            Split(*parts, "by hand", dataset.sha256()), tmp_path / "split.json", overwrite=True
        )
    with pytest.raises(InputError, match=said):
        train(settings(path), quiet=True)


def test_charges_of_periodic_frames_need_a_cutoff(tmp_path: Path) -> None:
    network = NETWORK | {"architecture": "tensornet2", "charge_channels": 2, "coulomb": {}}
    said = r"give a cutoff, as in potential\.coulomb: {cutoff: 10}"
    with pytest.raises(InputError, match=said):
        train(settings(prepare(tmp_path, crystals(8), potential=network)), quiet=True)


def test_perturbed_frames_need_energies(tmp_path: Path) -> None:
    frames = [replace(one, energy=np.nan) for one in clusters(8)]
    path = prepare(tmp_path, frames, loss={"perturbation": {"weight": 0.3}})
    with pytest.raises(InputError, match="has an energy, and frames count by its weight"):
        train(settings(path), quiet=True)


def test_a_set_without_forces_and_a_training_without_success_are_said_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [replace(one, forces=None) for one in clusters(8)]
    train(settings(prepare(tmp_path, frames, steps=1)), quiet=True)
    assert "No training frame has forces, so loss.forces counts for nothing" in caplog.text
    assert "nothing was learned" not in caplog.text  # of forces nobody knows
    for name in ("set.h5", "split.json"):
        (tmp_path / name).unlink()
    path = prepare(tmp_path, clusters(8), steps=1, learning_rate=1e-12, out=str(tmp_path / "b"))
    train(settings(path), quiet=True)
    assert "Forces on validation are off by" in caplog.text
    assert "nothing was learned" in caplog.text


@pytest.mark.parametrize(("factor", "warned"), [(1.0, False), (3.0, True)])
def test_frames_without_neighbors_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, factor: float, warned: bool
) -> None:
    """As where bohr or pm were taken for A; isolated atoms have none and need none."""
    frames = [replace(one, positions=factor * one.positions) for one in clusters(8)]
    alone = replace(frames[0], numbers=np.array([29]), positions=np.zeros((1, 3)), forces=None)
    frames += [replace(alone, force_weights=None, energy=-1.0)] * 200
    path = prepare(tmp_path, frames, steps=1, references={"Cu": -1.0, "O": -1.0})
    train(settings(path), quiet=True)
    said = "0 have a neighbor within 4 A, so there is next to nothing to learn; take a larger cut"
    assert (said in caplog.text) is warned


@pytest.mark.parametrize("charged_network", [False, True])
def test_charges_that_the_network_does_not_know_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, charged_network: bool
) -> None:
    """What is trained so refuses the frames that it was trained on."""
    frames = [replace(one, charge=float(number % 2)) for number, one in enumerate(clusters(8))]
    network = NETWORK | {"charge_factor": charged_network}
    train(settings(prepare(tmp_path, frames, steps=1, potential=network)), quiet=True)
    said = "4 frames have a total charge (1 e), of which the network takes no notice"
    assert (said in caplog.text) is not charged_network


def test_data_that_do_not_fit_are_refused(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    path = prepare(tmp_path, clusters(8))
    assert mdgraph_command("train", path).status == 0
    assert "holds files already" in mdgraph_command("train", path).err
    ase.io.write(tmp_path / "more.xyz", _labelled_cluster(), format="extxyz")
    more = tmp_path / "more.xyz", tmp_path / "set.h5", "--append"
    assert mdgraph_command("data", "convert", *more).status == 0
    done = mdgraph_command("train", prepare(tmp_path, [], out=str(tmp_path / "late")))
    assert "changed since the split was made; make the split again" in done.err
    done = mdgraph_command("train", path, "--resume")
    assert "made; put back what it was, or start anew in another folder" in done.err
    done = mdgraph_command("train", path, "--out", tmp_path / "never", "--resume")
    assert done.status == 1


def test_a_start_that_fails_leaves_nothing(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """So the command works once it is corrected; a file that was there before stays."""
    path = prepare(tmp_path, clusters(8), steps=1)
    out = tmp_path / "out"
    for wrong in ({"data": "nowhere.h5"}, {"loss": {"stress": {"weight": 1}}}, {"freeze": ["no"]}):
        done = mdgraph_command("train", prepare(tmp_path, [], steps=1, **wrong))
        assert done.status == 1
        assert not out.exists()
    prepare(tmp_path, [], steps=1)
    out.mkdir()
    own = path.rename(out / "train.yaml")
    held = own.read_text()
    own.write_text(held.replace(f"{tmp_path}/set.h5", "nowhere.h5"))
    assert mdgraph_command("train", own).status == 1
    assert [one.name for one in out.iterdir()] == ["train.yaml"]
    own.write_text(held)
    assert mdgraph_command("train", own).status == 0


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_a_folder_that_a_killed_start_left_is_begun_again(
    tmp_path: Path, mdgraph_command: Callable[..., Any], options: list[str]
) -> None:
    """By the same command, and by the one that goes on."""
    path = prepare(tmp_path, clusters(8), steps=1)
    assert mdgraph_command("train", path).status == 0
    for one in (tmp_path / "out").iterdir():
        if one.name not in ("train.yaml", "split.json"):
            one.unlink()
    (tmp_path / "out" / ".split.mdgraph-00000000.json").write_text("{")
    done = mdgraph_command("train", path, *options)
    assert done.status == 0, done.err
    names = {one.name for one in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "report.html", "metrics.json"} < names
    assert not [name for name in names if name.startswith(".")]


def test_a_split_of_ones_own_is_not_replaced(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    path = prepare(tmp_path, clusters(8), steps=1)
    assert mdgraph_command("train", path).status == 0
    for one in (tmp_path / "out").iterdir():
        if one.name != "train.yaml":
            one.unlink()
    own = tmp_path / "out" / "split.json"
    own.write_text((tmp_path / "split.json").read_text().replace("[", "[7, ", 1))
    before = own.read_bytes()
    done = mdgraph_command("train", path)
    assert done.status == 1
    assert "split" in done.err
    assert own.read_bytes() == before


def test_moves_are_short_beside_the_cutoff(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """Lists do not follow them."""
    loss = {"perturbation": {"weight": 0.3, "max_displacement": 2.5}}
    done = mdgraph_command("train", prepare(tmp_path, clusters(8), loss=loss))
    assert done.status == 1
    assert (
        "perturbation.max_displacement is 2.5 A, and pairs are those within the cutoff of 4 A"
        in done.err
    )


def test_a_folder_that_says_otherwise_is_refused(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """What lies beside a potential is what it was made with."""
    path = prepare(tmp_path, clusters(8), steps=2)
    own = tmp_path / "out" / "train.yaml"
    own.parent.mkdir()
    own.write_text("# by hand\n" + path.read_text())
    done = mdgraph_command("train", path, "--seed", 5)
    assert (done.status, "has other settings" in done.err) == (1, True)
    assert mdgraph_command("train", own).status == 0
    assert own.read_text().startswith("# by hand")


def _labelled_cluster() -> Atoms:
    atoms = Atoms("Cu2", [[0, 0, 0], [2.3, 0, 0]], calculator=EMT())
    atoms.get_forces()
    return atoms


_FIRST_NAMES = {"displaced": {"weight": 0.3, "largest": 0.8, "depth": 3.0}}


def test_first_names_of_the_perturbation_are_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepare(tmp_path, clusters(8), loss=_FIRST_NAMES)
    config = read_training(path, {})
    perturbation = config.loss.perturbation
    assert (perturbation.max_displacement, perturbation.well_depth) == (0.8, 3.0)
    warnings = [record.message.partition(": ")[2] for record in caplog.records]
    assert sorted(warnings) == [
        f"{old} is now {new}; the old name goes with release 0.3.0."
        for old, new in (
            ("depth", "well_depth"),
            ("displaced", "perturbation"),
            ("largest", "max_displacement"),
        )
    ]
    caplog.clear()
    assert read_training(path, {}, stored=True) == config
    assert not caplog.records


def test_a_training_has_the_same_hash_by_its_first_names(tmp_path: Path) -> None:
    """So that one that an earlier release began goes on."""
    path = prepare(tmp_path, clusters(8), loss=_FIRST_NAMES)
    config = read_training(path, {})
    text = config.model_dump_json(exclude_defaults=True, by_alias=True, include={"loss"})
    assert json.loads(text) == {
        "loss": {"displaced": {"weight": [0.3, 0.3], "largest": 0.8, "depth": 3.0}}
    }
    new = {"weight": 0.3, "max_displacement": 0.8, "well_depth": 3.0}
    (tmp_path / "new").mkdir()
    other = read_training(prepare(tmp_path / "new", clusters(8), loss={"perturbation": new}), {})
    with open_dataset(tmp_path / "set.h5") as dataset:
        assert training_hash(config, dataset) == training_hash(other, dataset)


def test_both_names_of_a_key_are_refused(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(8), loss=_FIRST_NAMES | {"perturbation": {"weight": 1}})
    with pytest.raises(InputError, match="displaced is the old name of perturbation; give"):
        read_training(path, {})
