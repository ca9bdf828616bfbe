"""Faults in what goes into a fused evaluation and in what comes out, planted around it.

A fault of a list or of results lies on every evaluation, those of the self-check included, or
on that of the structure at hand alone. A fault of weights is built into the evaluator.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from mdgraph.evaluators import Evaluator
from mdgraph.fused import evaluator as module
from mdgraph.fused.cpu import tensornet2
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.tables import PotentialTables, RadialTable
from mdgraph.fused.weights import PackedWeights
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

Lists = Sequence[NeighborList]
Evaluate = Callable[[], None]
Fault = Callable[[State, Lists, Evaluate], None]
"""Calls the evaluation, and does something wrong before or after it."""

LAST_ATOMS: Final = 12
"""A tile of the compiled kernels; Triton's take 16."""


class Faulty(Evaluator):
    """A fused evaluator with a fault around it.

    Args:
        inner: the sound one.
        fault: planted.
        everywhere: on all that is evaluated, or on the first state alone.
    """

    def __init__(self, inner: FusedTensorNet, fault: Fault, everywhere: bool) -> None:
        self.potential, self.cutoffs = inner.potential, inner.cutoffs
        self._inner, self._fault, self._everywhere = inner, fault, everywhere
        self._first: State | None = None

    def evaluate_(self, state: State, lists: Lists) -> None:
        self._first = self._first or state

        def evaluate() -> None:
            self._inner.evaluate_(state, lists)

        if self._everywhere or state is self._first:
            self._fault(state, lists, evaluate)
        else:
            evaluate()


@contextmanager
def restored(*tensors: Tensor) -> Iterator[None]:
    """What is done to them in the context does not last."""
    copies = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)


def _slots_by_distance(state: State, rows: NeighborList, atom: int) -> list[int]:
    """Slots of an atom's pairs within the cutoff, the nearest first."""
    pairs = rows.pairs(state.positions, state.cell)
    distances = torch.cat(
        [torch.linalg.vector_norm(one.vectors.detach().double(), dim=-1) for one in pairs.blocks],
        dim=-1,
    )[atom, : int(rows.count[atom])]
    order = distances.argsort().tolist()
    return [slot for slot in order if float(distances[slot]) < rows.cutoff]


def _remove(rows: NeighborList, atom: int, slot: int) -> None:
    """Puts the last slot of a row in the place of one."""
    last = int(rows.count[atom]) - 1
    rows.count[atom] -= 1
    if slot == last:
        return
    for part in (rows.index, rows.image, rows.reverse):
        part[atom, slot] = part[atom, last]
    other, back = int(rows.index[atom, slot]), int(rows.reverse[atom, slot])
    rows.reverse[other, back] = slot


def dropped_slot(place: float, both: bool) -> Fault:
    """A pair of an atom in the middle is left out in its row, or in both rows."""

    def fault(state: State, lists: Lists, evaluate: Evaluate) -> None:
        rows = lists[0]
        atom = len(state.numbers) // 2
        slots = _slots_by_distance(state, rows, atom)
        if not slots:
            evaluate()
            return
        slot = slots[int(place * (len(slots) - 1))]
        with restored(rows.index, rows.image, rows.reverse, rows.count):
            other, back = int(rows.index[atom, slot]), int(rows.reverse[atom, slot])
            _remove(rows, atom, slot)
            if both:
                if other == atom and back == int(rows.count[atom]):
                    back = slot  # it was moved
                _remove(rows, other, back)
            evaluate()

    return fault


def shifted_image(place: float) -> Fault:
    """A pair of an atom is taken to another image of its neighbor."""

    def fault(state: State, lists: Lists, evaluate: Evaluate) -> None:
        rows = lists[0]
        atom = len(state.numbers) // 2
        slots = _slots_by_distance(state, rows, atom)
        if len(rows.offsets) == 1 or not slots:
            evaluate()
            return
        slot = slots[int(place * (len(slots) - 1))]
        with restored(rows.image):
            offset = rows.offsets[int(rows.image[atom, slot])]
            away = (rows.offsets - offset).abs().sum(-1)
            rows.image[atom, slot] = int((away == 1).nonzero()[0])
            evaluate()

    return fault


