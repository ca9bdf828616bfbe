"""Checks of dynamics: sound toys pass; weak bonds, wrong forces and drift are caught."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from ase.build import molecule
from torch import Tensor, nn
from toys import LennardJones

from mdgraph.data import LabelledFrame
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.models import Atoms
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors import NeighborList, Pairs
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.validate import dynamics_checks as module
from mdgraph.validate.bonds import BondGraph
from mdgraph.validate.crystals import ideal_crystal
from mdgraph.validate.dynamics_checks import (
    bath_verdict,
    dynamics_checks,
    energy_verdict,
    hydrogens_move,
    poisson_bound,
)
from mdgraph.validate.stability import StabilityResult, Start
from mdgraph.validate.verdicts import Check, Verdict

CPU = torch.device("cpu")
LENGTH, STIFFNESS = 1.1, 40.0


class Morse(nn.Module):
    """Bonds of nitrogen that are as deep as is said, eV; a Potential."""

    species = None
    uses_charge = False
    cutoffs = (6.0,)

    def __init__(self, depth: float) -> None:
        super().__init__()
        self.depth = depth
        self.width = math.sqrt(STIFFNESS / (2.0 * depth))

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Half of each pair for each of its atoms."""
        total = pairs[0].vectors[0].new_zeros(len(atoms.numbers))
        for block in pairs[0].blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            inside = block.valid & (distance < 6.0)
            energy = self.depth * (1.0 - torch.exp(-self.width * (distance - LENGTH))) ** 2
            total = total + sum_slots(torch.where(inside, energy - self.depth, 0.0))
        return 0.5 * total.double()


