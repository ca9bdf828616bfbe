"""Structures evaluated many at once are what each of them is alone; shapes share graphs."""

import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from random_networks import TENSORNET, TENSORNET2, crystal, molecule, network, spread_atoms
from recording import RecordedGraph
from toys import LennardJones

from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches, by_key, common_shape, padding
from mdgraph.engine.calculation import EvaluationResult, HostOutputs
from mdgraph.engine.checks import check_lengths
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu.graphs import GraphMemory, GraphPool
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.torch_builder import TorchBuilder
from mdgraph.precision import precision_named
from mdgraph.state import BatchCapacity, State
from mdgraph.system import System, SystemArrays, concatenate_systems

CPU = torch.device("cpu")
DOUBLE = precision_named("double")


def recorded(function: Callable[[], None], device: torch.device, pool: Any) -> RecordedGraph:
    """A graph on the CPU, which refuses what a capture forbids."""
    function()
    return RecordedGraph(function)


class Repeated:
    """A graph that is the function itself."""

    pool = None

    def __init__(self, function: Callable[[], None], device: torch.device, pool: Any) -> None:
        self.replay = function


def found_in(batches: Batches, systems: list[System]) -> list[EvaluationResult]:
    names = [f"structure {place}" for place in range(len(systems))]
    found = dict(batches.evaluate(systems, names))
    assert sorted(found) == list(range(len(systems)))
    return [found[place] for place in range(len(systems))]


def alone(evaluator: Evaluator, system: System) -> State:
    one = Calculation([system], evaluator, device=CPU, precision=DOUBLE, skin=0.0)
    one.compute()
    return one.state


def check_as_alone(result: EvaluationResult, evaluator: Evaluator, system: System) -> None:
    state = alone(evaluator, system)
    np.testing.assert_allclose(result.energy, float(state.energy[0]), rtol=1e-12)
    np.testing.assert_allclose(result.energies, state.energies, rtol=1e-12)
    for found, wanted in ((result.forces, state.forces), (result.virial, state.virial[0])):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))


def drops(count: int, largest: int = 60, seed: int = 0) -> list[System]:
    """Clusters of two kinds of atoms, each of another size."""
    rng = np.random.default_rng(seed)
    found = []
    for size in rng.integers(5, largest, count).tolist():
        points = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)
        positions = 3.7 * points[:size] + rng.normal(scale=0.05, size=(size, 3))
        found.append(System(rng.choice([10, 18], size), positions))
    return found


ARGON = LennardJones(0.01, 3.4, 6.0)


class TestGraphPool:
    def test_least_recently_used_goes(self) -> None:
        pool: GraphPool[str] = GraphPool(2)
        made = []

        def make(name: str) -> str:
            return pool.get(name, lambda: made.append(name) or name)

        for name in "abacab":
            assert make(name) == name
        assert made == ["a", "b", "c", "b"]
        assert pool.creations == 4
        assert len(pool) == 2
        assert "c" not in pool

    def test_captures_share_one_memory(self) -> None:
        given = []
        alive: weakref.WeakSet[Any] = weakref.WeakSet()

        class Graph:
            def __init__(self, pool: Any) -> None:
                # CUDA captures into the memory of other graphs only while one of them is there.
                assert pool is None or alive
                self.pool = pool or "first"
                given.append(pool)
                alive.add(self)

        memory = GraphMemory(lambda function, device, pool: Graph(pool))
        for _ in range(3):
            memory.capture(lambda: None, CPU)
        assert given == [None, "first", "first"]
        assert memory.captures == 3

    def test_a_device_that_is_full_loses_shapes_one_by_one(self) -> None:
        pool: GraphPool[str] = GraphPool()

        def make() -> str:
            if len(pool) > room:
                raise torch.OutOfMemoryError
            return "made"

        room = 1
        for name in "abc":
            assert pool.get(name, make) == "made"
        assert [name in pool for name in "abc"] == [False, True, True]
        room = -1
        with pytest.raises(torch.OutOfMemoryError):
            pool.get("d", make)

    def test_what_cannot_be_captured_does_not_count(self) -> None:
        memory = GraphMemory(lambda function, device, pool: None)
        assert memory.capture(lambda: None, CPU) is None
        assert memory.captures == 0


