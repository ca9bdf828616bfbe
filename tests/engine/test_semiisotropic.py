"""Cells whose x and y scale together, against a Monte Carlo barostat that knows no dynamics.

Both sample six soft atoms, one of them on a spring, in a cell with springs of its own: along
single axes a fluid resists no shape. The spring leaves the atoms all 3N degrees of freedom, so
that the weight of a volume is exactly V^N, and areas and lengths have no other measure.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from ensembles import box
from toys import HarmonicWells

from mdgraph.engine import (
    FIRE,
    Integrator,
    MartynaTobiasKlein,
    PositionRestraints,
    Simulation,
    StochasticCellRescaling,
)
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

KELVIN = 300.0
THERMAL = BOLTZMANN * KELVIN
PRESSURE = 1e-3
ATOMS, REPLICAS = 6, 600
AREA, LENGTH = 30.0, 5.5
STIFF, SOFT, RANGE, SPRING = 0.5, 0.1, 1.8, 0.05
"""eV of the cell, eV/A^2 and A of the pairs, eV/A^2 of the spring."""
FIRST, SECOND = np.triu_indices(ATOMS, 1)
KINDS = ("semiisotropic", "semiisotropic-fixed-z")


class SoftAtoms(Evaluator):
    """k/2 (r_c - r)^2 of nearest images, and c/2 (ln^2 A/A_0 + ln^2 L/L_0); a right cell."""

    cutoffs: tuple[float, ...] = ()

    def evaluate_(self, state, lists) -> None:
        x = state.positions.view(-1, ATOMS, 3)
        edges = state.cell.diagonal(dim1=-2, dim2=-1)
        vectors = x[:, FIRST] - x[:, SECOND]
        vectors = vectors - edges[:, None] * torch.round(vectors / edges[:, None])
        distance = vectors.norm(dim=-1)
        depth = (RANGE - distance).clamp(min=0.0)
        pull = (SOFT * depth / distance.clamp(min=1e-9))[..., None] * vectors
        forces = torch.zeros_like(x)
        forces.index_add_(1, torch.tensor(FIRST), pull)
        forces.index_add_(1, torch.tensor(SECOND), -pull)
        state.forces.copy_(forces.view(-1, 3))
        area = torch.log(edges[:, 0] * edges[:, 1] / AREA)
        length = torch.log(edges[:, 2] / LENGTH)
        state.energy.copy_(
            0.5 * SOFT * depth.square().sum(-1) + 0.5 * STIFF * (area**2 + length**2)
        )
        state.energies.zero_()
        virial = (pull[..., :, None] * vectors[..., None, :]).sum(1)
        virial -= STIFF * torch.diag_embed(torch.stack([area, area, length], dim=-1))
        state.virial.copy_(virial)


@dataclass(frozen=True)
class Sampled:
    """Areas and lengths along z (T, R) of R replicas at T times, and the last atoms."""

    area: np.ndarray
    length: np.ndarray
    edges: np.ndarray
    fractions: np.ndarray


def energies(edges: np.ndarray, fractions: np.ndarray, soft: float) -> np.ndarray:
    """Of cells (R, 3) and fractional coordinates (R, N, 3), in NumPy."""
    vectors = fractions[:, FIRST] - fractions[:, SECOND]
    vectors = (vectors - np.round(vectors)) * edges[:, None]
    depth = np.maximum(RANGE - np.sqrt((vectors**2).sum(-1)), 0.0)
    spring = ((fractions[:, 0] - 0.5) * edges) ** 2
    area, length = edges[:, 0] * edges[:, 1], np.abs(edges[:, 2])
    shape = np.log(area / AREA) ** 2 + np.log(length / LENGTH) ** 2
    return 0.5 * (soft * (depth**2).sum(-1) + SPRING * spring.sum(-1) + STIFF * shape)


@functools.cache
def monte_carlo(
    kind: str,
    power: float = ATOMS,
    soft: float = SOFT,
    cell_thermal: float = THERMAL,
    cycles: int = 260,
) -> Sampled:
    """Trial moves of atoms, of the area and of the length along z, with which atoms scale.

    A move of the cell is accepted with min(1, exp(-(dU + P dV - N kT ln V'/V) / kT)), and areas
    and lengths are tried evenly.

    Args:
        kind: how the cell varies.
        power: N.
        soft: eV/A^2, of the pairs.
        cell_thermal: kT of the moves of the cell, eV.
        cycles: the first 60 are left out.
    """
    random = np.random.default_rng(5)
    edges = np.tile([math.sqrt(AREA), math.sqrt(AREA), LENGTH], (REPLICAS, 1))
    fractions = random.random((REPLICAS, ATOMS, 3))
    fractions[:, 0] = 0.5
    energy = energies(edges, fractions, soft)
    areas, lengths = [], []

    def accept(edges_new: np.ndarray, fractions_new: np.ndarray, moves_cell: bool) -> None:
        nonlocal edges, fractions, energy
        new = energies(edges_new, fractions_new, soft)
        volumes = [np.abs(one.prod(-1)) for one in (edges, edges_new)]
        cost = new - energy + PRESSURE * (volumes[1] - volumes[0])
        if moves_cell:
            # A trial beyond nothing has no volume.
            inside = (edges_new > 0.0).all(-1)
            cost = cost / cell_thermal - power * np.log(volumes[1] / volumes[0])
        else:
            inside, cost = True, cost / THERMAL
        taken = inside & (np.log(random.random(REPLICAS)) < -cost)
        edges = np.where(taken[:, None], edges_new, edges)
        fractions = np.where(taken[:, None, None], fractions_new, fractions)
        energy = np.where(taken, new, energy)

    for cycle in range(cycles):
        shift = 0.7 * (random.random(fractions.shape) - 0.5)
        accept(edges, fractions + shift / edges[:, None], False)
        shift = 1.4 * (random.random(fractions.shape) - 0.5)
        one = random.integers(ATOMS, size=REPLICAS)[:, None] == np.arange(ATOMS)
        accept(edges, fractions + one[..., None] * shift / edges[:, None], False)
        area = edges[:, 0] * edges[:, 1]
        # Trials that leave no area are refused, as those of a negative length are.
        ratio = 1.0 + 24.0 * (random.random(REPLICAS) - 0.5) / area
        factor = np.where(ratio > 0.0, np.sqrt(np.abs(ratio)), -1.0)
        accept(edges * np.stack([factor, factor, np.ones_like(factor)], -1), fractions, True)
        if kind == "semiisotropic":
            shift = 5.0 * (random.random(REPLICAS) - 0.5)
            accept(edges + np.array([0.0, 0.0, 1.0]) * shift[:, None], fractions, True)
        if cycle >= 60:
            areas.append(edges[:, 0] * edges[:, 1])
            lengths.append(edges[:, 2])
    return Sampled(np.array(areas), np.array(lengths), edges, fractions)


def dynamics(kind: str, make: Callable[[str], Integrator]) -> Sampled:
    """The engine, from what Monte Carlo ends with, for several times the constants of the cell."""
    start = monte_carlo(kind)
    generator = np.random.default_rng(7)
    systems = [
        System(
            numbers=np.full(ATOMS, 10),
            positions=place * edge,
            cell=np.diag(edge),
            pbc=np.full(3, True),
        )
        for place, edge in zip(start.fractions, start.edges, strict=True)
    ]
    run = Simulation(
        systems,
        SoftAtoms(),
        make(kind),
        device="cpu",
        seed=11,
        chunk=20,
        temperature=KELVIN,
        restraints=PositionRestraints(
            [ATOMS * system for system in range(REPLICAS)], SPRING, 0.5 * start.edges
        ),
    )
    assert set(run.degrees_of_freedom) == {3 * ATOMS}
    own = run.integrator.tensors()
    if "strain.rate" in own:
        # At rest they would all begin in step with each other.
        rates = own["strain.rate"]
        shares = torch.tensor([2.0, 1.0], dtype=torch.float64)[: rates[0].numel()]
        width = torch.sqrt(3.0 / ((3 * ATOMS + 3) * shares)) / 200.0
        drawn = torch.tensor(generator.normal(size=(REPLICAS, len(shares)))) * width
        rates.copy_(drawn.view_as(rates))
        velocities = torch.tensor(generator.normal(size=(3, 2 * REPLICAS)))
        velocities /= torch.tensor([100.0, 200.0]).repeat_interleave(REPLICAS)
        velocities[0, :REPLICAS] /= math.sqrt(3 * ATOMS)
        velocities[0, REPLICAS:] /= math.sqrt(len(shares))
        own["chain.velocities"].copy_(velocities)
    conserved = run.observables().conserved_energy
    areas, lengths = [], []
    run.run(100)
    for _ in range(3):
        run.run(40)
        edges = run.state.cell.diagonal(dim1=-2, dim2=-1).numpy().copy()
        areas.append(edges[:, 0] * edges[:, 1])
        lengths.append(edges[:, 2])
        np.testing.assert_allclose(edges[:, 0], edges[:, 1], rtol=1e-12)
    if kind == "semiisotropic-fixed-z":
        assert (edges[:, 2] == start.edges[:, 2]).all()
    if "strain.rate" in own:
        drift = (run.observables().conserved_energy - conserved).abs()
        assert float(drift.mean()) < 0.05 * THERMAL
    return Sampled(np.array(areas), np.array(lengths), edges, start.fractions)


def deviations(measured: Sampled, wanted: Sampled) -> np.ndarray:
    """Differences of means and variances of area and length, in their standard errors.

    Replicas know nothing of each other, so each gives one number.
    """
    found = []
    for name in ("area", "length"):
        own, other = getattr(measured, name), getattr(wanted, name)
        if np.ptp(other) == 0.0:
            continue
        mean = other.mean()
        for power in (1, 2):
            both = [((one - (power - 1) * mean) ** power).mean(0) for one in (own, other)]
            error = math.sqrt(sum(one.var(ddof=1) / REPLICAS for one in both))
            found.append((both[0].mean() - both[1].mean()) / error)
    return np.array(found)


def rescaling(kind: str) -> Integrator:
    return StochasticCellRescaling(
        6.0, KELVIN, PRESSURE, tau=100.0, tau_p=300.0, compressibility=1e3, cell_dof=kind
    )


def martyna_tobias_klein(kind: str) -> Integrator:
    return MartynaTobiasKlein(6.0, KELVIN, PRESSURE, tau=100.0, tau_p=200.0, cell_dof=kind)


def exact(thermal: float, power: float) -> dict[str, float]:
    """Means and variances of an ideal gas in the cell, by quadrature over ln A and ln L."""
    area, length = np.meshgrid(*[np.linspace(-3.0, 3.0, 1201)] * 2, indexing="ij")
    a, z = AREA * np.exp(area), LENGTH * np.exp(length)
    enthalpy = PRESSURE * a * z + 0.5 * STIFF * (area**2 + length**2)
    weight = (power + 1.0) * (area + length) - enthalpy / thermal
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    means = {"area": (weight * a).sum(), "length": (weight * z).sum()}
    spreads = {
        f"{name}_variance": (weight * (one - means[name]) ** 2).sum()
        for name, one in (("area", a), ("length", z))
    }
    return means | spreads


def from_exact(gas: Sampled, wanted: dict[str, float]) -> np.ndarray:
    found = []
    for name in ("area", "length"):
        own = getattr(gas, name)
        squares = ((own - wanted[name]) ** 2).mean(0)
        for one, value in ((own.mean(0), wanted[name]), (squares, wanted[f"{name}_variance"])):
            found.append((one.mean() - value) / math.sqrt(one.var(ddof=1) / REPLICAS))
    return np.array(found)


def test_monte_carlo_of_an_ideal_gas_is_exact() -> None:
    """The spring takes the volume of its atom from the weight, which is V^(N - 1) then."""
    gas = monte_carlo("semiisotropic", soft=0.0)
    assert np.abs(from_exact(gas, exact(THERMAL, ATOMS - 1))).max() < 4.0
    for wrong in (exact(THERMAL, ATOMS), exact(THERMAL, ATOMS - 2), exact(1.1 * THERMAL, 5)):
        assert np.abs(from_exact(gas, wrong)).max() > 8.0


@pytest.mark.parametrize("make", [rescaling, martyna_tobias_klein])
@pytest.mark.parametrize("kind", KINDS)
def test_areas_and_lengths_are_those_of_monte_carlo(kind: str, make) -> None:
    measured = dynamics(kind, make)
    assert np.abs(deviations(measured, monte_carlo(kind))).max() < 4.0
    if kind == "semiisotropic":
        # What would be seen: a volume too few, and a cell at another temperature.
        for wrong in ({"power": ATOMS - 1.0}, {"cell_thermal": 1.25 * THERMAL}):
            planted = monte_carlo(kind, **wrong, cycles=160)
            assert np.abs(deviations(measured, planted)).max() > 4.0


@pytest.mark.parametrize("make", [rescaling, martyna_tobias_klein])
@pytest.mark.parametrize("kind", KINDS)
def test_only_x_and_y_share_a_factor(kind: str, make) -> None:
    system = leaning()
    run = free(system, make(kind))
    run.run(20)
    ratio = np.linalg.solve(system.cell, run.state.cell[0].numpy())
    assert abs(ratio[0, 0] - 1.0) > 1e-3
    assert (abs(ratio[2, 2] - 1.0) > 1e-3) == (kind == "semiisotropic")
    expected = np.diag([ratio[0, 0], ratio[0, 0], ratio[2, 2]])
    np.testing.assert_allclose(ratio, expected, atol=1e-12)


def leaning(gap: float = 0.0, pbc: tuple[bool, bool, bool] = (True, True, True)) -> System:
    """A box 8 A high whose third vector leans, below a gap."""
    system = box((6.0, 6.5, 8.0), 8)
    cell = np.array([[6.0, 0.0, 0.0], [1.0, 6.5, 0.0], [0.7, 0.3, 8.0 + gap]])
    return system.replace(cell=cell, pbc=np.array(pbc))


def free(system: System, integrator: Integrator) -> Simulation:
    wells = HarmonicWells(torch.zeros(len(system), 3, dtype=torch.float64), 0.0)
    return Simulation(system, wells, integrator, device="cpu", temperature=KELVIN)


@pytest.mark.parametrize(
    ("system", "kind", "words"),
    [
        (leaning(12.0), "semiisotropic", r"a gap of 1\d\.\d A along z, above 8 A, .*-fixed-z"),
        (leaning(pbc=(True, True, False)), "semiisotropic", "periodic directions alone"),
        (leaning(pbc=(True, False, True)), "semiisotropic-fixed-z", "periodic directions alone"),
        (leaning().replace(cell=leaning().cell[[2, 0, 1]]), "semiisotropic", "in the xy plane"),
        (leaning().replace(cell=leaning().cell[[0, 2, 1]]), KINDS[1], "in the xy plane"),
        (leaning(), "semi", "other ways than 'semi'|cannot vary 'semi'"),
    ],
)
def test_impossible_cells_are_refused_in_one_sentence(system: System, kind: str, words) -> None:
    makers = [rescaling, martyna_tobias_klein]
    if kind != "semi":
        makers.append(lambda kind: FIRE(cell_dof=kind))
    for make in makers:
        with pytest.raises(InputError, match=words) as refused:
            free(system, make(kind))
        assert "\n" not in str(refused.value)


def test_a_slab_in_a_vacuum_varies_with_z_fixed() -> None:
    """Periodic along z or not, and atoms that crossed the border of the cell make no gap."""
    for pbc in ((True, True, True), (True, True, False)):
        for make in (rescaling, martyna_tobias_klein):
            run = free(leaning(20.0, pbc), make("semiisotropic-fixed-z"))
            run.run(5)
            assert float(run.state.cell[0, 2, 2]) == 28.0
    crossed = leaning()
    places = crossed.positions + np.round(np.linspace(-3, 3, 8))[:, None] * crossed.cell[2]
    free(crossed.replace(positions=places), rescaling("semiisotropic"))


def test_a_minimum_under_pressure_is_that_of_both_lengths() -> None:
    """Without atoms near each other, c ln(A/A_0) = c ln(L/L_0) = -P A L."""
    apart = System(
        numbers=np.full(ATOMS, 10),
        positions=np.array([[x, y, z] for x in (0.0, 2.7) for y in (0.0, 2.7) for z in (0, 2.7)])[
            :ATOMS
        ],
        cell=np.diag([5.5, 5.4, 5.6]),
        pbc=np.full(3, True),
    )
    fire = FIRE(1e-9, cell_dof="semiisotropic", pressure=PRESSURE, stress_tolerance=1e-10)
    run = Simulation(apart, SoftAtoms(), fire, device="cpu")
    run.run(400)
    cell = run.state.cell[0].diagonal()
    area, length = float(cell[0] * cell[1]), float(cell[2])
    for strain in (math.log(area / AREA), math.log(length / LENGTH)):
        assert strain == pytest.approx(-PRESSURE * area * length / STIFF, rel=1e-6)
    assert float(cell[0] / cell[1]) == pytest.approx(5.5 / 5.4, rel=1e-12)


class Louder(StochasticCellRescaling):
    """With noise of 1.2 kT."""

    def coefficients(self, steps, values):
        found = super().coefficients(steps, values)
        return {
            name: value * math.sqrt(1.2) if name.startswith("noise") else value
            for name, value in found.items()
        }


def test_noise_of_another_temperature_is_seen() -> None:
    def louder(kind: str) -> Integrator:
        return Louder(
            6.0, KELVIN, PRESSURE, tau=100.0, tau_p=300.0, compressibility=1e3, cell_dof=kind
        )

    found = deviations(dynamics("semiisotropic", louder), monte_carlo("semiisotropic"))
    assert np.abs(found).max() > 4.0