class Wrong(AutogradEvaluator):
    """Bonds of 5 eV with forces that are too large, or that turn each molecule about."""

    def __init__(self, factor: float = 1.0, turning: float = 0.0) -> None:
        super().__init__(Morse(5.0))
        self.factor, self.turning = factor, turning

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        super().evaluate_(state, lists)
        state.forces *= self.factor
        bond = state.positions[1::2] - state.positions[::2]
        turn = self.turning * torch.stack([-bond[:, 1], bond[:, 0], 0.0 * bond[:, 0]], 1)
        state.forces[1::2] += turn.to(state.dtype)
        state.forces[::2] -= turn.to(state.dtype)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of some hundred steps, and no limit of wall time."""
    monkeypatch.setattr(module, "PICOSECONDS", 0.3)
    monkeypatch.setattr(module, "NVE_SHARE", 4 / 3)
    monkeypatch.setattr(module, "WARM_UP", 0.1)


def checks_of(potential: object, minutes: float = 10.0) -> list[Check]:
    """Of nitrogen at 300 K."""
    numbers = np.array([7, 7])
    lengths = LENGTH + 0.01 * np.arange(4)
    frames = [LabelledFrame(numbers, np.array([[0.0] * 3, [x, 0.0, 0.0]])) for x in lengths]
    options = {"device": CPU, "precision": "double", "minutes": minutes}
    return list(dynamics_checks(potential, frames, **options))


def test_strong_bonds_hold_and_their_energy_is_kept() -> None:
    """Of 8 replicas for 0.3 ps each, none fails: at most 3/2.4 a ps."""
    checks = checks_of(Morse(5.0))
    assert [check.verdict for check in checks] == [Verdict.OK] * 3
    cold, energy, hot = checks
    assert cold.name == "dynamics of N2 at the temperature"
    assert cold.numbers["failed"] == 0
    assert cold.numbers["ps_each"] == pytest.approx(0.3)
    assert cold.numbers["failures_per_ps_at_most"] == pytest.approx(2.9957 / 2.4, rel=1e-3)
    assert hot.numbers["temperature_K"] == 600.0
    assert energy.numbers["scatter_over_kinetic"] < 0.02
    assert energy.curves is not None
    assert len(energy.curves.y) == 8


def test_weak_bonds_break() -> None:
    """Bonds as deep as the heat."""
    cold, *_, hot = checks_of(Morse(0.03))
    assert (cold.verdict, hot.verdict) == (Verdict.WRONG, Verdict.WRONG)
    assert cold.numbers["failed"] > 2
    assert "bonds broke" in cold.sentence
    assert cold.numbers["failures_per_ps"] > 1.0


def test_something_runs_whatever_the_wall_time() -> None:
    """Kernels may take that time to compile: nothing had run then, and that was ok."""
    assert checks_of(Morse(5.0), minutes=0.0)[0].numbers["ps_each"] == pytest.approx(0.04)


def test_forces_that_are_no_derivative_lose_or_gain_energy() -> None:
    """Too large by a tenth they scatter; turning ones drift."""
    large, turning = (checks_of(Wrong(1.1))[1], checks_of(Wrong(1.0, 0.05))[1])
    assert large.verdict is Verdict.WRONG
    assert large.numbers["scatter_over_kinetic"] > 0.06
    assert turning.verdict is Verdict.WRONG


def test_a_crystal_runs_from_its_reference_phase() -> None:
    """Argon at 20 K keeps its neighbors, though no two atoms are within 3 A."""
    crystal = ideal_crystal("Ar", "fcc", 3.8)
    frames = [LabelledFrame(crystal.numbers, crystal.positions, crystal.cell, crystal.pbc)] * 2
    potential = LennardJones(0.0104, 3.4, 8.5)
    checks = list(
        dynamics_checks(
            potential, frames, device=CPU, temperature=20.0, precision="double", minutes=10.0
        )
    )
    assert [check.verdict for check in checks] == [Verdict.OK] * 3
    assert checks[0].name == "dynamics of Ar in fcc at the temperature"
    assert checks[0].numbers["closest_over_shortest"] > 1.0


def result_of(*failures: dict[str, float], evaporated: int = 0) -> StabilityResult:
    """Runs of 10 ps with these failures."""
    starts = [Start(failures=each, evaporated=evaporated, closest=1.0) for each in failures]
    return StabilityResult(10.0, starts, [0.0] * len(starts), [])


def test_the_bound_of_failures_is_that_of_poisson() -> None:
    """Textbook values; failed runs count up to their failure."""
    assert poisson_bound(0) == pytest.approx(2.9957, abs=1e-3)
    assert poisson_bound(1) == pytest.approx(4.7439, abs=1e-3)
    assert poisson_bound(5) == pytest.approx(10.513, abs=1e-3)
    check = bath_verdict("x", result_of({}, {"bonds": 4.0, "contact": 6.0}), 300.0, False, False)
    assert check.numbers["failures_per_ps"] == pytest.approx(1.0 / 14.0)
    assert check.numbers["failures_per_ps_at_most"] == pytest.approx(4.7439 / 14.0, rel=1e-3)


@pytest.mark.parametrize(
    ("failures", "temperature", "crystal", "hot", "verdict"),
    [
        ({}, 300.0, False, False, Verdict.OK),
        ({"bonds": 1.0}, 600.0, False, True, Verdict.WRONG),
        ({"bonds": 1.0}, 2000.0, False, True, Verdict.LOOK),
        ({"bonds": 1.0}, 300.0, True, False, Verdict.WRONG),
        ({"bonds": 1.0}, 600.0, True, True, Verdict.LOOK),
        ({"bonds": 1.0, "contact": 2.0}, 600.0, True, True, Verdict.WRONG),
        ({"stopped": 1.0}, 2000.0, False, True, Verdict.WRONG),
        ({"temperature": 10.0}, 300.0, False, False, Verdict.WRONG),
    ],
)
def test_what_fails_depends_on_the_temperature(
    failures: dict[str, float], temperature: float, crystal: bool, hot: bool, verdict: Verdict
) -> None:
    """Hot bonds may break and hot crystals melt; nothing else may happen."""
    check = bath_verdict("x", result_of({}, failures), temperature, crystal, hot)
    assert check.verdict is verdict


def test_molecules_that_evaporate_are_counted_and_do_not_fail() -> None:
    """Two waters 2.8 A apart are together, and 10 A apart they are two."""
    waters = [molecule("H2O"), molecule("H2O")]
    waters[1].positions += [2.8, 0.0, 0.0]
    pair = waters[0] + waters[1]
    bonds = BondGraph(System(pair.numbers, pair.positions), np.ones((119, 119)), CPU)
    far = pair.positions.copy()
    far[3:] += [7.2, 0.0, 0.0]
    places = torch.tensor(np.stack([pair.positions, far]))
    assert bonds.evaporated(bonds.distances(places)).tolist() == [0, 2]
    check = bath_verdict("x", result_of({}, evaporated=2), 300.0, False, False)
    assert check.verdict is Verdict.OK
    assert check.sentence.endswith("; 2 molecules evaporated.")


def test_drift_counts_beyond_its_error() -> None:
    """The same mean drift, once sure and once lost in the scatter of replicas."""
    times = np.linspace(0.0, 4000.0, 100)
    unit = 8.617e-5 * 300.0 * 60 * 1e-6
    noise = np.random.default_rng(0).normal(size=(2, 100, 8))
    kinetic = 1.0 + 0.1 * noise[0]
    for spread, verdict in ((0.5, Verdict.WRONG), (40.0, Verdict.OK)):
        slopes = unit * (10.0 + spread * np.array([-3, -2, -1, 0, 0, 1, 2, 3]))
        total = slopes * times[:, None] + 1e-4 * noise[1]
        check = energy_verdict("x", times, total, kinetic, 60.0, 300.0)
        assert check.verdict is verdict
        assert check.numbers["drift_kT_per_ns"] == pytest.approx(10.0, abs=0.2)


def test_a_hydrogen_that_moves_in_the_data_may_move() -> None:
    """From one oxygen to another, but not where bonds only swing."""

    def frame(hydrogen: float) -> LabelledFrame:
        positions = np.array([[0.0, 0.0, 0.0], [2.4, 0.0, 0.0], [hydrogen, 0.0, 0.0]])
        return LabelledFrame(np.array([8, 8, 1]), positions)

    assert not hydrogens_move([frame(0.9), frame(1.19)], CPU)
    assert hydrogens_move([frame(0.9), frame(1.0), frame(1.3)], CPU)
    assert not hydrogens_move([LabelledFrame(np.array([7, 7]), np.eye(3)[:2])], CPU)
