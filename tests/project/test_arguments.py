"""Wrong arguments of the Python interface end in one sentence, and ASE's Atoms are taken."""

import math
from collections.abc import Callable
from typing import Any

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.constraints import FixAtoms, FixBondLength
from toys import LennardJones

from mdgraph import load
from mdgraph.checkpoints import convert, load_domain, save
from mdgraph.drivers.ase import MDGraphCalculator, VelocityVerlet, relax
from mdgraph.engine import Averages, MeanSquaredDisplacement, RadialDistributions, Simulation
from mdgraph.engine import VelocityVerlet as Verlet
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.system import System


class Nothing:
    """What is of no use to anybody; its name is the same in every process."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()

ARGON = LennardJones(0.01, 2.0, 4.0)


def pair() -> Atoms:
    return Atoms("Ar2", [[0, 0, 0], [2.5, 0, 0]])


def simulation(**changes: Any) -> Simulation:
    system = System(numbers=[18, 18], positions=pair().positions)
    options: dict[str, Any] = {
        "system": system,
        "potential": ARGON,
        "integrator": Verlet(1.0),
        "device": "cpu",
    }
    return Simulation(**(options | changes))


WRONG: tuple[Any, ...] = (None, "a", 1.5, -1, 10**30, 1e20, float("nan"), float("inf"))
NO_NUMBERS: tuple[Any, ...] = ("a", [], {}, 1j, NOTHING, int, np.zeros((2, 2)), torch.zeros(3))


@pytest.mark.parametrize("seed", [*WRONG, *NO_NUMBERS, True], ids=repr)
def test_invalid_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(InputError, match=r"seed is .* must be a whole number"):
        simulation(seed=seed)


def test_numpy_integers_are_seeds() -> None:
    assert int(simulation(seed=np.int32(7)).state.seed) == 7


@pytest.mark.parametrize("system", [*WRONG, NOTHING, int, [None], [1, 2], b"x"], ids=repr)
def test_objects_that_are_not_systems_are_refused(system: Any) -> None:
    with pytest.raises(InputError, match="needs a System or ASE's Atoms"):
        simulation(system=system)


@pytest.mark.parametrize("integrator", [*WRONG, Verlet, NOTHING, []], ids=repr)
def test_objects_that_are_not_integrators_are_refused(integrator: Any) -> None:
    with pytest.raises(InputError, match="is not an integrator; give one such as"):
        simulation(integrator=integrator)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"precision": []}, "precision is of type list; it must be a text"),
        ({"device": 10**30}, "device is 1.*; it must be a text"),
        ({"graph": np.zeros(2)}, "graph is"),
        ({"evaluator": np.zeros(2)}, "evaluator is of type ndarray; it must be a text."),
        ({"maximum_temperature": "a"}, "maximum_temperature is 'a'; it must be a number or None."),
        ({"maximum_temperature": 10**400}, "maximum_temperature is 1"),
        ({"fixed": 1.5}, "fixed is 1.5; it must be a list"),
        ({"fixed": np.zeros((2, 2))}, "not indices of atoms"),
        ({"fixed": [True, False]}, "not indices of atoms"),
        ({"fixed": [7]}, "Atoms 7 are to be fixed"),
        ({"restraints": 3}, "it must be of type PositionRestraints or None"),
        ({"observe": None}, "observe is None; it must be a list."),
        ({"observe": [1]}, "no int"),
    ],
)
def test_invalid_options_of_a_simulation_are_refused(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        simulation(**options)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda value: MeanSquaredDisplacement(window=value),
        lambda value: RadialDistributions(bins=value),
        lambda value: RadialDistributions(maximum=value),
        lambda value: Averages(quantities=[value]),
        lambda value: MDGraphCalculator(ARGON, device="cpu", charge=value).calculate(pair()),
        lambda value: VelocityVerlet(with_calculator(), value).run(1),
        lambda value: relax([with_calculator()], atoms_at_once=value),
        lambda value: relax(value if isinstance(value, list) else [value]),
    ],
)
def test_invalid_arguments_of_other_functions_are_refused(
    call: Callable[[Any], object], value: Any
) -> None:
    with pytest.raises(InputError):
        call(value)


def with_calculator() -> Atoms:
    atoms = pair()
    atoms.calc = MDGraphCalculator(ARGON, device="cpu")
    return atoms


@pytest.mark.parametrize(
    "call", [load, load_domain, read_systems, lambda value: convert("water-pbe0", value)]
)
@pytest.mark.parametrize("value", [None, 5, 1.5, NOTHING, b"x", ["a"]], ids=repr)
def test_names_that_are_none(call: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(InputError, match=r"by .* not by|by its path or name, not by"):
        call(value)


def test_objects_that_are_not_potentials_are_not_saved(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="it must be of type PotentialModule"):
        save(5, tmp_path / "model.safetensors")  # type: ignore[arg-type]


class TestAtoms:
    def test_they_bring_all_that_a_system_has(self) -> None:
        atoms = ase.build.bulk("Ar", cubic=True, a=5.4)
        atoms.set_masses([40.0] * 4)
        atoms.info["charge"] = 0
        atoms.set_velocities(np.full((4, 3), 0.01) / units.fs)
        run = simulation(system=atoms)
        assert run.state.pbc.all()
        assert torch.allclose(run.state.cell[0], torch.tensor(np.array(atoms.cell)))
        assert torch.allclose(run.state.velocities, torch.tensor(0.01, dtype=torch.float64))
        assert (run.state.masses == 40.0).all()
        run.run(3)

    def test_several_go_together_with_systems(self) -> None:
        run = simulation(system=[pair(), System(numbers=[18], positions=[[0, 0, 0]])])
        assert run.state.grouping.sizes == (2, 1)

    def test_constraints_are_kept_or_refused(self) -> None:
        atoms = pair()
        atoms.set_constraint(FixAtoms([0]))
        run = simulation(system=atoms)
        run.run(3)
        np.testing.assert_array_equal(run.state.positions[0], atoms.positions[0])
        assert (run.state.positions[1].numpy() != atoms.positions[1]).any()
        atoms.set_constraint(FixBondLength(0, 1))
        with pytest.raises(InputError, match="the constraints FixBondLengths, and a Simulation"):
            simulation(system=atoms)

    def test_one_is_relaxed(self) -> None:
        atoms = with_calculator()
        assert relax(atoms, fmax=0.001).tolist() == [True]
        assert atoms.get_distance(0, 1) != 2.5


def test_a_run_without_a_temperature_limit() -> None:
    run = Simulation(pair(), ARGON, Verlet(1.0), device="cpu", maximum_temperature=math.inf)
    assert run.run(2) == 2