def lost_face(state: State, lists: Lists, evaluate: Evaluate) -> None:
    """Every pair across the first face of a cell is left out, both ways."""
    rows = lists[0]
    with restored(rows.index, rows.image, rows.reverse, rows.count):
        first = rows.offsets[:, 0]
        for atom in range(len(state.numbers)):
            for slot in reversed(range(int(rows.count[atom]))):
                if int(first[int(rows.image[atom, slot])]) != 0:
                    _remove(rows, atom, slot)
        evaluate()


def swapped_reverse(state: State, lists: Lists, evaluate: Evaluate) -> None:
    """Two slots of an atom know each other's reverse slot."""
    rows = lists[0]
    atom = len(state.numbers) // 2
    slots = _slots_by_distance(state, rows, atom)[:2]
    with restored(rows.reverse):
        if len(slots) == 2:
            rows.reverse[atom, slots] = rows.reverse[atom, slots[::-1]].clone()
        evaluate()


def wrong_neighbor(state: State, lists: Lists, evaluate: Evaluate) -> None:
    """The nearest slot of an atom holds the index of its second neighbor."""
    rows = lists[0]
    atom = len(state.numbers) // 2
    slots = _slots_by_distance(state, rows, atom)[:2]
    with restored(rows.index):
        if len(slots) == 2:
            rows.index[atom, slots[0]] = rows.index[atom, slots[1]]
        evaluate()


def unwritten_tile(stale: bool) -> Fault:
    """Forces and energies of the last atoms are zeros, or those of a step before."""

    def fault(state: State, lists: Lists, evaluate: Evaluate) -> None:
        before = [torch.zeros_like(state.forces), torch.zeros_like(state.energies)]
        if stale:
            with restored(state.positions):
                shape = state.positions.shape
                generator = torch.Generator().manual_seed(0)
                shift = 0.01 * torch.randn(shape, generator=generator, dtype=torch.float64)
                state.positions += shift.to(state.positions)
                evaluate()
                before = [state.forces.clone(), state.energies.clone()]
        evaluate()
        for tensor, old in zip((state.forces, state.energies), before, strict=True):
            tensor[-LAST_ATOMS:] = old[-LAST_ATOMS:]

    return fault


def of_results(change: Callable[[State], None]) -> Fault:
    """What was written is changed."""

    def fault(state: State, lists: Lists, evaluate: Evaluate) -> None:
        evaluate()
        change(state)

    return fault


def _swap(tensor: Tensor) -> None:
    """Those of the first and of the last atom."""
    tensor[[0, -1]] = tensor[[-1, 0]].clone()


def _without_pair(state: State, lists: Lists, evaluate: Evaluate) -> None:
    """The virial lacks the force times the position of an atom: a pair that was forgotten."""
    evaluate()
    atom = len(state.numbers) // 2
    system = int(state.grouping.index[atom])
    vector = torch.tensor([1.4, 1.1, 0.9], dtype=torch.float64, device=state.device)
    state.virial[system] += torch.outer(vector, state.forces[atom].double()).to(state.virial)


def _larger_beyond(state: State, lists: Lists, evaluate: Evaluate) -> None:
    """Energies, forces and virial are all too large, and agree with each other."""
    evaluate()
    if len(state.numbers) > FEW:
        for tensor in (state.energies, state.energy, state.forces, state.virial):
            tensor.mul_(1.01)


FEW: Final = 64
"""Atoms; clusters that are compared have fewer, the structures that they are cut from more."""


def wrong_total_charge(state: State, lists: Lists, evaluate: Evaluate) -> None:
    """The total charge that is seen is off by 0.02 e."""
    with restored(state.charge):
        state.charge += 0.02
        evaluate()


BEYOND: Final = "results 1 % larger beyond 64 atoms"

INVISIBLE: Final = {
    BEYOND: "clusters have fewer atoms, and what is compared at full size agrees with itself",
}
"""Faults that the check cannot see where it compares clusters, and why."""

