"""The calculator of ASE with several structures in turns: buffers and graphs that are kept."""

import copy
import pickle
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase_atoms import CountedCalculation, calculator, charged, ethanol, silicon, tensornet
from toys import LennardJones

import mdgraph.gpu.graphs
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.drivers.ase import calculator as buffers
from mdgraph.engine.calculation import as_evaluator
from mdgraph.errors import InputError
from mdgraph.io.structures import from_ase
from mdgraph.precision import precision_named

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
NAMES = ("energy", "energies", "forces", "stress")


def three() -> list[Atoms]:
    return [ethanol(), silicon(), molecule("H2O")]


def answers(one: MDGraphCalculator, atoms: Atoms) -> dict[str, Any]:
    one.calculate(atoms)
    return {name: one.results[name] for name in NAMES if name in one.results}


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has calculators keep fewer structures, or fewer atoms."""

    def keep(most: int = 12, room: float = 4096) -> None:
        pool = buffers.GraphPool
        monkeypatch.setattr(buffers, "GraphPool", lambda **options: pool(most, room=room))

    return keep


# Buffers


def test_structures_in_turns_keep_their_buffers(counted: type[CountedCalculation]) -> None:
    shared, structures = calculator(), three()
    for _ in range(3):
        for atoms in structures:
            assert_same(answers(shared, atoms), answers(calculator(), atoms))
    assert counted.made == 3 + 9  # one each in the fresh calculators


def test_atoms_that_moved_while_another_structure_was_evaluated_are_updated(
    counted: type[CountedCalculation],
) -> None:
    """Each is as if it had a calculator of its own, to the bit."""
    shared, structures = calculator(), three()
    own = [calculator() for _ in structures]
    for turn in range(4):
        for place in np.random.default_rng(turn).permutation(3):
            atoms = structures[place]
            found = answers(shared, atoms)
            assert_same(found, answers(own[place], atoms))
            fresh = calculator().get_potential_energy(atoms)
            assert found["energy"] == pytest.approx(fresh, abs=1e-10)
            atoms.rattle(0.05, seed=turn)
        structures[1].set_cell(structures[1].cell * 0.97, scale_atoms=turn < 2)
        structures[1].positions += 0.3
    assert counted.made == 3 + 3 + 12


def test_the_volume_is_that_of_the_structure_in_use() -> None:
    """The box of a molecule has no part in its energy, but in its stress."""
    shared = calculator()
    boxed = molecule("H2O", cell=np.diag([5.0, 6.0, 7.0]))
    for edge in (5.0, 8.0):
        boxed.set_cell(np.diag([edge, 6.0, 7.0]))
        assert_same(answers(shared, boxed), answers(calculator(), boxed))
        answers(shared, silicon())


def test_charges_have_buffers_of_their_own(counted: type[CountedCalculation]) -> None:
    shared, structures = calculator(charged()), [ethanol(), ethanol(), ethanol()]
    structures[1].info["charge"] = 1
    structures[2].info["charge"] = 0
    energies = [[shared.get_potential_energy(one) for one in structures] for _ in range(2)]
    assert energies[0] == energies[1]
    assert counted.made == 2
    assert energies[0][0] == energies[0][2]
    assert abs(energies[0][1] - energies[0][0]) > 1e-4


def test_periodic_directions_and_order_tell_structures_apart(
    counted: type[CountedCalculation],
) -> None:
    shared = calculator()
    slab, other = silicon(), silicon()
    slab.pbc = [True, True, False]
    other.numbers[1] = 6
    turned = other[::-1]
    for _ in range(2):
        for atoms in (slab, other, turned, silicon()):
            expected = calculator().get_potential_energy(atoms)
            assert shared.get_potential_energy(atoms) == pytest.approx(expected, abs=1e-10)
    assert counted.made == 4 + 8


def test_the_least_recently_used_buffers_are_dropped(
    counted: type[CountedCalculation], few: Callable[..., None]
) -> None:
    few(most=2)
    shared = calculator()
    one, two, other = three()
    for atoms, made in ((one, 1), (two, 2), (one, 2), (other, 3), (one, 3), (two, 4), (other, 5)):
        shared.calculate(atoms)
        assert counted.made == made


def test_large_structures_are_kept_alone(
    counted: type[CountedCalculation], few: Callable[..., None]
) -> None:
    few(room=10)
    shared = calculator()
    hydrogen, water, large = molecule("H2"), molecule("H2O"), ethanol() + ethanol()
    large.positions[9:] += 6.0
    made = []
    for atoms in (hydrogen, water, hydrogen, large, large, hydrogen, water, hydrogen):
        shared.calculate(atoms)
        made.append(counted.made)
    assert made == [1, 2, 2, 3, 3, 4, 5, 5]


def test_a_refused_structure_leaves_the_buffers_of_others(
    counted: type[CountedCalculation], few: Callable[..., None]
) -> None:
    few(most=3)
    shared, structures = calculator(), three()
    for atoms in structures:
        shared.calculate(atoms)
    wrong = molecule("CH4")
    wrong.positions[1] = wrong.positions[0] + [5e-4, 0.0, 0.0]
    with pytest.raises(InputError, match="closer"):
        shared.calculate(wrong)
    made = counted.made
    for atoms in structures:
        shared.calculate(atoms)
    assert counted.made == made


def test_a_structure_that_comes_back_is_checked_as_a_new_one() -> None:
    shared, (one, other, _) = calculator(), three()
    for atoms in (one, other):
        shared.calculate(atoms)
    one.positions[1] = one.positions[0] + [5e-4, 0.0, 0.0]
    with pytest.raises(InputError, match="closer"):
        shared.calculate(one)


class Short(LennardJones):
    """Runs out of memory where others than what it evaluates have some."""

    def __init__(self) -> None:
        super().__init__(0.0104, 3.4, 6.0)
        self.seen: list[Any] = []
        self.enough = True

    def forward(self, atoms: Any, pairs: Any) -> torch.Tensor:
        self.seen = [one for one in self.seen if one() is not None]
        if all(one() is not atoms.grouping for one in self.seen):
            self.seen.append(ref(atoms.grouping))
        if not self.enough or len(self.seen) > 1:
            raise torch.OutOfMemoryError
        return super().forward(atoms, pairs)


def test_buffers_of_others_are_dropped_when_memory_is_short() -> None:
    potential = Short()
    shared = calculator(potential)
    plain = LennardJones(0.0104, 3.4, 6.0)
    for atoms in three() * 2:
        assert_same(answers(shared, atoms), answers(calculator(plain), atoms))
    potential.enough = False
    with pytest.raises(torch.OutOfMemoryError):
        shared.calculate(ethanol())


def test_copies_of_a_calculator_have_no_buffers(counted: type[CountedCalculation]) -> None:
    shared, structures = calculator(), three()
    before = [answers(shared, atoms) for atoms in structures]
    others = (
        copy.copy(shared),
        copy.deepcopy(shared),
        pickle.loads(pickle.dumps(calculator(tensornet()))),
    )
    for other in others:
        counted.made = 0
        for _ in range(2):
            for atoms, expected in zip(structures, before, strict=True):
                assert_same(answers(other, atoms), expected)
        assert counted.made == 3
    counted.made = 0
    answers(shared, structures[0])
    assert counted.made == 0


def test_release_frees_all_buffers_at_once() -> None:
    """At once, not when Python next looks for cycles."""
    shared, structures = calculator(), three()
    kept = []
    for atoms in structures:
        shared.calculate(atoms)
        kept.append(ref(shared._buffers.place(atoms)[0].state))
    assert all(one() is not None for one in kept)
    shared._buffers.release_for([from_ase(structures[0])])
    assert all(one() is None for one in kept)


# Graphs


class ReplayedOnHost:
    """Stands for a captured graph where there is no CUDA."""

    made: list["ReplayedOnHost"]

    def __init__(self, function: Callable[[], None], device: torch.device, pool: Any) -> None:
        self.pool = "memory" if pool is None else pool
        self.given = pool
        self.replays = 0
        self._function = function
        ReplayedOnHost.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        self._function()


def test_graphs_are_kept_and_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdgraph.gpu.graphs, "CapturedGraph", ReplayedOnHost)
    monkeypatch.setattr(ReplayedOnHost, "made", [], raising=False)
    precision = precision_named("double")
    evaluator = as_evaluator(tensornet(), precision, CPU)
    kept = buffers.Buffers(evaluator, CPU, precision, None)
    structures = three()
    for turn in range(4):
        for atoms in structures:
            energy = kept.place(atoms)[0].computed(graphed=True).energy[0]
            expected = calculator().get_potential_energy(atoms)
            assert energy == pytest.approx(expected, abs=1e-10)
            atoms.rattle(0.02, seed=turn)
    graphs = ReplayedOnHost.made
    assert [one.given for one in graphs] == [None, "memory", "memory"]
    assert [one.replays for one in graphs] == [3, 3, 3]


@pytest.mark.gpu
def test_graphs_replayed_in_turns_agree_with_the_host() -> None:
    there, here = calculator(device="cuda"), calculator()
    structures = three()
    for turn in range(5):
        for place in np.random.default_rng(turn).permutation(3):
            atoms = structures[place]
            found, expected = answers(there, atoms), answers(here, atoms)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9)
            atoms.rattle(0.05, seed=turn)
        structures[1].set_cell(structures[1].cell * 0.95, scale_atoms=True)
    memory = there._buffers._pool.memory
    assert 3 <= memory.captures <= 6  # again where a list grew
