"""Checks of liquids: sound runs pass, planted faults are caught, and known motion is measured."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import molecule
from numpy.typing import NDArray
from random_networks import random_network
from torch import Tensor, nn

from mdgraph.data import LabelledFrame
from mdgraph.engine.observables import AutocorrelationResult, DisplacementResult
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.models import Atoms
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors import Pairs
from mdgraph.system import System
from mdgraph.units import SPEED_OF_LIGHT
from mdgraph.validate import dynamics_checks as module
from mdgraph.validate import liquid_checks
from mdgraph.validate.bonds import DROP, cut
from mdgraph.validate.dynamics_checks import dynamics_checks
from mdgraph.validate.liquid_checks import (
    LiquidReference,
    diffusion_check,
    distribution_check,
    liquid_reference,
    mean_and_error,
    spectrum_check,
)
from mdgraph.validate.verdicts import Check, Verdict

CPU = torch.device("cpu")
LENGTH, BOX, MOLECULES = 1.1, 12.6, 27
DISTANCE = (np.arange(100) + 0.5) * 0.05

Array = NDArray[np.float64]


class Nitrogen(nn.Module):
    """Bonds of some depth (eV), and a Gaussian of some height (eV) at 3.8 A; a Potential."""

    species = None
    uses_charge = False
    cutoffs = (5.2,)

    def __init__(self, depth: float = 5.0, height: float = 0.0) -> None:
        super().__init__()
        self.depth, self.height = depth, height

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Half of each pair for each of its atoms."""
        total = pairs[0].vectors[0].new_zeros(len(atoms.numbers))
        for block in pairs[0].blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            width = math.sqrt(20.0 / self.depth)
            bond = self.depth * ((1.0 - torch.exp(-width * (distance - LENGTH))) ** 2 - 1.0)
            bump = self.height * torch.exp(-0.5 * ((distance - 3.8) / 0.3) ** 2)
            energy = torch.where(distance < 2.0, bond, bump)
            total = total + sum_slots(torch.where(block.valid & (distance < 5.2), energy, 0.0))
        return 0.5 * total.double()


def frames(count: int = 16) -> list[LabelledFrame]:
    """Molecules about the places of a lattice, each turned at random."""
    random = np.random.default_rng(0)
    corners = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3) * BOX / 3.0
    numbers, pbc = np.full(2 * MOLECULES, 7), np.full(3, True)
    liquid = []
    for _ in range(count):
        middle = corners + random.normal(scale=0.15, size=corners.shape)
        axis = random.normal(size=corners.shape)
        axis *= 0.5 * LENGTH / np.linalg.norm(axis, axis=1, keepdims=True)
        positions = np.stack([middle + axis, middle - axis], 1).reshape(-1, 3)
        liquid.append(LabelledFrame(numbers, positions, BOX * np.eye(3), pbc))
    return liquid


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of some hundred steps, without a limit of wall time, in a bath that cools at once."""
    monkeypatch.setattr(module, "FRICTION", 100.0)
    monkeypatch.setattr(module, "PICOSECONDS", 0.14)
    monkeypatch.setattr(module, "NVE_SHARE", 3 / 7)
    monkeypatch.setattr(module, "WARM_UP", 0.06)
    monkeypatch.setattr(liquid_checks, "BLOCK", 0.02)


def checks_of(
    potential: object, interval: float | None = None, temperature: float = 20.0
) -> dict[str, Check]:
    """Of liquid nitrogen."""
    options = {"device": CPU, "precision": "double", "minutes": 60.0, "temperature": temperature}
    return {
        check.name.replace("N54", "it"): check
        for check in dynamics_checks(potential, frames(), interval=interval, **options)
    }


@pytest.mark.usefixtures("short")
def test_a_sound_liquid_holds_and_keeps_its_neighbors() -> None:
    """Pieces are cut from it and run, and g(r) is that of the frames."""
    checks = checks_of(Nitrogen())
    pieces = {name: check for name, check in checks.items() if "of a " in name}
    assert [name.split()[3] for name in pieces] == ["drop", "slab", "molecule"]
    assert {check.verdict for check in pieces.values()} == {Verdict.OK}
    assert checks["g(r) of it"].verdict is Verdict.OK
    assert checks["g(r) of it"].panels["N-N"].y.keys() == {"run", "frames"}
    assert not [check for check in checks.values() if check.verdict is Verdict.WRONG]
    assert "too short" in checks["diffusion of it"].sentence


@pytest.mark.usefixtures("short")
def test_an_added_gaussian_of_half_an_electronvolt_moves_neighbors() -> None:
    """By frames of a trajectory."""
    check = checks_of(Nitrogen(height=0.5), 1000.0)["g(r) of it"]
    assert check.verdict is Verdict.WRONG
    assert check.numbers["moved_share"]["N-N"] > 0.1


@pytest.mark.usefixtures("short")
def test_weak_bonds_break_in_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less deep than the heat of 600 K."""
    monkeypatch.setattr(module, "FRICTION", 4.0)
    checks = checks_of(Nitrogen(depth=0.02), temperature=600.0)
    pieces = [check for name, check in checks.items() if "of a " in name]
    assert [check.verdict for check in pieces] == [Verdict.WRONG] * 3
    assert all("bonds broke" in check.sentence for check in pieces)


