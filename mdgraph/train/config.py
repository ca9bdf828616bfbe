"""Options of a training and of the terms of its loss, from a YAML file or Python."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from mdgraph.arguments import FrozenConfig, Names
from mdgraph.models.config import (
    ActivationName,
    CoulombConfig,
    Layers,
    RadialBasisConfig,
    Range,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
    Width,
)
from mdgraph.units import NUMBERS

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

TERMS: Final = ("energy", "forces", "stress", "dipole")
"""Labels that the loss fits."""

Scheduled = tuple[Annotated[float, Field(ge=0, le=1e9)], Annotated[float, Field(ge=0, le=1e9)]]


class Part(FrozenConfig):
    """Part of the options of a training.

    A renamed field keeps its first name as `serialization_alias`, by which hashes of trainings are
    computed, so that these do not change.
    """

    @model_validator(mode="before")
    @classmethod
    def _by_current_names(cls, values: Any) -> Any:
        return cls.current_names(values) if isinstance(values, Mapping) else values


def _pair(value: Any) -> Any:
    """Start and end: of `start:end`, or a number twice."""
    if isinstance(value, str) and ":" in value:
        value = value.split(":")
    if not isinstance(value, list | tuple):
        return value, value
    if len(value) != 2:
        raise ValueError("give a number, or start:end")
    return tuple(value)


class Weighted(Part):
    """A part of the loss with a weight."""

    weight: Scheduled = (1.0, 1.0)
    """A number, or start:end, which runs linearly over the training."""

    @field_validator("weight", mode="before", json_schema_input_type=float | str | list[float])
    @classmethod
    def _two(cls, value: Any) -> Any:
        return _pair(value)


class TermConfig(Weighted):
    """A term of the loss; its errors are first divided by the scale of the forces."""

    kind: Literal["mse", "mae", "huber", "norm"] = "mse"
    """mse, mae or huber of components; norm takes the length of an atom's force error."""
    delta: Positive = 1.0
    """For huber: the error at which the square becomes a line."""


class ForcesConfig(TermConfig):
    """The term of the forces; with squares the few large ones would outweigh all others."""

    kind: Literal["mse", "mae", "huber", "norm"] = "norm"


class PerturbationConfig(Weighted):
    """Penalty on energies of randomly perturbed frames outside a corridor; see `train/losses.py`.

    A frame counts as a whole, with the weight of its energy; a frame without an energy does not.
    """

    renamed: ClassVar = {"largest": "max_displacement", "depth": "well_depth"}

    weight: Scheduled = (0.0, 0.0)
    """Weight of an error of 1 eV of a frame, divided by the scale of the forces."""
    max_displacement: Annotated[Positive, Field(serialization_alias="largest")] = 1.0
    """Largest displacement of an atom, A. It should be a small part of the cutoff, since pairs that
    enter from beyond the cutoff are left out."""
    well_depth: Annotated[Positive, Field(serialization_alias="depth")] = 4.0
    """Depth (eV) of the two Morse curves between which energies should rise: about that of a
    bond."""


class LossConfig(Part):
    """Terms of the loss: energies in eV per atom, forces in eV/A, dipoles in e A."""

    renamed: ClassVar = {"displaced": "perturbation"}

    energy: TermConfig = TermConfig()
    """Energies, eV per atom."""
    forces: ForcesConfig = ForcesConfig()
    """Forces, eV/A."""
    stress: TermConfig = TermConfig(weight=(0.0, 0.0))
    """Stresses of periodic frames, eV/A^3."""
    dipole: TermConfig = TermConfig(weight=(0.0, 0.0))
    """Dipoles of neutral frames without a cell, from the charges of a TensorNet2, e A."""
    perturbation: Annotated[PerturbationConfig, Field(serialization_alias="displaced")] = (
        PerturbationConfig()
    )
    elements: dict[str, NotNegative] = Field({})
    """Weight of the forces on atoms of an element, if it is not 1."""

    @model_validator(mode="after")
    def _has_a_weight(self) -> Self:
        if not any(any(getattr(self, name).weight) for name in TERMS):
            raise ValueError(
                "all weights of the loss are 0, so that nothing is fitted; give energy, forces or "
                "another term a weight above 0"
            )
        return self

    @field_validator("elements")
    @classmethod
    def _known(cls, value: dict[str, float]) -> dict[str, float]:
        unknown = [name for name in value if name not in NUMBERS]
        if unknown:
            raise ValueError(f"{unknown[0]} is not an element")
        return value


# Larger numbers are refused before memory is taken.
Count = Annotated[int, Field(ge=1, lt=2**31)]
Rate = Annotated[float, Field(gt=0, le=100)]
Share = Annotated[float, Field(ge=0, lt=1)]

