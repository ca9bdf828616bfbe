"""TritonNetwork: a TensorNet as some forty kernels on static buffers."""

from torch import Tensor

from mdgraph.fused.cuda.edges import find_edges, forces, totals
from mdgraph.fused.cuda.embedding import embed, embed_adjoint
from mdgraph.fused.cuda.layers import interact, interact_adjoint
from mdgraph.fused.cuda.model import Bound, Model, bound_to
from mdgraph.fused.cuda.readout import read_out
from mdgraph.fused.network import NetworkResult
from mdgraph.fused.tables import PotentialTables
from mdgraph.fused.weights import PackedWeights
from mdgraph.models import TensorNetConfig
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.launching import launching_on
from mdgraph.state import State


class TritonNetwork:
    """See FusedNetwork. Kernels run on the device of the weights.

    Args:
        config: of the potential.
        weights: packed in the network's type.
        tables: radial functions, in the same type.
        rows: (119,) int64, row of each atomic number in the species tables.
    """

    def __init__(
        self,
        config: TensorNetConfig,
        weights: PackedWeights,
        tables: PotentialTables,
        rows: Tensor,
    ) -> None:
        self._model = Model(config, weights, tables)
        self._rows = rows
        self._bound: Bound | None = None

    def evaluate_(self, state: State, pairs: NeighborList, result: NetworkResult) -> None:
        """See FusedNetwork."""
        bound = self._bound
        if bound is None or bound.state is not state or bound.slots != pairs.capacity:
            self._bound = bound = bound_to(self._model, self._rows, state, pairs)
        with launching_on(state.device):
            find_edges(bound, pairs)
            embed(bound, pairs)
            for number in range(bound.layers):
                interact(bound, pairs, number)
            read_out(bound, result)
            for number in reversed(range(bound.layers)):
                interact_adjoint(bound, pairs, number)
            embed_adjoint(bound)
            forces(bound, pairs, result)

    def total_(self, state: State, result: NetworkResult) -> None:
        """See FusedNetwork."""
        with launching_on(state.device):
            totals(state, result)
