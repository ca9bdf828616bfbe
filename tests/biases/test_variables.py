"""Values, gradients and strain derivatives of collective variables."""

import math

import numpy as np
import pytest
import torch
from toys import LennardJones

from mdgraph.biases import (
    RMSD,
    Angle,
    CellVolume,
    CollectiveVariable,
    Combination,
    CoordinationNumber,
    Dihedral,
    Distance,
    HarmonicBias,
    Position,
    PotentialEnergy,
    RadiusOfGyration,
)
from mdgraph.biases.applied import AppliedBiases
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.state import State
from mdgraph.system import System

CELLS = (
    np.eye(3) * 12.0,
    np.array([[10.0, 0.0, 0.0], [4.0, 9.0, 0.0], [3.0, -3.0, 11.0]]),
    np.diag([10.0, 9.0, 12.0]),
    np.zeros((3, 3)),
)
PBC = ([True] * 3, [True] * 3, [True, False, True], [False] * 3)

REFERENCE = np.random.default_rng(0).normal(size=(5, 3))

VARIABLES: dict[str, CollectiveVariable] = {
    "distance": Distance([0, [1, 2, 3]]),
    "angle": Angle([0, "4-5", 6]),
    "dihedral": Dihedral([0, 3, [5, 7], 9]),
    "another": Dihedral([1, 2, 3, 4]),
    "position": Position([1, 2], "x"),
    "separation": Position("index 0:3", [1.0, 2.0, 3.0], origin=7),
    "coordination": CoordinationNumber([[0, 1, 2], [2, 3, 4, 5]], 2.0),
    "gyration": RadiusOfGyration([0, 1, 2, 5, 8]),
    "deviation": RMSD([0, 1, 2, 3, 4], REFERENCE),
    "difference": Combination({"distance": 1.0, "gyration": -2.0}),
    "turns": Combination({"dihedral": 1.0, "another": -2.0}),
}


def cluster(number: int) -> System:
    """Atoms near each other, some of them taken to other images."""
    generator = np.random.default_rng(number)
    size = 12 + number
    places = generator.normal(scale=1.5, size=(size, 3))
    images = generator.integers(-1, 2, (size, 3)) @ (np.array(PBC[number])[:, None] * CELLS[number])
    return System(
        numbers=generator.integers(1, 9, size),
        positions=places + images,
        cell=CELLS[number],
        pbc=PBC[number],
    )


def applied(name: str, systems: list[System], **more: CollectiveVariable) -> AppliedBiases:
    """A spring on one variable, which makes its gradient a force."""
    state = State(systems)
    springs = [HarmonicBias(name, centre=0.3, stiffness=2.0)]
    return AppliedBiases(VARIABLES | more, springs, systems, state)


def energies(biases: AppliedBiases, state: State) -> torch.Tensor:
    """Energies (S,) of the biases alone; writes forces and virial of them alone."""
    for tensor in (state.energy, state.energies, state.forces, state.virial):
        tensor.zero_()
    biases.add_(state)
    return state.energy.clone()


def check_derivatives(name: str, systems: list[System], **more: CollectiveVariable) -> None:
    """Forces and virial are the differences of energies."""
    state = State(systems)
    springs = [HarmonicBias(name, centre=0.3, stiffness=2.0)]
    biases = AppliedBiases(VARIABLES | more, springs, systems, state)
    energies(biases, state)
    forces, virial = state.forces.clone(), state.virial.clone()
    positions, cell = state.positions.clone(), state.cell.clone()
    # One atom of every system at a time, as systems know nothing of each other.
    step, differences = 1e-5, torch.zeros_like(forces)
    for atom in range(10):
        rows = state.grouping.start + atom
        for axis in range(3):
            ends = []
            for sign in (1.0, -1.0):
                state.positions.copy_(positions)
                state.positions[rows, axis] += sign * step
                ends.append(energies(biases, state))
            differences[rows, axis] = -(ends[0] - ends[1]) / (2.0 * step)
    assert torch.allclose(forces, differences, atol=1e-6 * max(1.0, float(forces.abs().max())))
    strained = torch.zeros_like(virial)
    for row in range(3):
        for column in range(3):
            ends = []
            for sign in (1.0, -1.0):
                strain = torch.eye(3, dtype=torch.float64)
                strain[row, column] += sign * step
                state.positions.copy_(positions @ strain)
                state.cell.copy_(cell @ strain)
                ends.append(energies(biases, state))
            strained[:, row, column] = -(ends[0] - ends[1]) / (2.0 * step)
    assert torch.allclose(virial, strained, atol=1e-6 * max(1.0, float(virial.abs().max())))