_BETAS: Final = {"muon": (0.99, 0.999)}
"""Defaults of optimizers, where they are not those of Adam."""


class NetworkConfig(Part):
    """The network, as in TensorNetConfig; its elements are those of the data."""

    architecture: Literal["tensornet", "tensornet2"] = "tensornet"
    """tensornet2 also predicts charges, and needs charge_channels."""
    channels: Width = 64
    """Feature channels of an atom; the time of a step grows with their number."""
    layers: Layers = 2
    """Interaction layers; each lets an atom see one cutoff farther."""
    cutoff: Range = 5.0
    """Distance within which atoms are neighbors, A."""
    cutoff_lower: NotNegative = 0.0
    """Distance at which the radial functions begin, A."""
    radial_basis: RadialBasisConfig = RadialBasisConfig()
    """Functions of the distance: their kind and number."""
    activation: ActivationName = "silu"
    """Nonlinear function of the network."""
    readout_activation: bool = True
    """Whether the activation follows the linear layer before the readout."""
    group: Literal["O(3)", "SO(3)"] = "O(3)"
    """Symmetry of features: O(3) treats mirror images alike."""
    self_interaction: bool = False
    """Whether an atom is its own neighbor at distance zero."""
    charge_factor: bool = False
    """Whether the total charge of a frame enters its energy."""
    charge_channels: Annotated[int, Field(ge=0, le=4096)] = 0
    """Charges per atom that each layer of a tensornet2 predicts."""
    coulomb: CoulombConfig | None = None
    """Coulomb energy of these charges, such as {cutoff: 10} in A; by default none."""
    readout: ReadoutConfig = ReadoutConfig(hidden=(32,))
    """Network from the features of an atom to its energy: widths of the hidden layers."""
    repulsion: tuple[RepulsionConfig, ...] = ()
    """Screened repulsion of nuclei, such as [{kind: matgl, cutoff: 5}], or [{kind: contact,
    cutoff: 2}] between atoms nearer than bonds (0.7 of the sum of their covalent radii)."""

    def of(self, species: Sequence[int], **about: Any) -> TensorNetConfig:
        """The network for these elements; `about` are fields that training sets itself."""
        return TensorNetConfig(species=tuple(species), **self.model_dump(), **about)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            self.of((1,))
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"]
            raise ValueError(message.removeprefix("Value error, ")) from None
        return self


