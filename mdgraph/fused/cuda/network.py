"""TritonNetwork: TensorNet as some forty Triton kernels, TensorNet2 as some hundred."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.charges import predict
from mdgraph.fused.cuda.coulomb import interact_at_distance, select_pairs
from mdgraph.fused.cuda.edge_network import pack_edges
from mdgraph.fused.cuda.edges import find_edges, forces, totals
from mdgraph.fused.cuda.embedding import embed, embed_adjoint
from mdgraph.fused.cuda.layerless import compute_layerless
from mdgraph.fused.cuda.layerless_edges import find_moments, forces_from_moments
from mdgraph.fused.cuda.messages import (
    interact,
    interact_adjoint,
    mix_features,
    send_interior,
    send_interior_adjoint,
    turn_back,
)
from mdgraph.fused.cuda.readout import read_out
from mdgraph.fused.cuda.weights import NetworkWeights
from mdgraph.fused.cuda.workspace import LaunchPlan, bound_to, tiles_of
from mdgraph.fused.tables import PotentialTables
from mdgraph.fused.weights import PackedWeights
from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import compiling_ahead
from mdgraph.models import TensorNetConfig
from mdgraph.neighbors import NeighborRows
from mdgraph.state import State


class TritonNetwork:
    """FusedNetwork on CUDA; kernels run on the device of the weights.

    Args:
        config: of the potential.
        weights: from `packed`, in the dtype of the network.
        tables: radial functions, in the same dtype.
        rows: (119,) int64, row of each atomic number in the species tables.
        reduced: see Precision.
    """

    rounding: ClassVar[int] = 1

    def __init__(
        self,
        config: TensorNetConfig,
        weights: PackedWeights,
        tables: PotentialTables,
        rows: Tensor,
        reduced: bool = False,
    ) -> None:
        self._model = NetworkWeights(config, weights, tables, reduced)
        self._rows = rows

    @property
    def reads_reverse(self) -> bool:
        """See FusedNetwork; domains of a network without layers do, on lists of their own."""
        return not self._model.layerless

    def evaluate_(
        self,
        state: State,
        network_list: NeighborRows,
        coulomb_list: NeighborRows | None,
        repulsion_lists: Sequence[NeighborRows],
        result: NetworkResult,
        forces_alone: bool = False,
    ) -> None:
        """See FusedNetwork."""
        with launching_on(state.device):
            bound = self._bind(
                state, len(state.numbers), network_list, coulomb_list, repulsion_lists, result
            )
            _evaluate(bound, network_list, coulomb_list, repulsion_lists, result, forces_alone)

    def domain_stages_(
        self,
        state: State,
        network_rows: NeighborRows,
        repulsion_rows: Sequence[NeighborRows],
        result: NetworkResult,
        owned: int,
    ) -> Iterator[Tensor]:
        """See DividedNetwork; what may happen between two stages is on the same stream."""
        with launching_on(state.device):
            bound = self._bind(state, owned, network_rows, None, repulsion_rows, result)
            stages = _stages(bound, network_rows, None, repulsion_rows, result)
        while True:
            with launching_on(state.device):
                features = next(stages, None)
            if features is None:
                return
            yield features.flatten(1)

    def _bind(
        self,
        state: State,
        atoms: int,
        network_rows: NeighborRows,
        coulomb_list: NeighborRows | None,
        repulsion_rows: Sequence[NeighborRows],
        result: NetworkResult,
    ) -> LaunchPlan:
        """The plan for the first rows of a state; compiles the kernels of a new one."""
        bound: LaunchPlan | None = state.workspaces.get(self)
        if bound is None or not bound.fits(atoms, network_rows, coulomb_list, repulsion_rows):
            edges = 0 if bound is None or bound.atoms != atoms else bound.edges_wanted
            bound = None  # frees its memory first: both may not fit
            state.workspaces.pop(self, None)
            lists = (network_rows, coulomb_list, repulsion_rows)
            bound = bound_to(self._model, self._rows, state, atoms, *lists, edges)
            state.workspaces[self] = bound
            if state.device.type == "cuda":
                with compiling_ahead():
                    _evaluate(bound, network_rows, coulomb_list, repulsion_rows, result)
        return bound

    def outgrown(self, state: State) -> Tensor | None:
        """See FusedNetwork: whether TensorNet2 met more edges than there is room for.

        None where there is room for all slots of the list, as of few atoms.
        """
        bound: LaunchPlan | None = state.workspaces.get(self)
        if bound is None or bound.charges is None:
            return None
        places, own = bound.charges.places, bound.tensornet2_model.own
        if places == bound.atoms * (bound.slots + own):
            return None
        return (bound.charges.most > max(places, bound.charges.wanted))[0]

    def grow_(self, state: State) -> None:
        """See FusedNetwork; syncs."""
        bound: LaunchPlan | None = state.workspaces.get(self)
        if bound is not None and bound.charges is not None:
            bound.charges.wanted = int(bound.charges.most)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner; does not sync."""
        bound: LaunchPlan = state.workspaces[self]
        size = bound.tiles.members.shape[1]
        tiles = tiles_of(state.kinds[: bound.atoms], len(state.elements), size)
        bound.tiles.members.copy_(tiles.members)
        bound.tiles.elements.copy_(tiles.elements)

    def total_(self, state: State, result: NetworkResult) -> None:
        """See FusedNetwork."""
        with launching_on(state.device):
            totals(state, result)