@pytest.mark.parametrize("name", VARIABLES)
def test_forces_and_virial_are_derivatives_in_any_cell(name: str) -> None:
    check_derivatives(name, [cluster(number) for number in range(4)])


SKEWED = ([[1, 0, 0], [3, 1, 0], [0, 0, 1]], [[1, 0, 0], [-4, 1, 0], [2, -3, 1]])
"""Cells of the same lattice whose nearest images lie beyond the images around a rounded one."""


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("number", [0, 1])
def test_long_skewed_cells_of_a_lattice_have_the_values_of_the_compact_one(
    name: str, number: int
) -> None:
    compact = cluster(number)
    skewed = [compact.replace(cell=np.array(turn) @ compact.cell) for turn in SKEWED]
    systems = [compact, *skewed]
    biases, state = applied(name, systems), State(systems)
    biases.add_(state)
    found = biases.values[list(VARIABLES).index(name)]
    assert torch.allclose(found, found[:1].expand(3), atol=1e-9)


def test_the_volume_has_a_virial_and_no_forces() -> None:
    check_derivatives("volume", [cluster(0), cluster(1)], volume=CellVolume())
    with pytest.raises(InputError, match=r"volume.*there is no volume"):
        applied("volume", [cluster(3)], volume=CellVolume())


def test_the_energy_scales_forces_and_virial() -> None:
    potential = LennardJones(0.01, 2.0, 4.0)
    systems = [cluster(0), cluster(1)]
    energy = {"energy": PotentialEnergy()}

    def calculated(**options) -> Calculation:
        made = Calculation(systems, potential, device="cpu", precision="double", **options)
        made.compute()
        return made

    plain = calculated().state
    spring = HarmonicBias("energy", centre=plain.energy[0].item() - 0.1, stiffness=0.5)
    biased = calculated(variables=energy, biases=[spring]).state
    slope = 0.5 * (plain.energy - plain.energy[0] + 0.1)
    factor = (1.0 + slope)[plain.grouping.index, None]
    assert torch.allclose(biased.forces, factor * plain.forces)
    assert torch.allclose(biased.virial, (1.0 + slope)[:, None, None] * plain.virial)
    assert torch.allclose(biased.energy, plain.energy + slope**2)
    assert torch.allclose(biased.grouping.sum(biased.energies), biased.energy)


def values(variables: dict[str, CollectiveVariable], system: System) -> dict[str, float]:
    state = State([system])
    biases = AppliedBiases(variables, [], [system], state)
    biases.add_(state)
    return {name: float(value) for name, value in biases.columns().items()}


def test_values_of_simple_figures() -> None:
    square = System(
        numbers=[6, 6, 6, 6, 1],
        positions=[[1.0, 0, 0], [0, 0, 0], [0, 1.0, 0], [0, 1.0, 2.0], [0, 0, 4.5]],
        masses=[12.0, 12.0, 12.0, 12.0, 1.0],
    )
    known = values(
        {
            "r": Distance([1, 3]),
            "a": Angle([0, 1, 2]),
            "t": Dihedral([0, 1, 2, 3]),
            "z": Position(4),
            "n": CoordinationNumber([[0], [1, 2]], 1.0),
            "g": RadiusOfGyration([0, 1]),
            "centre": Distance([[0, 1], [1, 0]]),
            "mirrored": Dihedral([3, 2, 1, 0]),
        },
        square,
    )
    assert known["r"] == pytest.approx(math.sqrt(5.0))
    assert known["a"] == pytest.approx(0.5 * math.pi)
    # Looking along the middle bond, the last atom is anticlockwise of the first: negative.
    assert known["t"] == pytest.approx(-0.5 * math.pi)
    assert known["mirrored"] == pytest.approx(known["t"])
    assert known["z"] == pytest.approx(4.5)
    assert known["n"] == pytest.approx(0.5 + 1.0 / (1.0 + 2.0**3))
    assert known["g"] == pytest.approx(0.5)
    assert known["centre"] == pytest.approx(0.0)


