"""Checks of labelled frames: exact labels pass, and each planted fault has its line."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from bonded_toy import BondedToy, structure
from toys import LennardJones, argon

from mdgraph.data import LabelledFrame
from mdgraph.data.dataset import evenly_spaced
from mdgraph.engine.batches import evaluate_with
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.validate.frame_checks import FEWEST, frame_checks
from mdgraph.validate.verdicts import Check, Verdict

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def labelled(
    energy_error: float = 0.0, force_factor: float = 1.0, noise: float = 0.0
) -> list[LabelledFrame]:
    """Methanol shaken, labelled by the toy; the second half is a group of its own.

    Args:
        energy_error: eV an atom, added to all.
        force_factor: of the labels.
        noise: eV/A, of the labels of the second group.
    """
    random = np.random.default_rng(5)
    system = structure()
    shaken = [
        system.replace(positions=system.positions + random.normal(scale=0.05, size=(6, 3)))
        for _ in range(2 * FEWEST)
    ]
    results = evaluate_with(BondedToy(system), CPU, "double")(shaken, "frame")
    frames = []
    for number, (copy, result) in enumerate(zip(shaken, results, strict=True)):
        group = "cold" if number < FEWEST else "hot"
        forces = force_factor * result.forces
        if group == "hot":
            forces = forces + random.normal(scale=noise, size=forces.shape)
        energy = result.energy + energy_error * len(copy)
        frames.append(
            LabelledFrame(copy.numbers, copy.positions, energy=energy, forces=forces, group=group)
        )
    return frames


def checked(frames: Sequence[LabelledFrame], **toy: float) -> dict[str, Check]:
    potential = BondedToy(structure(), **toy)
    return {check.name: check for check in frame_checks(frames, potential, CPU)}


def unlike(checks: dict[str, Check]) -> dict[str, Verdict]:
    return {name: check.verdict for name, check in checks.items() if check.verdict != Verdict.OK}


def test_exact_labels_pass() -> None:
    checks = checked(labelled())
    assert unlike(checks) == {}
    assert set(checks["energies"].numbers["by_group"]) == {"cold", "hot"}
    assert set(checks["forces by element"].numbers["rows"]) == {"C", "H", "O"}
    assert checks["size of forces"].numbers["slope"] == pytest.approx(1.0, abs=1e-4)
    assert checks["forces by size"].curves is not None


def test_errors_are_those_of_numpy() -> None:
    """By group and over all."""
    frames = labelled(noise=0.3)
    exact = labelled()
    checks = checked(frames)
    rows = checks["forces by group"].numbers["rows"]
    errors = [1e3 * (a.forces - b.forces) for a, b in zip(frames, exact, strict=True)]
    hot = np.array(errors[FEWEST:])
    assert rows["hot"]["rmse_meV_per_A"] == pytest.approx(np.sqrt(np.mean(hot**2)), rel=1e-3)
    assert rows["hot"]["mae_meV_per_A"] == pytest.approx(np.abs(hot).mean(), rel=1e-3)
    assert rows["cold"]["rmse_meV_per_A"] < 1.0
    whole = checks["forces"].numbers["rmse_meV_per_A"]
    assert whole == pytest.approx(np.sqrt(np.mean(np.array(errors) ** 2)), rel=1e-3)


def test_an_offset_of_all_energies_is_named() -> None:
    """It is no error of dynamics; one of a group alone is an error."""
    check = checked(labelled(energy_error=0.02))["energies"]
    assert check.verdict is Verdict.LOOK
    assert "an offset of -20, without which it is" in check.sentence
    exact = labelled()
    both = checked(exact[:FEWEST] + labelled(energy_error=0.02)[FEWEST:])["energies"]
    assert both.verdict is Verdict.WRONG
    assert "20 in hot" in both.sentence


def test_forces_that_are_too_large_are_wrong_twice() -> None:
    """Times 1.1 they are no slopes of the energy, and no longer the labels."""
    found = unlike(checked(labelled(), force_factor=1.1))
    assert found["forces against energies"] is Verdict.WRONG
    assert found["size of forces"] is Verdict.WRONG
    labels = unlike(checked(labelled(force_factor=1.0 / 1.1)))
    assert labels["size of forces"] is Verdict.WRONG
    assert "forces against energies" not in labels


def test_labels_without_forces_have_no_slope() -> None:
    """Those of free atoms and of crystals at rest are rounding."""
    frames = [replace(frame, forces=1e-9 * frame.forces) for frame in labelled()]
    check = checked(frames)["size of forces"]
    assert check.verdict is Verdict.OK
    assert "tells no slope" in check.sentence


def test_a_group_that_errs_is_named() -> None:
    """The other one hides half of it."""
    check = checked(labelled(noise=1.5))["forces by group"]
    assert check.verdict is Verdict.WRONG
    assert "for hot" in check.sentence


class ScaledVirial(Evaluator):
    """Argon whose virial is 1.1 times its own."""

    def __init__(self) -> None:
        self._own = AutogradEvaluator(LennardJones(0.0104, 3.4, 8.0))
        self.cutoffs = self._own.cutoffs

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        self._own.evaluate_(state, lists)
        state.virial.mul_(1.1)


def test_the_stress_is_held_against_the_energy() -> None:
    crystal = argon(3)
    frame = LabelledFrame(crystal.numbers, crystal.positions, crystal.cell, crystal.pbc)
    for potential, verdict in (
        (LennardJones(0.0104, 3.4, 8.0), Verdict.OK),
        (ScaledVirial(), Verdict.WRONG),
    ):
        checks = {check.name: check for check in frame_checks([frame], potential, CPU)}
        assert set(checks) == {"forces against energies", "stress against energies"}
        assert checks["forces against energies"].verdict is Verdict.OK
        assert checks["stress against energies"].verdict is verdict


@pytest.mark.parametrize(
    ("factor", "noise", "verdict"),
    [
        (1.0, 0.0, Verdict.OK),
        (0.9, 0.0, Verdict.OK),
        (1.0, 10.0, Verdict.LOOK),
        (-1.0, 0.0, Verdict.WRONG),
        (160.2, 0.0, Verdict.WRONG),
        (0.02, 0.0, Verdict.WRONG),
    ],
)
def test_stresses_of_another_unit_or_sign_are_wrong(
    factor: float, noise: float, verdict: Verdict
) -> None:
    """Argon squeezed to some GPa; noise in GPa."""
    potential = LennardJones(0.0104, 3.4, 8.0)
    random = np.random.default_rng(3)
    cells = [argon(3) for _ in range(6)]
    scales = np.linspace(0.7, 0.75, len(cells))
    squeezed = [
        crystal.replace(positions=scale * crystal.positions, cell=scale * crystal.cell)
        for crystal, scale in zip(cells, scales, strict=True)
    ]
    results = evaluate_with(potential, CPU, "double")(squeezed, "frame")
    frames = [
        LabelledFrame(
            crystal.numbers,
            crystal.positions,
            crystal.cell,
            crystal.pbc,
            stress=-factor * result.virial / crystal.volume
            + random.normal(scale=noise / 160.2, size=(3, 3)),
        )
        for crystal, result in zip(squeezed, results, strict=True)
    ]
    checks = {check.name: check for check in frame_checks(frames, potential, CPU)}
    assert checks["stress"].verdict is verdict, checks["stress"].sentence


def test_frames_are_spaced_evenly() -> None:
    assert evenly_spaced(list(range(11)), 3) == [0, 5, 10]
    assert evenly_spaced([1, 2], 5) == [1, 2]


def test_elements_of_few_forces_are_said_not_to_be_judged() -> None:
    """Of three frames twelve hydrogens are judged, three carbons and three oxygens are not."""
    check = checked(labelled(force_factor=2.0)[:3])["forces by element"]
    assert check.verdict is Verdict.WRONG
    assert "for H," in check.sentence
    assert check.sentence.endswith("of 3, 2 of fewer than 10 forces not judged.")
    fewer = checked(labelled(force_factor=2.0)[:1])["forces by element"]
    assert fewer.sentence.endswith("of 3, 3 of fewer than 10 forces not judged.")