@pytest.mark.usefixtures("short")
def test_random_weights_are_wrong_in_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """No molecule holds."""
    monkeypatch.setattr(module, "PICOSECONDS", 0.02)
    monkeypatch.setattr(module, "WARM_UP", 0.02)
    settings = {"species": (7,), "channels": 8, "layers": 1, "cutoff": 5.2}
    potential = random_network(20.0, settings | {"radial_basis": {"number": 6}})
    checks = checks_of(AutogradEvaluator(potential.double()))
    pieces = [check for name, check in checks.items() if "of a drop" in name or "slab" in name]
    assert {check.verdict for check in pieces} == {Verdict.WRONG}


# what is judged


def reference(**values: Any) -> LiquidReference:
    """A first shell at 2.8 A."""
    value = shell(2.8)
    return LiquidReference(100, value[None], np.full((1, 100), 0.002), **values)


def shell(distance: float) -> Array:
    """g(r) with a peak."""
    rise = 1.0 / (1.0 + np.exp(-(DISTANCE - distance + 0.3) / 0.05))
    return np.asarray(rise * (1.0 + 1.5 * np.exp(-0.5 * ((DISTANCE - distance) / 0.15) ** 2)))


@pytest.mark.parametrize(
    ("distance", "verdict"),
    [(2.8, Verdict.OK), (2.9, Verdict.LOOK), (3.4, Verdict.WRONG)],
)
def test_a_shell_elsewhere_is_seen_beyond_errors(distance: float, verdict: Verdict) -> None:
    """Noise of the same size as the shift hides it."""
    random = np.random.default_rng(0)
    held = reference(interval=1.0)

    def check(noise: float) -> Check:
        blocks = shell(distance) + random.normal(scale=noise, size=(8, 2, 1, 100))
        return distribution_check("X", ["O-O"], DISTANCE, list(blocks), held)

    assert check(0.01).verdict is verdict
    assert check(8.0).verdict is Verdict.OK
    blocks = [shell(distance)[None, None]] * 8
    loose = distribution_check("X", ["O-O"], DISTANCE, blocks, reference())
    assert loose.verdict is (Verdict.OK if verdict is Verdict.OK else Verdict.LOOK)
    assert ("no trajectory" in loose.sentence) is (verdict is Verdict.WRONG)
    few = distribution_check("X", ["O-O"], DISTANCE, [np.ones((2, 1, 100))], held)
    assert (few.verdict, "too short" in few.sentence) == (Verdict.LOOK, True)
    alone = distribution_check("X", ["O-O"], DISTANCE, [np.ones((2, 1, 100))] * 8, None)
    assert (alone.verdict, "nothing judges it" in alone.sentence) == (Verdict.LOOK, True)


def swinging(wavenumber: float) -> AutocorrelationResult:
    """A velocity autocorrelation of hydrogen that swings, damped within 150 fs."""
    lag = 2.0 * np.arange(125)
    value = np.cos(2.0 * np.pi * wavenumber * SPEED_OF_LIGHT * lag) * np.exp(-((lag / 150.0) ** 2))
    origins = np.full(125, 100)
    return AutocorrelationResult(
        samples=1000, every=4, elements=("H",), lag=lag, origins=origins, value=value[None, None]
    )


@pytest.mark.parametrize(
    ("wavenumber", "verdict"),
    [
        (3400.0, Verdict.OK),
        (3440.0, Verdict.LOOK),
        (3000.0, Verdict.WRONG),
        (6000.0, Verdict.WRONG),
    ],
)
def test_other_frequencies_than_those_of_a_trajectory_are_seen(
    wavenumber: float, verdict: Verdict
) -> None:
    """Without one only frequencies that no molecule has are wrong."""
    system = System([1], [[0.0, 0.0, 0.0]])
    held = reference(interval=0.01, velocities=swinging(3400.0))
    check = spectrum_check(system, "X", swinging(wavenumber), held)
    assert check.verdict is verdict
    alone = spectrum_check(system, "X", swinging(wavenumber), None)
    assert alone.verdict is (Verdict.WRONG if wavenumber > 4600.0 else Verdict.LOOK)
    assert spectrum_check(system, "X", None, None).verdict is Verdict.LOOK


def spreading(diffusion: float, systems: int = 1, longest: int = 100) -> DisplacementResult:
    """Displacements of oxygen by a diffusion in 1e-5 cm^2/s."""
    lag = 20.0 * np.arange(100)
    value = np.tile(6e-4 * diffusion * lag, (systems, 1, 1))
    origins = np.where(np.arange(100) < longest, 50, 0)
    return DisplacementResult(
        samples=1000, every=40, elements=("O",), lag=lag, origins=origins, value=value
    )