def test_the_rmsd_is_that_of_the_best_rotation() -> None:
    generator = np.random.default_rng(3)
    reference = generator.normal(size=(7, 3))
    angle, axis = 2.5, np.array([1.0, 2.0, -1.0]) / math.sqrt(6.0)
    cross = np.cross(np.eye(3), axis)
    rotation = np.eye(3) + math.sin(angle) * cross + (1.0 - math.cos(angle)) * cross @ cross
    turned = System(numbers=[6] * 7, positions=reference @ rotation + [3.0, -2.0, 9.0])
    everything = list(range(7))
    assert values({"r": RMSD(everything, reference)}, turned)["r"] < 1e-7
    noisy = turned.positions + generator.normal(scale=0.3, size=(7, 3))
    first = reference - reference.mean(0)
    second = noisy - noisy.mean(0)
    u, singular, v = np.linalg.svd(first.T @ second)
    singular[2] *= np.sign(np.linalg.det(u @ v))
    known = math.sqrt((np.sum(first**2) + np.sum(second**2) - 2.0 * singular.sum()) / 7)
    found = values({"r": RMSD(everything, reference)}, turned.replace(positions=noisy))
    assert found["r"] == pytest.approx(known, rel=1e-10)


def test_a_spring_holds_a_dihedral_across_the_end_of_its_period() -> None:
    places = [[1.0, 0, 0], [0, 0, 0], [0, 0, 1.0], [math.cos(3.0), math.sin(3.0), 1.0]]
    system = System(numbers=[6] * 4, positions=places)
    torsion = {"t": Dihedral([0, 1, 2, 3])}
    value = values(torsion, system)["t"]
    state = State([system])
    near = HarmonicBias("t", centre=-value, stiffness=1.0)
    AppliedBiases(torsion, [near], [system], state).add_(state)
    across = 2.0 * (math.pi - abs(value))
    assert float(state.energy) == pytest.approx(0.5 * across**2)


WRONG = {
    "an atom that is not there": (Distance([0, 99]), "names 99, and the structure has the atoms"),
    "one atom twice": (RadiusOfGyration([1, 1]), "names 1 twice"),
    "an empty selection": (Position("element U"), "selects none"),
    "one atom alone": (RadiusOfGyration([1]), "2 atoms at least"),
    "another reference": (RMSD([0, 1, 2, 3], REFERENCE), "5 places for 4 atoms"),
    "a name that is not there": (Combination({"b": 1.0}), "not there"),
    "itself": (Combination({"a": 1.0}), "part of itself"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_structure_has_is_refused_in_a_sentence(case: str) -> None:
    variable, words = WRONG[case]
    with pytest.raises(InputError, match=words) as error:
        values({"a": variable}, cluster(0))
    assert str(error.value).startswith(("The variable a", "The combination a"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Distance([0]),
        lambda: Distance("0-1"),
        lambda: Distance(["0-2", "0-2"]),
        lambda: Dihedral([0, 1, 2, np.int64(2)]),
        lambda: Position(0, "w"),
        lambda: Position(0, [0.0, 0.0, 0.0]),
        lambda: Distance([0, []]),
        lambda: CoordinationNumber([0, 1], -1.0),
        lambda: CoordinationNumber([0, 1], 1.0, 1),
        lambda: RMSD([0, 1, 2], [[0, 0, 0], [0, 0, 1], [0, 0, 2]]),
        lambda: Combination({}),
    ],
)
def test_what_no_variable_can_be_is_refused_at_once(make) -> None:
    with pytest.raises(InputError):
        make()


def test_combinations_are_of_one_unit_and_of_whole_turns() -> None:
    several = VARIABLES | {"mixed": Combination({"distance": 1.0, "angle": 1.0})}
    with pytest.raises(InputError, match="several units"):
        values(several, cluster(0))
    part = VARIABLES | {"part": Combination({"dihedral": 0.5})}
    with pytest.raises(InputError, match="whole"):
        values(part, cluster(0))
