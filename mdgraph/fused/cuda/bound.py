"""Bound: what the kernels need of a state and its lists, and buffers for both."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

import torch
import triton
from torch import Tensor

from mdgraph.fused.cuda.charged_model import ChargedModel
from mdgraph.fused.cuda.charged_workspace import ChargedWorkspace, far_slots
from mdgraph.fused.cuda.halves import Halves
from mdgraph.fused.cuda.model import Model
from mdgraph.fused.cuda.repulsion import BoundRepulsion
from mdgraph.fused.cuda.shapes import Shapes, shapes
from mdgraph.fused.cuda.workspace import Tiles, Workspace, tiles_of
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.launching import launching_ahead
from mdgraph.state import State


@dataclass(frozen=True)
class Bound:
    """What belongs to one state and one capacity of its list.

    Attributes:
        model: as given.
        owner: the state, which owns this in turn.
        slots: capacity of the list.
        shapes: sizes of blocks.
        strips: of channels, in which the messages' adjoint sums.
        tiles: atoms by element.
        contraction, contraction_transposed: (E, Q, 3, F) and (E, 3, F, Q).
        own: (E, F), what the embedding of an atom adds to itself.
        charge: (N,), factor of products, written with the edges where it is not 1.
        grid: as `edges_kernel` reads it.
        launch: options of every launch.
        buffers: everything written on the way.
        charges: that too, of TensorNet2, else None.
        repulsions: with what they write.
    """

    model: Model
    owner: ReferenceType[State]
    slots: int
    shapes: Shapes
    strips: int
    tiles: Tiles
    contraction: Halves
    contraction_transposed: Halves
    own: Tensor
    charge: Tensor
    grid: Tensor
    launch: dict[str, bool]
    buffers: Workspace = field(repr=False)
    charges: ChargedWorkspace | None = field(repr=False)
    repulsions: tuple[BoundRepulsion, ...]

    def fits(
        self, pairs: NeighborList, far: NeighborList | None, close: Sequence[NeighborList]
    ) -> bool:
        """Whether the buffers are as large as these lists ask for."""
        others = 0 if self.charges is None else self.charges.far_slot.shape[1]
        if self.slots != pairs.capacity or others != far_slots(far):
            return False
        return all(one.fits(its) for one, its in zip(self.repulsions, close, strict=True))

    @property
    def state(self) -> State:
        """What is evaluated."""
        state = self.owner()
        assert state is not None
        return state

    @property
    def atoms(self) -> int:
        """N."""
        return len(self.state.numbers)

    @property
    def channels(self) -> int:
        """F."""
        return self.model.config.channels

    @property
    def layers(self) -> int:
        """L."""
        return self.model.config.layers

    @property
    def elements(self) -> int:
        """E, elements at hand."""
        return len(self.state.elements)

    @property
    def charged_model(self) -> ChargedModel:
        """Of TensorNet2."""
        assert self.model.charged is not None
        return self.model.charged

    @property
    def charged(self) -> ChargedWorkspace:
        """Of TensorNet2."""
        assert self.charges is not None
        return self.charges

    def predicts(self, stage: int) -> bool:
        """Whether charges are predicted after the embedding (stage 0) or layer `stage`."""
        charged = self.model.charged
        return charged is not None and stage < len(charged.predictions)

    def charged_invariants(self, stage: int) -> Tensor:
        """What the charges of a stage are predicted from; any tensor where none are."""
        if self.predicts(stage):
            return self.charged.invariants[stage]
        return self.buffers.invariants[stage]

    @property
    def for_charged_invariants(self) -> Tensor:
        """Gradient of what the charges of a stage are predicted from; any tensor without."""
        return self.buffers.last if self.charges is None else self.charges.for_invariants


def bound_to(
    model: Model,
    rows: Tensor,
    state: State,
    pairs: NeighborList,
    far: NeighborList | None,
    close: Sequence[NeighborList],
) -> Bound:
    """Allocates for a state and its lists; reads the device.

    Args:
        model: the network.
        rows: (119,) int64, row of each atomic number in the species tables.
        state: what is evaluated.
        pairs: its list.
        far: the list of the Coulomb energy; None without one.
        close: the list of each repulsion.
    """
    config, device, grid = model.config, state.device, model.grid
    own_rows = rows.index_select(0, state.elements)
    sizes = shapes(config.channels, len(state.numbers), model.rounded, model.kind == torch.float64)
    tiles = tiles_of(state.kinds, len(state.elements), sizes.contraction.atoms)
    contraction = model.embedding.contraction(own_rows)
    strips = triton.cdiv(config.channels, sizes.adjoint.strip)
    places = [grid.start, grid.cutoff, grid.zone_width, grid.origin]
    for first, count in zip(grid.first().tolist(), grid.counts, strict=True):
        places += [first, count, grid.zone_width / count]
    return Bound(
        model=model,
        owner=ref(state),
        slots=pairs.capacity,
        shapes=sizes,
        strips=strips,
        tiles=Tiles(tiles.members.to(device), tiles.elements.to(device)),
        contraction=Halves.of(contraction),
        contraction_transposed=Halves.of(contraction.permute(0, 2, 3, 1)),
        own=model.embedding.self_term(own_rows).contiguous(),
        charge=torch.ones(len(state.numbers), dtype=model.kind, device=device),
        grid=torch.tensor(places, dtype=torch.float64, device=device),
        launch=launching_ahead(device, len(state.numbers)),
        buffers=Workspace(
            state,
            pairs,
            model.kind,
            rounded=model.rounded,
            channels=config.channels,
            layers=config.layers,
            functions=len(own_rows) * model.functions,
            strips=strips,
            hidden=[len(layer.bias) for layer in model.head.hidden],
        ),
        charges=(
            ChargedWorkspace(model.charged, pairs, far, model.kind, config.channels)
            if model.charged is not None
            else None
        ),
        repulsions=tuple(
            BoundRepulsion.to(one, own_rows, its)
            for one, its in zip(model.repulsions, close, strict=True)
        ),
    )