class TrainConfig(Part):
    """Options of a training. Lengths are in A, energies in eV, forces in eV/A."""

    data: Annotated[str, Field(examples=["frames.h5"])]
    """Data set, written by `mdgraph data convert`."""
    split: str | None = None
    """Split of the data set; by default a tenth of the frames is held out at random."""
    out: Annotated[str, Field(examples=["my-potential"])]
    """Folder of the potential, which must be new or empty."""
    name: str = ""
    """Name of the potential; by default that of the folder."""
    level_of_theory: str = ""
    """Level of theory to record; by default that of the data set."""
    licence: str = ""
    """Licence to record; by default that of the data."""

    baseline: Annotated[tuple[str, ...], Field(max_length=8), Names] = ()
    """Potentials whose energies, forces and stresses are subtracted from the labels: the network
    learns the rest, and the sum is written. Any potential that `mdgraph inspect` reads, or a term
    such as `d3bj:pbe` or `zbl@1.5`."""
    potential: NetworkConfig = NetworkConfig()
    """The network, unless start_from names one."""
    start_from: str | None = None
    """Potential to fine-tune: any that `mdgraph inspect` reads."""
    elements: Literal["all", "data"] = "all"
    """Elements that the potential of start_from keeps: all, or only those of the data, so that
    the new potential refuses elements it was not trained on."""
    initialization: Literal["torch", "normalized"] = "torch"
    """Initial weights. normalized: variance 1 / inputs for linear layers, which keeps the variance
    of their input, and biases 0. torch: a third of this variance, for biases too."""
    freeze: tuple[str, ...] = ()
    """Prefixes of names of weights that are not trained, such as embedding or layers.0."""
    references: Literal["auto", "least-squares", "isolated-atoms", "none"] | dict[str, float] = (
        "auto"
    )
    """Energies of the elements; auto takes isolated atoms if the data have one of each element."""
    refit: bool = True
    """Fit the reference energies once more at the end, which removes the mean error."""

    loss: LossConfig = LossConfig()
    batch: Count | None = None
    """Frames in a step, 4 unless batch_atoms or batch_edges is given."""
    batch_atoms: Count | None = None
    """Atoms in a step, instead of batch: batches of small frames are then larger."""
    batch_edges: Count | None = None
    """Edges in a step, instead of batch or together with batch_atoms: batches of dense frames are
    then smaller. An atom has an edge to each neighbor within the cutoff; padding counts too."""
    shapes: Count = 8
    """Largest number of shapes that frames are padded to; each has a CUDA graph of its own."""
    steps: Annotated[Count | None, Field(examples=[20000])] = None
    """Length of the training."""
    epochs: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Length of the training, instead of steps."""

    optimizer: Literal["adamw", "adam", "nadam", "radam", "sgd", "muon"] = "adamw"
    """Optimizer of the weights."""
    learning_rate: Rate = 1e-3
    """Largest learning rate, which is reached after the warmup."""
    final_learning_rate: Annotated[float, Field(ge=0, le=100)] = 1e-6
    """Learning rate at the end of the cosine, or the least under plateau."""
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    """How the learning rate falls after the warmup."""
    warmup: Share = 0.01
    """Share of the training in which the rate rises."""
    plateau_patience: Count = 5
    """Validations without an improvement before the rate falls."""
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor by which the rate falls on a plateau."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Betas of adam and its variants; the first is also the momentum of sgd, and of muon (whose
    default is 0.99)."""
    muon_edges: bool = False
    """Whether muon also updates the layers that take functions of the distance; bonds of molecules
    may then break sooner (docs/errors.md)."""
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Share of the weights, times the learning rate, that a step subtracts from them."""
    clip: Positive | None = 1.0
    """Largest norm of the gradient; null for none. A step takes frames of one size. If nearly every
    step is clipped, all steps count alike, so the weights of frames of different sizes have no
    effect, only the numbers of these frames."""
    average: Share = 0.999
    """Decay of the running mean of the weights; the mean is what is written."""
    average_from: Share | None = None
    """Share of the training after which the mean counts the weights of all steps equally."""

    validations: Count = 40
    """Number of validations on the held-out frames, evenly over the training."""
    patience: Count | None = None
    """Stop after this many validations without an improvement."""
    keep: Literal["best", "last"] = "best"
    """Which weights are kept: the best on validation, or the last."""
    checkpoint_interval: Count = 1000
    """Steps between checkpoints."""
    also_log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Programs that also receive the rows of log.csv."""
    spike: Positive = 30.0
    """A loss this many times the usual one is a spike; the training returns to a state before."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of all random numbers."""
    precision: Literal["mixed", "tf32", "double"] = "mixed"
    """mixed computes the network in float32. tf32 is mixed, but in training steps cuBLAS rounds the
    factors of matrix products to TF32; only on CUDA."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    eager: bool = False
    """On a GPU, run each step without capturing it as a CUDA graph."""
    resident: bool | None = None
    """Whether frames stay on the device; by default if they fit."""

    @model_validator(mode="before")
    @classmethod
    def _default_betas(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("optimizer") in _BETAS:
            return {"betas": _BETAS[values["optimizer"]]} | values
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs both give the length of the training; give one")
        if self.steps is None and self.epochs is None:
            raise ValueError("nothing gives the length of the training; give steps or epochs")
        for budget in ("batch_atoms", "batch_edges"):
            if self.batch is not None and getattr(self, budget) is not None:
                raise ValueError(f"batch and {budget} both give the size of a step; give one")
        if self.muon_edges and self.optimizer != "muon":
            raise ValueError(f"muon_edges belongs to the optimizer muon, not {self.optimizer}")
        for name, own in (("potential", "network"), ("initialization", "weights")):
            if self.start_from is not None and name in self.model_fields_set:
                raise ValueError(f"start_from brings its own {own}; leave {name} out")
        if self.baseline and self.references == "isolated-atoms":
            raise ValueError(
                "energies of isolated atoms are no references for the rest after a baseline; leave "
                "references out, or give least-squares"
            )
        if self.baseline and any(self.loss.dipole.weight):
            raise ValueError("a baseline gives no dipoles; leave loss.dipole or the baseline out")
        if isinstance(self.references, dict):
            unknown = [name for name in self.references if name not in NUMBERS]
            if unknown:
                raise ValueError(f"references: {unknown[0]} is not an element")
        return self

    def frames_a_step(self, atoms: int, slots: int) -> int:
        """Frames in a step of one process, if there are enough.

        Args:
            atoms: atoms of a frame, padding included.
            slots: neighbors of an atom within the network's cutoff, empty slots included.
        """
        budgets = ((self.batch, 1), (self.batch_atoms, atoms), (self.batch_edges, atoms * slots))
        limits = [budget // size for budget, size in budgets if budget is not None]
        return max(1, min(limits, default=4))