AROUND: Final[dict[str, Fault]] = {
    "slot dropped, nearest": dropped_slot(0.0, both=False),
    "slot dropped, median": dropped_slot(0.5, both=False),
    "slot dropped, farthest": dropped_slot(1.0, both=False),
    "pair dropped, nearest": dropped_slot(0.0, both=True),
    "pair dropped, median": dropped_slot(0.5, both=True),
    "pair dropped, farthest": dropped_slot(1.0, both=True),
    "image shifted, nearest": shifted_image(0.0),
    "image shifted, farthest": shifted_image(1.0),
    "pairs across a face dropped": lost_face,
    "reverse slots swapped": swapped_reverse,
    "wrong neighbor": wrong_neighbor,
    "last tile zero": unwritten_tile(stale=False),
    "last tile stale": unwritten_tile(stale=True),
    "last atom's force zero": of_results(lambda state: state.forces[-1].zero_()),
    "virial negated": of_results(lambda state: state.virial.neg_()),
    "virial transposed": of_results(lambda state: state.virial.copy_(state.virial.mT.clone())),
    "virial lacks a pair": _without_pair,
    "energies of two atoms swapped": of_results(lambda state: _swap(state.energies)),
    "energies of two systems swapped": of_results(lambda state: _swap(state.energy)),
    "virials of two systems swapped": of_results(lambda state: _swap(state.virial)),
    "forces of two atoms swapped": of_results(lambda state: _swap(state.forces)),
    "force of an atom 1 % larger": of_results(
        lambda state: state.forces[len(state.forces) // 2].mul_(1.01)
    ),
    "all forces 0.1 % larger": of_results(lambda state: state.forces.mul_(1.001)),
    BEYOND: _larger_beyond,
    "total charge wrong": wrong_total_charge,
}
"""By name; what leaves a structure as it is, as an image of a molecule, has no effect."""


def _embedding(weights: PackedWeights, **changes: Any) -> PackedWeights:
    return replace(weights, embedding=replace(weights.embedding, **changes))


def _first_layer(weights: PackedWeights, **changes: Any) -> PackedWeights:
    first, *others = weights.layers
    return replace(weights, layers=(replace(first, **changes), *others))


def _without_bias(linear: Any) -> Any:
    return replace(linear, bias=torch.zeros_like(linear.bias))


_VECTOR_FIRST: Final = [1, 0, 2]
_TENSOR_LAST_BUT_ONE: Final = [0, 2, 1]


def _other_rows(tensor: Tensor) -> Tensor:
    return tensor.roll(1, 0)


WEIGHTS: Final[dict[str, Callable[[PackedWeights], PackedWeights]]] = {
    "I and A swapped in a layer": lambda w: _first_layer(
        w, before=w.layers[0].before[_VECTOR_FIRST]
    ),
    "A and S swapped in a layer": lambda w: _first_layer(
        w, after=w.layers[0].after[_TENSOR_LAST_BUT_ONE]
    ),
    "A and S swapped in the mixing": lambda w: _embedding(
        w, mixing=w.embedding.mixing[_TENSOR_LAST_BUT_ONE]
    ),
    "A and S swapped in the moments": lambda w: _embedding(
        w, distance=w.embedding.distance[_TENSOR_LAST_BUT_ONE]
    ),
    "species rows of neighbors rolled": lambda w: _embedding(
        w, of_neighbor=_other_rows(w.embedding.of_neighbor)
    ),
    "species rows of atoms rolled": lambda w: _embedding(
        w, of_atom=_other_rows(w.embedding.of_atom)
    ),
    "embedding's norm without bias": lambda w: _embedding(w, norm=_without_bias(w.embedding.norm)),
    "readout's norm without bias": lambda w: replace(
        w, readout=replace(w.readout, norm=_without_bias(w.readout.norm))
    ),
    "gate without bias": lambda w: _embedding(
        w, gate=(_without_bias(w.embedding.gate[0]), w.embedding.gate[1])
    ),
    "a weight of a layer lost": lambda w: _first_layer(w, before=_lost(w.layers[0].before)),
    "a weight 1 % larger": lambda w: _first_layer(w, before=_lost(w.layers[0].before, factor=1.01)),
}
"""By name, what becomes of packed weights."""


def _lost(tensor: Tensor, factor: float = 0.0) -> Tensor:
    changed = tensor.clone()
    changed[0, 0, 0] *= factor
    return changed


def _table(tables: PotentialTables, number: int, change: Callable[[Tensor], Tensor]) -> Any:
    layers = list(tables.layers)
    layers[number] = replace(
        layers[number], coefficients=change(layers[number].coefficients.clone())
    )
    return replace(tables, layers=tuple(layers))


def _nearby(tables: PotentialTables, share: float) -> int:
    """The interval at a share of the cutoff."""
    place = torch.tensor([share * tables.grid.cutoff], dtype=torch.float64)
    return int(tables.layers[0].grid.locate(place)[0])


def _exchanged(coefficients: Tensor, place: int) -> Tensor:
    coefficients[[place, place + 1]] = coefficients[[place + 1, place]]
    return coefficients


def _moved_zone(coefficients: Tensor, place: int) -> Tensor:
    coefficients[place + 1 :] = coefficients[place:-1].clone()
    return coefficients


def _parts_swapped(table: RadialTable) -> RadialTable:
    parts = table.coefficients.unflatten(2, (3, -1))[:, :, _VECTOR_FIRST]
    return replace(table, coefficients=parts.flatten(2, 3).contiguous())


PARTS_OF_TABLE: Final = "I and A swapped in a table"

TABLES: Final[dict[str, Callable[[PotentialTables], Any]]] = {
    "layers' tables swapped": lambda t: replace(t, layers=t.layers[::-1]),
    PARTS_OF_TABLE: lambda t: replace(t, layers=(_parts_swapped(t.layers[0]), *t.layers[1:])),
    "two intervals swapped at half the cutoff": lambda t: _table(
        t, 0, lambda c: _exchanged(c, _nearby(t, 0.5))
    ),
    "two intervals swapped at 0.8 cutoffs": lambda t: _table(
        t, -1, lambda c: _exchanged(c, _nearby(t, 0.8))
    ),
    "zone beyond 0.4 cutoffs misplaced by one": lambda t: _table(
        t, 0, lambda c: _moved_zone(c, _nearby(t, 0.4))
    ),
    "zone beyond 0.85 cutoffs misplaced by one": lambda t: _table(
        t, 0, lambda c: _moved_zone(c, _nearby(t, 0.85))
    ),
    "two intervals swapped at 0.17 cutoffs": lambda t: _table(
        t, 0, lambda c: _exchanged(c, _nearby(t, 0.17))
    ),
    "embedding's zone misplaced by one": lambda t: replace(
        t,
        embedding=replace(
            t.embedding,
            coefficients=_moved_zone(t.embedding.coefficients.clone(), _nearby(t, 0.4)),
        ),
    ),
    "embedding beyond its last interval": lambda t: replace(
        t,
        embedding=replace(t.embedding, coefficients=_cut(t.embedding.coefficients.clone(), 1)),
    ),
}
"""By name, what becomes of tables."""


def _cut(coefficients: Tensor, intervals: int) -> Tensor:
    coefficients[-intervals:] = 0.0
    return coefficients


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Evaluators made in the context have the fault of weights or tables, or of a charge."""
    packed, shared = module.packed, module.shared_tables
    with mock.patch.multiple(
        module,
        packed=lambda *a, **k: WEIGHTS[name](packed(*a, **k)) if name in WEIGHTS else packed(*a),
        shared_tables=lambda *a: TABLES[name](shared(*a)) if name in TABLES else shared(*a),
    ):
        if name == CHARGE:
            with mock.patch.object(tensornet2, "shift_charges", _shift_but_for_one):
                yield
        else:
            yield


CHARGE: Final = "charge of an atom wrong"
"""By 0.02 e, in kernels of a CPU."""

_shift_charges = tensornet2.shift_charges


def _shift_but_for_one(begin: int, end: int, systems: Any, charges: Any, level: int) -> None:
    _shift_charges(begin, end, systems, charges, level)
    atom = len(systems.of_atom) // 2
    if begin <= atom < end:
        charges.shifted[(atom * charges.number + level) * charges.size] += 0.02


BUILT_IN: Final = (*WEIGHTS, *TABLES, CHARGE)
"""Names of all faults that an evaluator is built with."""