@pytest.fixture
def recordable_lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists by torch operations, as the stand-in for a graph records no compiled loops."""
    if not hasattr(request.node, "callspec") or request.node.callspec.params.get("graphed", True):
        monkeypatch.setattr("mdgraph.neighbors.list.builder_class", lambda _: TorchBuilder)


@pytest.mark.usefixtures("recordable_lists")
class TestBatches:
    @pytest.mark.parametrize("graphed", [True, False])
    @pytest.mark.parametrize(
        "settings",
        [
            TENSORNET | {"charge_factor": True, "layers": 1},
            TENSORNET2 | {"coulomb": {"cutoff": 4.0}},
        ],
        ids=["tensornet", "tensornet2"],
    )
    def test_are_what_each_structure_is_alone(
        self, settings: dict[str, Any], graphed: bool
    ) -> None:
        systems = [molecule(n, charge=0.5 * (n % 3), seed=n) for n in (3, 7, 5, 8, 4, 6, 9, 7)]
        systems[3:3] = [crystal(n, charge=-0.1 * n, seed=n) for n in (4, 6, 3, 5, 6, 4)]
        self._check(settings, systems, graphed, kinds=2)

    def test_the_host_prepares_a_batch_while_the_one_before_is_evaluated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        for owner, name in ((Calculation, "prepared"), (HostOutputs, "wait")):
            work = getattr(owner, name)

            def noted(self: Any, *rest: Any, name: str = name, work: Any = work) -> Any:
                done.append(name)
                return work(self, *rest)

            monkeypatch.setattr(owner, name, noted)
        evaluator = AutogradEvaluator(network(**TENSORNET))
        graphs = GraphPool[Calculation](memory=GraphMemory(recorded))
        systems = [molecule(5, seed=seed) for seed in range(16)]
        batches = Batches(evaluator, CPU, DOUBLE, graphs=graphs, atoms=24)
        for result, system in zip(found_in(batches, systems), systems, strict=True):
            check_as_alone(result, evaluator, system)
        # The first makes the buffers, so the second is prepared when its turn comes.
        assert done == ["wait", "prepared", *["prepared", "wait"] * (batches.batches - 2), "wait"]

    def test_with_all_pairs_of_every_molecule(self) -> None:
        systems = [molecule(n, charge=0.5 * (n % 3), seed=n) for n in (3, 7, 5, 8, 4, 6, 9, 7)]
        self._check(TENSORNET2 | {"coulomb": {"cutoff": None}}, systems, graphed=True, kinds=1)

    @staticmethod
    def _check(settings: dict[str, Any], systems: list[System], graphed: bool, kinds: int) -> None:
        evaluator = AutogradEvaluator(network(**settings))
        # The recorder does not follow views that autograd changes in place in TensorNet2.
        capture = Repeated if "architecture" in settings else recorded
        graphs = GraphPool[Calculation](memory=GraphMemory(capture)) if graphed else None
        batches = Batches(evaluator, CPU, DOUBLE, graphs=graphs, atoms=24)
        results = found_in(batches, systems)
        for result, system in zip(results, systems, strict=True):
            check_as_alone(result, evaluator, system)
        assert batches.kinds == kinds
        if graphs is not None:
            assert graphs.memory.captures == graphs.creations == kinds

    def test_of_many_structures_capture_few_graphs(self) -> None:
        systems = drops(60)
        box = np.eye(3) * 16.0
        systems += [one.replace(cell=box, pbc=True) for one in drops(60, seed=1)]
        graphs: GraphPool[Calculation] = GraphPool(memory=GraphMemory(recorded))
        batches = Batches(AutogradEvaluator(ARGON), CPU, DOUBLE, graphs=graphs, atoms=256)
        found_in(batches, systems)
        assert graphs.memory.captures <= 4
        assert batches.batches >= 12
        captures = graphs.memory.captures
        found_in(batches, systems)
        assert graphs.memory.captures == captures
        assert batches.summary(240).endswith(f"{captures} graphs captured")

    def test_neighbors_in_a_batch_do_not_move_a_bit(self) -> None:
        systems = drops(30)
        graphs: GraphPool[Calculation] = GraphPool(memory=GraphMemory(recorded))
        batches = Batches(AutogradEvaluator(ARGON), CPU, DOUBLE, graphs=graphs, atoms=256)
        first = found_in(batches, systems)
        order = np.random.default_rng(5).permutation(len(systems))
        second = found_in(batches, [systems[place] for place in order])
        assert graphs.creations == 1
        for place, result in zip(order, second, strict=True):
            assert result.energy == first[place].energy
            np.testing.assert_array_equal(result.forces, first[place].forces)
            np.testing.assert_array_equal(result.virial, first[place].virial)

    def test_a_denser_structure_grows_the_list(self) -> None:
        def cube(size: int, apart: float) -> System:
            points = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1)
            return System(np.full(size, 18), apart * points.reshape(-1, 3)[:size])

        systems = [*(cube(20, 4.4) for _ in range(14)), *(cube(60, 2.6) for _ in range(4))]
        graphs: GraphPool[Calculation] = GraphPool(memory=GraphMemory(recorded))
        evaluator = AutogradEvaluator(ARGON)
        batches = Batches(evaluator, CPU, DOUBLE, graphs=graphs, atoms=128)
        results = found_in(batches, systems)
        for place in (0, 13, 14, 17):
            check_as_alone(results[place], evaluator, systems[place])
        assert graphs.creations == 1
        assert graphs.memory.captures == 2

    def test_cells_of_one_kind_that_are_narrow_along_other_vectors(self) -> None:
        evaluator = AutogradEvaluator(ARGON)
        systems = []
        for axis in (0, 1, 2, 0, 1, 2):
            sides = np.full(3, 14.0)
            sides[axis] = 7.5
            positions = spread_atoms(20, np.diag(sides), True, axis, apart=2.5)
            systems.append(System(np.full(20, 18), positions, cell=np.diag(sides), pbc=True))
        graphs: GraphPool[Calculation] = GraphPool(memory=GraphMemory(recorded))
        batches = Batches(evaluator, CPU, DOUBLE, graphs=graphs, atoms=48)
        for result, system in zip(found_in(batches, systems), systems, strict=True):
            check_as_alone(result, evaluator, system)
        assert graphs.creations == 1

    @pytest.mark.parametrize(
        "fault",
        ["Atoms 2 and 3 are at the same place", "Most atoms have another one within 0.[0-9]* A"],
    )
    def test_a_structure_that_cannot_be_is_named(self, fault: str) -> None:
        systems = drops(30)
        positions = systems[17].positions.copy()
        if fault.startswith("Most"):
            positions[1::2] = positions[: 2 * (len(positions) // 2) : 2] + [0.2, 0.0, 0.0]
        else:
            # The host does not see it: the two are on different sides of a rounding edge.
            positions[2, 0] = round(float(positions[2, 0]), 3) + 4e-4
            positions[3] = positions[2] + np.array([4e-4, 0.0, 0.0])
        systems[17] = systems[17].replace(positions=positions)
        batches = Batches(
            AutogradEvaluator(ARGON),
            CPU,
            DOUBLE,
            graphs=GraphPool(memory=GraphMemory(recorded)),
            atoms=256,
        )
        with pytest.raises(InputError, match=f"structure 17: {fault}"):
            found_in(batches, systems)

    def test_the_host_looks_at_distances_only_where_a_pair_is_close(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[int] = []

        def check(systems: list[System], *, distances: bool = True) -> None:
            if distances:
                looked.append(len(systems))
            check_lengths(systems, distances=distances)

        monkeypatch.setattr("mdgraph.engine.calculation.check_lengths", check)
        systems = drops(30)

        def looks() -> int:
            looked.clear()
            graphs: GraphPool[Calculation] = GraphPool(memory=GraphMemory(recorded))
            batches = Batches(AutogradEvaluator(ARGON), CPU, DOUBLE, graphs=graphs, atoms=256)
            assert len(found_in(batches, systems)) == 30
            assert graphs.creations == 1
            return len(looked)

        ordinary = looks()
        # Two atoms of many may be close, and the batch after has none.
        positions = systems[17].positions.copy()
        positions[3] = positions[2] + [0.3, 0.0, 0.0]
        systems[17] = systems[17].replace(positions=positions)
        assert looks() == ordinary + 1

    def test_structures_larger_than_a_batch(self) -> None:
        systems = drops(12, largest=64)
        evaluator = AutogradEvaluator(ARGON)
        batches = Batches(
            evaluator, CPU, DOUBLE, graphs=GraphPool(memory=GraphMemory(recorded)), atoms=64
        )
        for result, system in zip(found_in(batches, systems), systems, strict=True):
            check_as_alone(result, evaluator, system)


class TestSystemArrays:
    def test_are_the_systems(self) -> None:
        """Also in slices, taken out of order, one set after another, and pickled."""
        systems = [molecule(3), crystal(4), molecule(6, seed=2).replace(charge=-1.0), crystal(5)]
        held = systems[1].replace(
            velocities=np.full((4, 3), 0.5), fixed=np.array([True, False, False, True])
        )
        systems.insert(1, held)
        arrays = SystemArrays.of(systems)

        def check(found: SystemArrays, expected: list[System]) -> None:
            assert len(found) == len(expected)
            given, wanted = (concatenate_systems(one, torch.float64) for one in (found, expected))
            for name, value in wanted.items():
                assert torch.equal(given[name], value), name
            for one, other in zip(found, expected, strict=True):
                for name, value in vars(other).items():
                    np.testing.assert_array_equal(getattr(one, name), value, err_msg=name)
            assert not found.positions.flags.writeable

        check(arrays, systems)
        check(arrays[1:4], systems[1:4])
        check(pickle.loads(pickle.dumps(arrays[1:])), systems[1:])
        for places in ([2, 3, 4], [4, 0, 1], [1], [1, 3]):
            check(arrays.take(places), [systems[place] for place in places])
        for places in ([], [-1], [3, 4, 5], [5, 0]):
            with pytest.raises(IndexError, match="5 systems side by side"):
                arrays.take(places)
        check(arrays[3:].followed_by(arrays[:2]), systems[3:] + systems[:2])
        assert SystemArrays.of(arrays) is arrays
        assert arrays[-1].charge is None


class TestFilling:
    def test_makes_every_batch_whole_and_adds_nothing(self) -> None:
        systems = SystemArrays.of([crystal(6, seed=1), crystal(4, seed=2)] * 5)
        (kind,) = by_key(systems, (3.4,))
        shape = common_shape(kind, systems, 40)
        assert shape is not None
        for count in range(1, 6):
            part = systems[:count]
            if not shape.fits(count, sum(map(len, part))):
                continue
            whole = part.followed_by(padding(shape, part, (3.4,)))
            assert len(whole) == shape.systems
            assert sum(map(len, whole)) == shape.atoms
            assert max(map(len, whole)) <= shape.room.largest
            state = State(whole)
            used = sum(map(len, part))
            assert int(NeighborList(state, 3.4).count[used:].max()) == 0
            AutogradEvaluator(ARGON).evaluate_(state, [NeighborList(state, 6.0)])
            assert state.forces[used:].abs().max() == 0.0
            assert state.virial[count:].abs().max() == 0.0

    def test_of_few_structures_has_no_shape(self) -> None:
        systems = SystemArrays.of([molecule(5)] * 3)
        (kind,) = by_key(systems, (3.4,))
        assert common_shape(kind, systems, 15) is None


class TestAssign:
    @pytest.mark.parametrize("settings", [TENSORNET, TENSORNET2], ids=["tensornet", "tensornet2"])
    def test_gives_the_bits_of_new_buffers(self, settings: dict[str, Any]) -> None:
        before = [molecule(3), molecule(6), molecule(4)]
        after = [molecule(5, seed=4), molecule(2, seed=5), molecule(6, seed=6)]
        room = BatchCapacity(6, (1, 6, 8))
        self._check(FusedTensorNet(network(**settings), "double"), before, after, room)

    def test_gives_those_bits_in_kernels_too(self) -> None:
        # Interpreted, so the least that has two elements and two sizes.
        small = network(
            **TENSORNET
            | {"species": (8, 1), "channels": 4, "layers": 0, "radial_basis": {"number": 3}}
        )
        oxygen = [System([8, 1], [[0, 0, 0], [1.0, 0, 0]]), System([1], [[0, 0, 0]])]
        hydrogen = [System([1], [[0, 0, 0]]), System([1, 1], [[0, 0, 0], [0, 0.8, 0.3]])]
        evaluator = FusedTensorNet(small, "double", "cpu", "triton")
        self._check(evaluator, oxygen, hydrogen, BatchCapacity(2, (1, 8)))

    @staticmethod
    def _check(
        evaluator: Evaluator, before: list[System], after: list[System], room: BatchCapacity
    ) -> None:
        def evaluated(systems: list[System]) -> Calculation:
            made = Calculation(
                systems, evaluator, device=CPU, precision=DOUBLE, skin=0.0, room=room
            )
            made.compute()
            return made

        used, new = evaluated(before), evaluated(after)
        used.assign_(after)
        used.compute()
        for name in ("energies", "energy", "forces", "virial"):
            assert torch.equal(getattr(used.state, name), getattr(new.state, name)), name

    def test_refuses_what_has_no_room(self) -> None:
        state = State([molecule(4), molecule(3)], room=BatchCapacity(5, (1, 6, 8)))
        for systems in (
            [molecule(7)],
            [molecule(4), molecule(4)],
            [molecule(6), molecule(1)],
            [System([18] * 4, molecule(4).positions), molecule(3)],
            [crystal(4), molecule(3)],
        ):
            with pytest.raises(InputError, match="do not fit"):
                state.prepared(systems)
        with pytest.raises(InputError, match="do not fit"):
            State([molecule(4)]).prepared([molecule(4)])
