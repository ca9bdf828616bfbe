"""Training on what a baseline leaves: the labels, the sum that is written, and bad baselines."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_networks import TENSORNET2, network
from training_sets import assert_same, clusters, crystals, prepare, settings, weights_of

from mdgraph import load
from mdgraph.checkpoints import load_domain, save
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.data import LabelledFrame, open_dataset
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.models import SumPotential, with_terms
from mdgraph.models.terms import term
from mdgraph.runs.training import read_training
from mdgraph.system import System
from mdgraph.train.baseline import DIFFERENCE_FILE, _ForceComparison, _Result, read_baseline
from mdgraph.train.loop import Training, train

pytestmark = pytest.mark.usefixtures("without_report")

FRAMES = [*clusters(12), *crystals(4)]


def evaluated(potential: Any, frame: LabelledFrame) -> Calculation:
    system = System(frame.numbers, frame.positions, frame.cell, frame.pbc)
    at = Calculation([system], potential, device="cpu", precision="mixed")
    at.compute()
    return at


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A potential that was trained for a short time on the same frames."""
    folder = tmp_path_factory.mktemp("baseline")
    train(settings(prepare(folder, FRAMES, steps=20)), quiet=True)
    return folder / "out"


@pytest.fixture
def configuration(tmp_path: Path, baseline: Path) -> Path:
    return prepare(tmp_path, FRAMES, baseline=str(baseline))


def test_differences_are_labels_less_the_baseline(configuration: Path, baseline: Path) -> None:
    training = Training(settings(configuration), resume=False, quiet=True)
    differences, labels = training._prepared.dataset, training._prepared.labels
    assert differences.path.name == DIFFERENCE_FILE
    assert len(differences) == len(labels) == 16
    assert differences.groups == labels.groups
    assert potential_sha256(baseline)[:12] in differences.sources[0].importer
    for number in (0, 1, 12, 15):
        frame, left = labels.frame(number), differences.frame(number)
        state = evaluated(baseline, frame).state
        assert frame.forces is not None
        assert left.forces is not None
        assert left.energy == pytest.approx(frame.energy - float(state.energy), abs=1e-6)
        np.testing.assert_allclose(left.forces, frame.forces - state.forces.numpy(), atol=1e-6)
        np.testing.assert_array_equal(left.positions, frame.positions)
        if frame.pbc.any():
            assert frame.stress is not None
            assert left.stress is not None
            volume = abs(np.linalg.det(frame.cell))
            expected = frame.stress + state.virial[0].numpy() / volume
            np.testing.assert_allclose(left.stress, expected, atol=1e-7)


def test_the_sum_is_written_and_has_the_errors_that_are_told(
    configuration: Path, baseline: Path
) -> None:
    metrics = train(settings(configuration, steps=40), quiet=True).metrics
    folder = configuration.parent / "out"
    whole = load(folder)
    assert isinstance(whole, SumPotential)
    assert whole.term_names() == ["out", "difference"]
    assert (
        whole.config.terms[0].sha256
        == potential_sha256(baseline)
        == metrics["baseline"][0]["sha256"]
    )
    assert whole.config.learned == 1
    kept = load(baseline).state_dict()
    assert all(
        torch.equal(value, kept[name]) for name, value in whole.parts[0].state_dict().items()
    )
    with open_dataset(configuration.parent / "set.h5") as dataset:
        held_out = Training(
            settings(configuration, out=str(folder.parent / "other")), resume=False, quiet=True
        ).parts.validation
        errors = []
        for frame in dataset.frames(held_out):
            forces = evaluated(whole, frame).state.forces.numpy()
            errors.append((forces - frame.forces).ravel())
    rmse = 1e3 * float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
    assert rmse == pytest.approx(metrics["validation"]["force_rmse_meV_per_A"], rel=1e-3)
    card = (folder / "card.md").read_text()
    digest = potential_sha256(baseline)[:12]
    assert f"| baseline | 1 times out, not stated, licence MIT, sha256 {digest}" in card
    assert "neither that of the labels" in card


def test_its_domain_is_that_of_the_labels(configuration: Path) -> None:
    train(settings(configuration), quiet=True)
    domain = load_domain(configuration.parent / "out")
    assert domain is not None
    largest = max(
        float(np.linalg.norm(frame.forces[frame.numbers == 29], axis=1).max()) for frame in FRAMES
    )
    assert 0.5 * largest < float(domain.forces[1, 1]) <= largest + 1e-4
    assert domain.calibrated


