"""Configurations of potentials: everything but their tensors.

A configuration is stored as JSON beside the weights. That of a TensorNet has a field for each
difference between TorchMD-Net and MatGL; the same code builds both.
"""

from itertools import pairwise
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mdgraph.units import SYMBOLS

SCHEMA_VERSION: Final = 1
"""Version of stored configurations; increases when their meaning changes."""

ActivationName = Literal[
    "silu", "ssp", "ssp_float32", "tanh", "sigmoid", "mish", "softplus", "softexp"
]

# Bounds far beyond any trained network, so that a damaged or hostile file cannot make mdgraph
# allocate huge networks before it reads the weights.
Width = Annotated[int, Field(ge=1, le=4096)]
Layers = Annotated[int, Field(ge=0, le=64)]
Range = Annotated[float, Field(gt=0, le=100)]
"""Range of a neighbor list, A."""
Element = Annotated[int, Field(ge=1, lt=len(SYMBOLS))]
Text = Annotated[str, Field(max_length=10_000)]


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class RadialBasisConfig(_Frozen):
    """Radial functions phi_k(d)."""

    kind: Literal["expnorm", "gaussian", "smooth_bessel", "spherical_bessel"] = "expnorm"
    """Family of the functions."""
    number: Width = 32
    """Number of functions; for spherical_bessel the product of orders and zeros."""
    orders: Annotated[int, Field(ge=1, le=64)] = 1
    """spherical_bessel only: spherical Bessel functions of order 0 to orders - 1."""


class ReadoutConfig(_Frozen):
    """Network from the invariants of an atom to its energy."""

    kind: Literal["mlp", "gated"] = "mlp"
    """mlp: TorchMD-Net's head; gated: MatGL's value times sigmoid gate."""
    hidden: Annotated[tuple[Width, ...], Field(max_length=16)] = ()
    """Widths of the hidden layers."""


class CoulombConfig(_Frozen):
    """Coulomb energy of the charges that TensorNet2 predicts."""

    cutoff: Annotated[float, Field(gt=0, le=1e4)] | None = None
    """A; a number uses a reaction field, None sums all pairs of a molecule."""


class RepulsionConfig(_Frozen):
    """Ziegler-Biersack-Littmark screened nuclear repulsion."""

    kind: Literal["torchmdnet_prior", "torchmdnet_network", "matgl", "contact"]
    cutoff: Range
    """A; for torchmdnet_network and contact the range of the neighbor list."""
    cutoff_lower: Annotated[float, Field(ge=0, le=100)] = 0.0
    """A; closer pairs have no energy (TorchMD-Net does not list them)."""


class DispersionConfig(_Frozen):
    """Pairwise dispersion DFT-D2 (DOI 10.1002/jcc.20495), as in TorchMD-Net's prior."""

    cutoff: Range
    """A; a sharp cutoff without a window."""


class PotentialConfig(_Frozen):
    """Fields of the configurations of all architectures; a subclass adds its own.

    Lengths are in A, energies in eV.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    architecture: str
    """The word of the architecture in `mdgraph.models.architectures`."""
    species: Annotated[tuple[Element, ...], Field(max_length=len(SYMBOLS))]
    """Distinct atomic numbers, in the order of the rows of tables."""

    name: Text = ""
    origin: Text = "mdgraph"
    """Program that trained or first wrote the weights."""
    level_of_theory: Text = ""
    licence: Text = ""
    energy_unit: Literal["eV"] = "eV"
    length_unit: Literal["A"] = "A"
    training_hash: Text = ""
    """SHA-256 of the training configuration and data, where known."""
    assumptions: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    """Settings that the reader of a file assumed because the file does not have them."""

    @model_validator(mode="after")
    def _distinct_species(self) -> "PotentialConfig":
        if len(set(self.species)) != len(self.species) or not self.species:
            raise ValueError("species must be distinct atomic numbers, at least one")
        return self

    @property
    def fewest_weights(self) -> int:
        """A lower bound of the number of weights, which needs no tensor."""
        return 0


class TensorNetConfig(PotentialConfig):
    """A potential of the architectures `tensornet` and `tensornet2`."""

    architecture: Literal["tensornet", "tensornet2"] = "tensornet"
    channels: Width
    layers: Layers
    cutoff: Range
    cutoff_lower: Annotated[float, Field(ge=0)] = 0.0
    radial_basis: RadialBasisConfig = RadialBasisConfig()
    activation: ActivationName = "silu"
    activation_parameter: float = 0.0
    """softexp only: its alpha."""
    readout_activation: bool = True
    """Whether the activation follows the linear layer before the readout (TorchMD-Net)."""
    rounded_third: bool = False
    """Whether the readout multiplies the squared norms of I by 3 times the float32 number next
    to 1/3, as the kernels of TorchMD-Net from 3.0 and MatGL's fused ones do."""
    group: Literal["O(3)", "SO(3)"] = "O(3)"
    edge_direction: Literal["from_neighbor", "to_neighbor"] = "from_neighbor"
    """Direction of the unit vectors: TorchMD-Net's or MatGL's. It matters for SO(3) only."""
    self_interaction: bool = False
    """Whether an atom is its own neighbor at distance zero (TorchMD-Net)."""
    charge_factor: bool = False
    """Whether the total charge q scales products by 1 + q/10 (TorchMD-Net's TensorNet)."""
    charge_channels: Annotated[int, Field(ge=0, le=4096)] = 0
    """TensorNet2: number of charges per atom that each layer predicts."""
    coulomb: CoulombConfig | None = None
    readout: ReadoutConfig = ReadoutConfig()
    repulsion: Annotated[tuple[RepulsionConfig, ...], Field(max_length=8)] = ()
    dispersion: DispersionConfig | None = None
    reduction: Literal["sum", "mean"] = "sum"
    """mean: divides energies of the network and references by one more than the number of atoms,
    because TorchMD-Net's mean counts its initial zero too."""

    @model_validator(mode="after")
    def _consistent(self) -> "TensorNetConfig":
        if self.cutoff_lower >= self.cutoff:
            raise ValueError("cutoff_lower must be below cutoff")
        if self.predicts_charges != (self.charge_channels > 0):
            raise ValueError("tensornet2 needs charge_channels above 0, tensornet has none")
        if self.coulomb is not None and not self.predicts_charges:
            raise ValueError("a Coulomb energy needs the charges of tensornet2")
        return self

    @property
    def predicts_charges(self) -> bool:
        """Whether the network predicts partial charges, which makes it a TensorNet2."""
        return self.architecture == "tensornet2"

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge of a system enters the energy."""
        return self.charge_factor or self.predicts_charges

    @property
    def fewest_weights(self) -> int:
        """See PotentialConfig; counts the largest matrices."""
        sizes = [self.channels, *self.readout.hidden]
        largest = max(
            self.layers * self.channels,
            self.radial_basis.number,
            len(self.species),
            self.charge_channels,
        )
        readout = sum(width * next_width for width, next_width in pairwise(sizes))
        return max(self.channels * largest, readout)
