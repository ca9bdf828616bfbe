"""The phases of an evaluation of TensorNet.

Between two passes over neighbors, each atom is independent. A block of atoms therefore goes
through several kernels while it is in the cache, and threads synchronise only after that.
"""

from dataclasses import dataclass
from functools import partial

from mdgraph.fused.cpu.arrays import (
    AtomArrays,
    Edges,
    EmbeddingArrays,
    Grid,
    LayerArrays,
    LayerFeatures,
    NeighborArrays,
    ReadoutArrays,
    Sizes,
)
from mdgraph.fused.cpu.embedding import add_up, embed, embed_adjoint, find_edges
from mdgraph.fused.cpu.interaction import (
    interact,
    interact_adjoint,
    make_sources,
    read_out,
    sources_adjoint,
)
from mdgraph.fused.cpu.packing import Array
from mdgraph.fused.cpu.pairwise import RepulsionArrays, add_repulsion
from mdgraph.fused.cpu.products import ATOMS
from mdgraph.fused.cpu.simd import Work


@dataclass(frozen=True)
class EvaluationTask:
    """Weights, buffers, inputs and outputs of an evaluation.

    Attributes:
        owned: number of blocks that are evaluated, the first ones. Atoms of later blocks belong to
            another domain: they have features that are given, and forces of their pairs with
            these.
        features: input of each layer, then the output of the last one.
        repulsions: each with its neighbor list.
        virials: (9, N) float64.
    """

    owned: int
    grid: Grid
    sizes: Sizes
    embedding: EmbeddingArrays
    layers: tuple[tuple[LayerArrays, LayerFeatures], ...]
    readout: ReadoutArrays
    repulsions: tuple[tuple[RepulsionArrays, NeighborArrays], ...]
    listed: NeighborArrays
    edges: Edges
    atoms: AtomArrays
    features: tuple[Array, ...]
    forces: Array
    virials: Array

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """First and last atom of blocks [first, last)."""
        return first * ATOMS, min(last * ATOMS, len(self.listed.positions))

    def begin(self, first: int, last: int) -> None:
        """Edges, and the features of the embedding."""
        find_edges(*self.rows(first, last), self.listed, self.grid, self.edges)
        last = min(last, self.owned)
        embed(first, last, self.sizes, self.embedding, self.edges, self.atoms, self.features[0])

    def proceed(self, number: int, first: int, last: int) -> None:
        """Work on single atoms with the input of a layer, or the readout after the last one."""
        if number < len(self.layers):
            make_sources(first, last, self.sizes, *self.layers[number])
        else:
            read_out(first, last, self.sizes, self.readout, self.atoms, self.features[-1])

    def turn_back(self, number: int, first: int, last: int) -> None:
        """Adjoint of the previous layer on single atoms, or of the embedding for number 0."""
        if number == 0:
            embed_adjoint(first, last, self.sizes, self.embedding, self.edges, self.atoms)
            return
        layer, buffers = self.layers[number - 1]
        interact_adjoint(first, last, self.sizes, layer, self.atoms, buffers)

    def end(self, first: int, last: int) -> None:
        """Forces and virials, and the repulsion."""
        rows = self.rows(first, last)
        add_up(*rows, self.listed, self.edges, self.forces, self.virials)
        rows = self.rows(first, min(last, self.owned))
        kinds, results = self.atoms.kinds, (self.atoms.energies, self.forces, self.virials)
        for repulsion, listed in self.repulsions:
            add_repulsion(*rows, listed, repulsion, kinds, *results)


def phases(task: EvaluationTask) -> list[Work]:
    """Phases of an evaluation; of other atoms, each reads only results of earlier phases."""
    sizes, edges, atoms = task.sizes, task.edges, task.atoms
    numbers = range(len(task.layers))

    def begin(first: int, last: int) -> None:
        task.begin(first, last)
        proceed(0, first, min(last, task.owned))

    def proceed(number: int, first: int, last: int) -> None:
        task.proceed(number, first, last)
        if number == len(task.layers):
            task.turn_back(number, first, last)

    def forward(number: int, first: int, last: int) -> None:
        last = min(last, task.owned)
        layer, buffers = task.layers[number]
        interact(first, last, sizes, layer, edges, atoms, buffers, task.features[number + 1])
        proceed(number + 1, first, last)

    def backward(number: int, first: int, last: int) -> None:
        last = min(last, task.owned)
        layer, buffers = task.layers[number]
        sources_adjoint(first, last, sizes, layer, edges, atoms, buffers)
        task.turn_back(number, first, last)

    return [
        begin,
        *(partial(forward, number) for number in numbers),
        *(partial(backward, number) for number in reversed(numbers)),
        task.end,
    ]


def features_to_fill(task: EvaluationTask) -> list[Array | None]:
    """After each phase but the last, the features of all atoms that the next one reads."""
    layers = [buffers for _, buffers in task.layers]
    sources = [buffers.sources for buffers in layers]
    gradients = [buffers.messages for buffers in reversed(layers)]
    return [*sources, *gradients, None]