def test_the_command_measures_the_domain_of_a_sum_again(
    configuration: Path, baseline: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """As the training did, on what the baseline leaves; a sum without a learned term is refused."""
    train(settings(configuration), quiet=True)
    folder, data = configuration.parent / "out", configuration.parent / "set.h5"
    first = load_domain(folder)
    assert first is not None
    (folder / "domain.safetensors").unlink()
    split = folder / "split.json"
    done = mdgraph_command("domain", folder, data, split, "--device", "cpu")
    assert done.status == 0, done.err
    second = load_domain(folder)
    assert second is not None
    for field in fields(first):
        torch.testing.assert_close(
            getattr(first, field.name), getattr(second, field.name), rtol=1e-3, atol=1e-4
        )
    plain = configuration.parent / "plain"
    plain.mkdir()
    save(SumPotential.of([(load(baseline), 1.0)]), plain / "model.safetensors")
    refused = mdgraph_command("domain", plain, data, split)
    assert refused.status == 1
    assert "give the folder of one term" in refused.err


def test_a_resumed_training_gives_the_same_bits(configuration: Path, tmp_path: Path) -> None:
    train(settings(configuration), quiet=True)
    short = tmp_path / "short"
    changes = {"out": str(short), "checkpoint_interval": 10}
    train(settings(configuration, **changes), quiet=True)
    assert_same(tmp_path / "out", short)
    training = Training(settings(configuration, **changes), resume=True, quiet=True)
    (short / "model.safetensors").unlink()
    (short / DIFFERENCE_FILE).unlink()  # made again, with the same bits
    training = Training(settings(configuration, **changes), resume=True, quiet=True)
    training.run()
    assert_same(tmp_path / "out", short)


def test_another_baseline_is_refused_when_resuming(
    configuration: Path, baseline: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(baseline, own)
    changes = {"baseline": (str(own),)}
    train(settings(configuration, **changes), quiet=True)
    changed = load(own)
    with torch.no_grad():
        changed.scale.mul_(1.01)
    save(changed, own / "model.safetensors", overwrite=True)
    with pytest.raises(InputError, match="differences of other data or from other baselines"):
        Training(settings(configuration, **changes), resume=True, quiet=True)


def test_several_baselines_are_added(configuration: Path, baseline: Path, tmp_path: Path) -> None:
    half = load(baseline)
    with torch.no_grad():
        half.scale.mul_(0.5)
        half.references.mul_(0.5)
    path = tmp_path / "half.safetensors"
    save(half, path)
    both = {"baseline": (str(path), str(path)), "out": str(tmp_path / "both")}
    whole = Training(settings(configuration), resume=False, quiet=True)
    halves = Training(settings(configuration, **both), resume=False, quiet=True)
    for number in (0, 13):
        first = whole._prepared.dataset.frame(number).forces
        second = halves._prepared.dataset.frame(number).forces
        np.testing.assert_allclose(first, second, atol=1e-5)


def test_terms_are_baselines(tmp_path: Path) -> None:
    frames = [replace(frame, charge=1.0) for frame in FRAMES]
    configuration = prepare(tmp_path, frames, baseline=("0.5*zbl@1.5", "d3bj:pbe@6"), steps=4)
    training = Training(settings(configuration), resume=False, quiet=True)
    alone = SumPotential.of([(term("zbl@1.5")[0], 0.5), term("d3bj:pbe@6")])
    for number in (0, 13):
        labels = training._prepared.labels.frame(number)
        left = training._prepared.dataset.frame(number)
        taken = evaluated(alone, labels).state.forces.numpy()
        np.testing.assert_allclose(left.forces, labels.forces - taken, atol=1e-6)
    heavier = settings(configuration, baseline=("zbl@1.5", "d3bj:pbe@6"))
    with pytest.raises(InputError, match="differences of other data or from other baselines"):
        Training(heavier, resume=False, quiet=True)
    train(settings(configuration, out=str(tmp_path / "trained")), quiet=True)
    whole = load(tmp_path / "trained")
    assert whole.term_names()[:2] == ["zbl@1.5", "d3bj:pbe@6"]
    card = (tmp_path / "trained" / "card.md").read_text(encoding="utf-8")
    assert "| dispersion | D3(BJ) |" in card
    assert "| baseline | 0.5 times zbl@1.5, " in card
    assert "nothing keeps them apart" not in card
    with pytest.raises(InputError, match="has a dispersion already"):
        with_terms(whole, "d3bj:pbe")


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("d3bj:no-such", "no-such"),
        ("0:1*zbl@1.5", "the weight of '0:1*zbl@1.5' changes; give one number"),
    ],
)
def test_terms_that_cannot_be_baselines_are_refused(
    tmp_path: Path, baseline: str, message: str, mdgraph_command: Callable[..., Any]
) -> None:
    done = mdgraph_command("train", prepare(tmp_path, FRAMES, baseline=baseline))
    assert done.status == 1, done.err
    assert message in done.err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: replace(frame, forces=23.06 * frame.forces), "times those of the data"),
        (lambda frame: replace(frame, forces=-frame.forces), "point against those of the data"),
        (lambda frame: replace(frame, charge=1.0), "takes no total charge, and 16 frames have one"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    tmp_path: Path,
    baseline: Path,
    change: Callable[[LabelledFrame], LabelledFrame],
    message: str,
    mdgraph_command: Callable[..., Any],
) -> None:
    path = prepare(tmp_path, [change(frame) for frame in FRAMES], baseline=str(baseline))
    done = mdgraph_command("train", path)
    assert done.status == 1, done.err
    assert message in done.err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_baseline_that_leaves_more_than_there_was_is_warned_of(
    baseline: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even where it correlates with the labels."""
    comparison = _ForceComparison()
    labels = np.random.default_rng(1).normal(size=(5, 3))
    other = 2.5 * labels + np.random.default_rng(2).normal(size=(5, 3))
    comparison.add(replace(FRAMES[0], forces=labels), _Result(0.0, other, np.zeros((3, 3))))
    with caplog.at_level(logging.INFO):
        comparison.say(read_baseline((str(baseline),)))
    assert "The baseline leaves more of the forces than there was" in caplog.text


def test_pairs_without_end_are_refused_with_a_cure(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    every = network(**TENSORNET2 | {"coulomb": {}, "species": (8, 29)})
    save(every, tmp_path / "every.safetensors")
    path = prepare(tmp_path, crystals(8), baseline=str(tmp_path / "every.safetensors"))
    done = mdgraph_command("train", path)
    assert done.status == 1
    assert "baseline: every's Coulomb energy runs over all pairs" in done.err
    assert "mdgraph convert IN OUT.safetensors --coulomb-cutoff-A 12" in done.err.replace("\n", " ")
    validated = mdgraph_command("validate", tmp_path / "every.safetensors", tmp_path / "set.h5")
    assert "mdgraph convert IN OUT.safetensors --coulomb-cutoff-A 12" in validated.err
    finite = tmp_path / "finite.safetensors"
    every_file, cutoff = tmp_path / "every.safetensors", ("--coulomb-cutoff-A", "6")
    done = mdgraph_command("convert", every_file, finite, *cutoff)
    assert done.status == 0, done.err
    assert max(load(finite).cutoffs) == 6.0
    done = mdgraph_command("convert", "copper-pbe", tmp_path / "cu.safetensors", *cutoff)
    assert "A Coulomb cutoff is given, but the potential has no Coulomb energy" in done.err
    assert not (tmp_path / "cu.safetensors").exists()


def test_a_baseline_without_an_element_is_refused(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    lone = tmp_path / "lone.safetensors"
    save(network(species=(29,), channels=4, layers=1, cutoff=4.0), lone)
    path = prepare(tmp_path, FRAMES, baseline=[str(lone)])
    done = mdgraph_command("train", path)
    assert done.status == 1
    assert "lone does not know O, which the data hold" in done.err
    assert not (tmp_path / "out").exists()
    done = mdgraph_command("train", prepare(tmp_path, FRAMES, baseline=str(tmp_path / "none")))
    assert done.status == 1
    assert "There is no file or folder" in done.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"references": "isolated-atoms"}, "are no references for the rest after a baseline"),
        (
            {
                "loss": {"dipole": {"weight": 1.0}},
                "potential": {"architecture": "tensornet2", "charge_channels": 2},
            },
            "a baseline gives no dipoles",
        ),
        ({"baseline": 3}, "baseline"),
    ],
)
def test_options_that_contradict_are_refused(
    configuration: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_training(configuration, changes)


def test_lone_atoms_are_left_out(tmp_path: Path, baseline: Path) -> None:
    lone = LabelledFrame(np.array([29]), np.zeros((1, 3)), energy=-5.0, forces=np.zeros((1, 3)))
    path = prepare(tmp_path, [*FRAMES, lone], split=None, baseline=str(baseline))
    training = Training(settings(path), resume=False, quiet=True)
    assert 16 not in training.parts.every


def test_a_sum_is_a_baseline_and_no_start(configuration: Path, tmp_path: Path) -> None:
    train(settings(configuration), quiet=True)
    first = tmp_path / "out"
    again = {"baseline": (str(first),), "out": str(tmp_path / "again")}
    train(settings(configuration, **again), quiet=True)
    whole = load(tmp_path / "again")
    assert isinstance(whole, SumPotential)
    assert len(whole.parts) == 3
    assert set(weights_of(first)) < set(weights_of(tmp_path / "again"))
    start = prepare(tmp_path, FRAMES, start_from=str(first), potential=None)
    with pytest.raises(InputError, match="architecture sum, which is not trained"):
        Training(settings(start, out=str(tmp_path / "c")), resume=False, quiet=True)
