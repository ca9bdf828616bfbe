"""TritonNetwork: TensorNet as some forty Triton kernels, TensorNet2 as some hundred."""

from collections.abc import Sequence

from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.charges import predict
from mdgraph.fused.cuda.coulomb import interact_at_distance, select_pairs
from mdgraph.fused.cuda.edge_network import pack_edges
from mdgraph.fused.cuda.edges import find_edges, forces, totals
from mdgraph.fused.cuda.embedding import embed, embed_adjoint
from mdgraph.fused.cuda.messages import interact, interact_adjoint
from mdgraph.fused.cuda.readout import read_out
from mdgraph.fused.cuda.weights import NetworkWeights
from mdgraph.fused.cuda.workspace import LaunchPlan, bound_to, tiles_of
from mdgraph.fused.tables import PotentialTables
from mdgraph.fused.weights import PackedWeights
from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import compiling_ahead
from mdgraph.models import TensorNetConfig
from mdgraph.neighbors import NeighborList
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

    def evaluate_(
        self,
        state: State,
        network_list: NeighborList,
        coulomb_list: NeighborList | None,
        repulsion_lists: Sequence[NeighborList],
        result: NetworkResult,
    ) -> None:
        """See FusedNetwork."""
        bound: LaunchPlan | None = state.workspaces.get(self)
        with launching_on(state.device):
            if bound is None or not bound.fits(network_list, coulomb_list, repulsion_lists):
                bound = None  # frees its memory first: both may not fit
                state.workspaces.pop(self, None)
                bound = bound_to(
                    self._model, self._rows, state, network_list, coulomb_list, repulsion_lists
                )
                state.workspaces[self] = bound
                if state.device.type == "cuda":
                    with compiling_ahead():
                        _evaluate(bound, network_list, coulomb_list, repulsion_lists, result)
            _evaluate(bound, network_list, coulomb_list, repulsion_lists, result)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner; syncs."""
        members = state.workspaces[self].tiles.members
        tiles = tiles_of(state.kinds, len(state.elements), members.shape[1])
        members.copy_(tiles.members)
        state.workspaces[self].tiles.elements.copy_(tiles.elements)

    def total_(self, state: State, result: NetworkResult) -> None:
        """See FusedNetwork."""
        with launching_on(state.device):
            totals(state, result)


def _evaluate(
    bound: LaunchPlan,
    network_list: NeighborList,
    coulomb_list: NeighborList | None,
    repulsion_lists: Sequence[NeighborList],
    result: NetworkResult,
) -> None:
    find_edges(bound, network_list)
    branch = bound.model.branch
    if bound.model.charged is not None:
        with branch.fork():  # `embed` joins it
            pack_edges(bound, network_list)
            if coulomb_list is not None:
                select_pairs(bound, coulomb_list)
    embed(bound, network_list)
    for number in range(bound.layers):
        interact(bound, network_list, number)
    if coulomb_list is not None:
        with branch.fork():
            predict(bound, bound.layers)
    read_out(bound, result)
    if coulomb_list is not None:
        branch.join()
        interact_at_distance(bound, coulomb_list, result)
    for number in reversed(range(bound.layers)):
        interact_adjoint(bound, network_list, number)
    embed_adjoint(bound)
    forces(bound, network_list, result)
    for repulsion, neighbors in zip(bound.repulsions, repulsion_lists, strict=True):
        repulsion.add(bound.state, neighbors, result, bound.launch)