def _evaluate(
    bound: LaunchPlan,
    network_rows: NeighborRows,
    coulomb_list: NeighborRows | None,
    repulsion_rows: Sequence[NeighborRows],
    result: NetworkResult,
    forces_alone: bool = False,
) -> None:
    for _ in _stages(bound, network_rows, coulomb_list, repulsion_rows, result, forces_alone):
        pass


def _stages(
    bound: LaunchPlan,
    network_rows: NeighborRows,
    coulomb_list: NeighborRows | None,
    repulsion_rows: Sequence[NeighborRows],
    result: NetworkResult,
    forces_alone: bool = False,
) -> Iterator[Tensor]:
    """Yields twice what the next stage reads of all rows, of which those evaluated are written.

    Rows of others may be filled from the first time on, and must be by the second.
    """
    if bound.model.layerless:
        find_moments(bound, network_rows)
        compute_layerless(bound, result)
        forces_from_moments(bound, network_rows, result, virials=not forces_alone)
    else:
        find_edges(bound, network_rows)
        yield from _between(bound, network_rows, coulomb_list, result)
        forces(bound, network_rows, result, virials=not forces_alone)
    for repulsion, rows in zip(bound.repulsions, repulsion_rows, strict=True):
        repulsion.add(bound.state, bound.atoms, rows, result, bound.launch)


def _between(
    bound: LaunchPlan,
    network_rows: NeighborRows,
    coulomb_list: NeighborRows | None,
    result: NetworkResult,
) -> Iterator[Tensor]:
    """From edges to the gradient by moments, in the stages of `_stages`."""
    branch = bound.model.branch
    if bound.model.charged is not None:
        with branch.fork():  # `embed` joins it
            pack_edges(bound, network_rows)
    embed(bound, network_rows)
    for number in range(bound.layers):
        mix_features(bound, number)
        if coulomb_list is not None and number == 0:
            select_pairs(bound, coulomb_list)  # beside the edge network
        yield bound.buffers.mixed[number]
        send_interior(bound, network_rows, number)
        yield bound.buffers.mixed[number]
        interact(bound, network_rows, number)
    if coulomb_list is not None:
        if bound.layers == 0:
            select_pairs(bound, coulomb_list)
        with branch.fork():
            predict(bound, bound.layers)
    read_out(bound, result)
    if coulomb_list is not None:
        branch.join()
        interact_at_distance(bound, coulomb_list, result)
    for number in reversed(range(bound.layers)):
        turn_back(bound, number)
        yield bound.buffers.messages[number]
        send_interior_adjoint(bound, network_rows, number)
        yield bound.buffers.messages[number]
        interact_adjoint(bound, network_rows, number)
    embed_adjoint(bound)
