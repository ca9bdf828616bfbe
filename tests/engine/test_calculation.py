"""Results on the host, and the buffers they came through: kept, interrupted, refused."""

import os
import signal
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import pytest
import torch
from ase.build import bulk
from ase_atoms import calculator
from prepared import ended
from toys import LennardJones

from mdgraph.drivers.openmmml.force import PotentialForce, model_named
from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import HostInputs
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.gpu.graphs import GraphMemory, GraphPool
from mdgraph.io.structures import from_ase
from mdgraph.neighbors import NeighborList
from mdgraph.precision import precision_named
from mdgraph.state import State
from mdgraph.system import System

ARGON = LennardJones(0.0104, 3.4, 5.5)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_results_are_copies_that_later_evaluations_leave_alone(precision: str) -> None:
    atoms = bulk("Ar", a=5.1, cubic=True)
    atoms.rattle(0.1, seed=0)
    atoms.calc = calculator(ARGON, precision=precision)
    names = ("forces", "energies", "stress")
    kept = [atoms.calc.get_property(name, atoms, allow_calculation=True) for name in names]
    held = dict(atoms.calc.results)
    before = [one.copy() for one in kept]
    atoms.rattle(0.3, seed=1)
    atoms.get_potential_energy()
    for name, one, was in zip(names, kept, before, strict=True):
        np.testing.assert_array_equal(one, was)
        np.testing.assert_array_equal(held[name], was)
        assert np.abs(atoms.calc.results[name] - was).max() > 1e-4


def test_a_cell_is_placed_again_where_that_was_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    atoms = bulk("Ar", a=5.1, cubic=True)
    atoms.calc = calculator(ARGON)
    atoms.get_potential_energy()
    atoms.set_cell(1.05 * atoms.cell, scale_atoms=True)

    def broken_off(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(HostInputs, "place", broken_off)
        with pytest.raises(KeyboardInterrupt):
            atoms.get_potential_energy()
    expected = calculator(ARGON).get_potential_energy(atoms)
    assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-12)


class Full(AutogradEvaluator):
    """On a device with memory for one state, of which it takes most when it first evaluates."""

    def __init__(self) -> None:
        super().__init__(ARGON)
        self.states: weakref.WeakSet[State] = weakref.WeakSet()

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        self.states.add(state)
        if len(self.states) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().evaluate_(state, lists)


def test_shapes_make_room_for_the_first_evaluation_of_another() -> None:
    points = 4.0 * np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)
    free = [System([18] * size, points[:size]) for size in (3, 5, 4, 6) * 2]
    systems = free + [one.replace(cell=np.eye(3) * 14.0, pbc=True) for one in free]
    graphs: GraphPool[Calculation] = GraphPool(
        memory=GraphMemory(lambda function, device, pool: None)
    )
    precision = precision_named("double")
    batches = Batches(Full(), torch.device("cpu"), precision, graphs=graphs, atoms=24)
    found = dict(batches.evaluate(systems, [""] * 16))
    assert graphs.creations == 2
    assert len(graphs) == 1
    for place in range(8):
        assert found[place].energy == pytest.approx(found[place + 8].energy, rel=1e-12)


class Looked:
    """What OpenMM hands over; nm."""

    def __init__(self, positions: np.ndarray) -> None:
        self._value = positions

    def getPositions(self, asNumpy: bool) -> "Looked":  # noqa: N802
        return self


def test_a_potential_of_nan_is_no_disagreement_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, tiny_potential: Path
) -> None:
    model = model_named(str(tiny_potential), "cpu", "mixed", "fused", "from checkpoint", True)
    force = PotentialForce(model, [8, 1, 1], False, 0.0)
    evaluator = force.evaluator()
    evaluate = type(evaluator).evaluate_

    def spoiled(own: Any, state: State, lists: Sequence[NeighborList]) -> None:
        evaluate(own, state, lists)
        state.forces.fill_(np.nan)

    monkeypatch.setattr(type(evaluator), "evaluate_", spoiled)
    water = 0.1 * np.array([[0.0, 0.0, 0.0], [0.76, 0.59, 0.0], [-0.76, 0.59, 0.0]])
    with pytest.raises(InputError, match="not finite"):
        force(Looked(water))


def test_a_new_process_reads_a_system_from_xml(
    processes: Any, tiny_potential: Path, tmp_path: Path
) -> None:
    """OpenMM dies of an error in that."""
    model = model_named(str(tiny_potential), "cpu", "mixed", "auto", "from checkpoint", False)
    system = openmm.System()
    system.addForce(openmm.PythonForce(PotentialForce(model, [8, 1, 1], False, 0.0)))
    path = tmp_path / "system.xml"
    path.write_text(openmm.XmlSerializer.serialize(system))
    code = (
        "import sys, openmm; text = open(sys.argv[1]).read(); "
        "print(openmm.XmlSerializer.deserialize(text).getNumForces())"
    )
    done = ended(processes, ["-c", code, path])
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_leaves_the_pinned_memory_of_its_parent() -> None:
    """Its pages may be shared; a child that wrote there would move the parent's atoms."""
    system = from_ase(bulk("Ar", a=5.1, cubic=True))
    calculation = Calculation([system], ARGON, device="cuda", precision="double")
    calculation.place(system.positions)
    calculation.computed()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            calculation.place(system.positions + 1.0)
        except RuntimeError as error:
            os._exit(0 if "forked subprocess" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.gpu(2)
def test_results_are_awaited_whichever_device_is_current() -> None:
    system = from_ase(bulk("Ar", a=5.1, cubic=True))
    calculation = Calculation([system], ARGON, device="cuda", precision="double")
    for _ in range(2):
        expected = float(calculation.computed(graphed=True).energy[0])
    load = torch.rand(8192, 8192, device="cuda")
    for _ in range(50):
        load = load @ load
    calculation.state.energy.add_(1.0)
    with torch.cuda.device(1):
        assert calculation.answer().energy[0] == expected + 1.0