@pytest.mark.parametrize(
    ("diffusion", "verdict"), [(1.2, Verdict.OK), (0.4, Verdict.LOOK), (8.0, Verdict.WRONG)]
)
def test_diffusion_is_held_against_that_of_a_trajectory(diffusion: float, verdict: Verdict) -> None:
    """By its factor; nothing judges it alone."""
    system = System([8], [[0.0, 0.0, 0.0]])
    held = reference(interval=1.0, displacements=spreading(1.0))
    check = diffusion_check(system, "X", spreading(diffusion, 2), held)
    assert check.verdict is verdict
    assert check.numbers["diffusion_1e-5_cm2_per_s"] == pytest.approx(diffusion)
    alone = diffusion_check(system, "X", spreading(diffusion, 2), None)
    assert (alone.verdict, "nothing judges it" in alone.sentence) == (Verdict.LOOK, True)
    brief = diffusion_check(system, "X", spreading(diffusion, 2, longest=20), held)
    assert "too short" in brief.sentence


@pytest.mark.parametrize("skew", [(0.0, 0.0), (1800.0, -1400.0)])
def test_the_motion_of_a_trajectory_is_measured_across_its_cell(skew: tuple[float, float]) -> None:
    """Swings of 3,000 per cm on atoms that wander with a known diffusion, wrapped into the cell."""
    random = np.random.default_rng(0)
    count, interval, diffusion = 1000, 2.0, 40.0
    time = interval * np.arange(count)
    steps = random.normal(scale=math.sqrt(2e-4 * diffusion * interval), size=(count, 60, 3))
    phases = random.uniform(0.0, 2.0 * np.pi, size=(60, 3))
    swing = 0.3 * np.sin(2.0 * np.pi * 3000.0 * SPEED_OF_LIGHT * time[:, None, None] + phases)
    cell, pbc = 20.0 * np.eye(3), np.full(3, True)
    cell[2, :2] = skew  # of the same lattice
    positions = 20.0 * random.uniform(size=(60, 3)) + steps.cumsum(0) + swing
    positions = positions @ np.linalg.inv(cell) % 1.0 @ cell
    numbers = np.full(60, 8)
    path = [LabelledFrame(numbers, places, cell, pbc) for places in positions]
    held = liquid_reference(path, 5.0, interval)
    assert held is not None
    assert held.velocities is not None
    assert held.displacements is not None
    assert held.value[0, 60:].mean() == pytest.approx(1.0, abs=0.1)
    found = 1e4 * held.displacements.fitted_diffusion(200.0, 1000.0)[0, 0]
    assert found == pytest.approx(diffusion, rel=0.2)
    check = spectrum_check(System(numbers, positions[0]), "X", held.velocities, held)
    assert check.curves is not None
    line = check.curves.y["frames"] - np.median(check.curves.y["frames"])
    assert check.curves.x[int(line.argmax())] == pytest.approx(3000.0, abs=40.0)
    assert liquid_reference(path[:5], 5.0, interval) is None


def test_a_drop_is_whole_molecules_that_lie_together() -> None:
    """Twenty of 27 waters, none farther than half of the cell from the first."""
    random = np.random.default_rng(1)
    water = molecule("H2O")
    places = [
        water.positions + 3.1 * np.array([x, y, z]) + random.normal(scale=0.05, size=3)
        for x in range(3)
        for y in range(3)
        for z in range(3)
    ]
    cell = 9.3 * np.eye(3)
    liquid = System(
        np.tile(water.numbers, 27), np.concatenate(places) % 9.3, cell, np.full(3, True)
    )
    drop = cut(liquid, "drop")
    assert len(drop) == 3 * DROP
    assert not drop.pbc.any()
    oxygens = drop.positions[drop.numbers == 8]
    apart = np.linalg.norm(oxygens - oxygens[0], axis=1)
    assert apart.max() < 0.5 * 9.3 * 3**0.5
    bonds = np.linalg.norm(drop.positions.reshape(-1, 3, 3)[:, 1:] - oxygens[:, None], axis=2)
    assert bonds == pytest.approx(0.97, abs=0.01)
    assert len(cut(liquid, "molecule")) == 3
    assert len(cut(liquid, "slab")) == len(liquid)


def test_errors_of_means_are_the_larger_of_both() -> None:
    """Of all blocks, or of starts where these differ by more."""
    blocks = np.array([[1.0, 5.0], [1.0, 5.0]])[..., None]
    mean, error = mean_and_error(blocks)
    assert mean == pytest.approx(3.0)
    assert error == pytest.approx(2.0)
    _, error = mean_and_error(blocks.swapaxes(0, 1))
    assert error == pytest.approx(16.0**0.5 / 3.0**0.5 / 2.0)
