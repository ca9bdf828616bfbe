"""Model: what the kernels need of a network."""

import torch

from mdgraph.fused.cuda.charged_model import ChargedModel
from mdgraph.fused.cuda.halves import Dense, Mixing
from mdgraph.fused.cuda.layer_tables import rounded, whole
from mdgraph.fused.cuda.perceptron import PackedPerceptron, side_by_side
from mdgraph.fused.tables import PotentialTables, RadialGrid
from mdgraph.fused.weights import PackedWeights
from mdgraph.models import TensorNetConfig
from mdgraph.neighbors.branch import Branch


class Model:
    """A network on its device, with the transposed matrices of the backward pass.

    Attributes:
        config: of the potential.
        embedding: its weights; what is left of those of the layers are halves and `own`.
        grid: of all tables.
        embedding_table: (intervals, 4, K + 1).
        layer_tables: of the messages' weights.
        own: (3, F) for each layer, weights of the message of an atom to itself.
        mixing, layers: what mixes channels in the embedding and in each layer.
        gate, linear, head: dense layers of the embedding's gate and of the readout.
        norm: of the readout.
        repulsions: analytic terms.
        charged: of TensorNet2, else None.
        products: of float16 halves that make one of a matrix; 0 for float64.
        rounded: whether what messages read has half the bytes of float32.
        branch: for kernels that need not wait for each other.
    """

    def __init__(
        self,
        config: TensorNetConfig,
        weights: PackedWeights,
        tables: PotentialTables,
        reduced: bool,
    ) -> None:
        embedding, readout = weights.embedding, weights.readout
        self.device = embedding.own.device
        self.kind = embedding.own.dtype
        self.config = config
        self.embedding = embedding
        self.grid: RadialGrid = tables.grid
        self.embedding_table = tables.embedding.coefficients.to(self.device)
        self.mixing = Mixing.of(embedding.mixing)
        self.layers = [(Mixing.of(one.before), Mixing.of(one.after)) for one in weights.layers]
        self.own = [one.own for one in weights.layers]
        self.norm = readout.norm
        self.repulsions = weights.repulsions
        first, second = embedding.gate
        self.gate = (Dense.of(first), Dense.of(second))
        self.linear = Dense.of(readout.linear)
        parts = [readout.values, readout.gates] if readout.gates else [readout.values]
        self.head: PackedPerceptron = side_by_side(parts)
        charged = config.architecture == "tensornet2"
        self.charged = ChargedModel(config, weights, reduced) if charged else None
        self.products = 1 if reduced else 3
        if self.kind == torch.float64:
            self.products = 0
        self.rounded = reduced and not charged
        make = rounded if self.rounded else whole
        self.layer_tables = [make(table, self.device) for table in tables.layers]
        self.branch = Branch(self.device)

    @property
    def functions(self) -> int:
        """Radial functions of the embedding, the window among them."""
        return int(self.embedding_table.shape[-1])

    @property
    def symmetric(self) -> bool:
        """Whether products are symmetrised, as O(3) asks for."""
        return self.config.group == "O(3)"
