"""The phases of an evaluation of TensorNet2.

Charges depend on all atoms of a system, so that threads meet before and after each sum over
systems too; the sums themselves are short, and one thread takes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from mdgraph.fused.cpu.arrays import Listed
from mdgraph.fused.cpu.charged_arrays import (
    Charges,
    ChargeWeightArrays,
    CoulombArrays,
    EdgeNetworkArrays,
    EdgeTerms,
    Systems,
    Windows,
)
from mdgraph.fused.cpu.charged_interaction import (
    find_windows,
    gather_by_neighbors,
    interact_charged,
    interact_charged_adjoint,
    make_terms,
)
from mdgraph.fused.cpu.charges import (
    add_charge_adjoints,
    add_charges,
    charges_adjoint,
    predict_charges,
    shift_charges,
)
from mdgraph.fused.cpu.coulomb import add_coulomb
from mdgraph.fused.cpu.schedule import Task
from mdgraph.fused.cpu.threads import Work


@dataclass(frozen=True)
class ChargedTask:
    """What TensorNet2 has beside a Task.

    Attributes:
        task: the rest.
        window: number of the window among the functions of the embedding.
        far: the list of the Coulomb energy, None without one.
    """

    task: Task
    window: int
    networks: tuple[EdgeNetworkArrays, ...]
    predictions: tuple[ChargeWeightArrays, ...]
    windows: Windows
    terms: tuple[EdgeTerms, ...]
    charges: Charges
    systems: Systems
    coulomb: CoulombArrays | None
    far: Listed | None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.networks)


def charged_phases(charged: ChargedTask) -> list[Work]:
    """Each phase reads of other atoms only what the phases before it wrote."""
    return [
        partial(_begin, charged),
        *_forward(charged),
        *_backward(charged),
        partial(_end, charged),
    ]


def _forward(charged: ChargedTask) -> Iterator[Work]:
    for number in range(charged.layers + 1):
        if number < charged.charges.number:
            yield partial(_add, charged, number)
            yield partial(_shift, charged, number)
        if number < charged.layers:
            yield partial(_interact, charged, number)
    if charged.coulomb is not None:
        yield partial(_coulomb, charged)


def _backward(charged: ChargedTask) -> Iterator[Work]:
    for number in reversed(range(charged.layers + 1)):
        if number < charged.charges.number:
            yield partial(_add_adjoints, charged, number)
        yield partial(_turn_back, charged, number)
        if number > 0:
            yield partial(_interact_adjoint, charged, number - 1)
            yield partial(_gather, charged, number - 1)


def _begin(charged: ChargedTask, first: int, last: int) -> None:
    task, width = charged.task, charged.charges.number * charged.charges.size
    task.begin(first, last)
    begin, end = task.rows(first, last)
    table = task.embedding.table
    find_windows(begin, end, task.sizes, charged.window, table, task.edges, charged.windows)
    charged.charges.adjoint[begin * width : end * width] = 0.0
    _proceed(charged, 0, first, last)


def _proceed(charged: ChargedTask, number: int, first: int, last: int) -> None:
    task, charges = charged.task, charged.charges
    task.proceed(number, first, last)
    if number < charges.number:
        weights, features = charged.predictions[number], task.features[number]
        predict_charges(first, last, task.sizes, weights, features, charges, number)


def _add(charged: ChargedTask, number: int, first: int, last: int) -> None:
    if first == 0:
        add_charges(charged.systems, charged.charges, number)


def _shift(charged: ChargedTask, number: int, first: int, last: int) -> None:
    task, charges = charged.task, charged.charges
    shift_charges(*task.rows(first, last), charged.systems, charges, number)
    if number < charged.layers:
        network, terms = charged.networks[number], charged.terms[number]
        make_terms(first, last, task.sizes.channels, network, charges, number, terms)


def _interact(charged: ChargedTask, number: int, first: int, last: int) -> None:
    task, (layer, kept) = charged.task, charged.task.layers[number]
    interact_charged(
        first,
        last,
        task.sizes,
        layer,
        charged.networks[number],
        task.edges,
        charged.windows,
        charged.terms[number],
        task.atoms,
        kept,
        task.features[number + 1],
    )
    _proceed(charged, number + 1, first, last)


def _coulomb(charged: ChargedTask, first: int, last: int) -> None:
    rows, energies = charged.task.rows(first, last), charged.task.atoms.energies
    add_coulomb(*rows, charged.far, charged.coulomb, charged.charges, energies)


def _add_adjoints(charged: ChargedTask, number: int, first: int, last: int) -> None:
    if first == 0:
        add_charge_adjoints(charged.systems, charged.charges, number)


def _turn_back(charged: ChargedTask, number: int, first: int, last: int) -> None:
    task, charges = charged.task, charged.charges
    if number < charges.number:
        charges_adjoint(
            first,
            last,
            task.sizes,
            charged.predictions[number],
            charged.systems,
            task.features[number],
            charges,
            number,
            task.atoms.adjoint,
        )
    task.turn_back(number, first, last)


def _interact_adjoint(charged: ChargedTask, number: int, first: int, last: int) -> None:
    task, (layer, kept) = charged.task, charged.task.layers[number]
    interact_charged_adjoint(
        first,
        last,
        task.sizes,
        layer,
        charged.networks[number],
        task.listed,
        task.edges,
        charged.windows,
        charged.terms[number],
        task.atoms,
        kept,
        charged.charges,
        number,
    )


def _gather(charged: ChargedTask, number: int, first: int, last: int) -> None:
    task, itself = charged.task, charged.networks[number].itself
    rows = task.rows(first, last)
    gather_by_neighbors(*rows, itself, task.listed, task.edges, charged.charges, number)


def _end(charged: ChargedTask, first: int, last: int) -> None:
    charged.task.end(first, last)
    if charged.coulomb is not None:
        atoms = slice(*charged.task.rows(first, last))
        charged.task.forces[atoms] += charged.coulomb.forces[atoms]
        charged.task.virials[:, atoms] += charged.coulomb.virials[:, atoms]
