"""The registry of architectures, by the word that names them in configurations and files.

An entry has the configuration, the potential, the fused form and the memory of an architecture.
`register` adds one; mdgraph then saves, loads and runs its potentials as those of TensorNet.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from mdgraph.errors import InputError, name_some, printable
from mdgraph.models.config import PotentialConfig, TensorNetConfig
from mdgraph.models.potential import PotentialModule
from mdgraph.models.tensornet_potential import TensorNetPotential
from mdgraph.precision import Precision


@dataclass(frozen=True)
class KeptNumbers:
    """Numbers that autograd keeps of one evaluation, for estimates of memory.

    Attributes:
        radial: numbers of 8 bytes for each slot of the first neighbor list.
        slot: numbers in the network's dtype for each slot of the first list.
        atom: numbers in the network's dtype for each atom.
    """

    radial: int = 0
    slot: int = 0
    atom: int = 0


def _nothing(config: Any) -> KeptNumbers:
    return KeptNumbers()


@dataclass(frozen=True)
class FusedForm:
    """The fast evaluator of an architecture, which `mdgraph.fused` adds to its entry.

    Attributes:
        obstacle: why a configuration has no fused form, as the end of a sentence; None if it has.
        build: makes the evaluator of a potential at a precision on a device.
        compiles: whether the first evaluation on a CPU compiles kernels for a configuration.
        kept: numbers that it keeps, of slots on CUDA alone; None for a network, of which
            `mdgraph.memory` knows.
    """

    obstacle: Callable[[Any], str | None]
    build: Callable[[Any, Precision, torch.device], Any]
    compiles: Callable[[Any, Precision], bool]
    kept: KeptNumbers | None = None


@dataclass
class Architecture:
    """One architecture.

    Attributes:
        word: names it in configurations and files.
        title: names it in text.
        config: the class of its configurations.
        build: makes a potential with new weights, in float64 on the CPU.
        kept: numbers that autograd keeps of an evaluation, from the configuration.
        fused: its fast evaluator; None without one, or before `mdgraph.fused` is imported.
        simple: whether it is so little work that it needs no fast evaluator.
        parse: a configuration from the arguments and cutoff (A, or None) of a term such as
            `lj:Ar=0.01/3.4@10`; None if it cannot be written as a term.
    """

    word: str
    title: str
    config: type[PotentialConfig]
    build: Callable[[Any], PotentialModule]
    kept: Callable[[Any], KeptNumbers] = _nothing
    fused: FusedForm | None = field(default=None)
    simple: bool = False
    parse: Callable[[str, float | None], PotentialConfig] | None = None


def _kept_by_tensornet(config: TensorNetConfig) -> KeptNumbers:
    """Numbers fitted to peaks of 80 MB to 2 GB on a CPU."""
    embedding, messages, layer, features = 3, 11, 20, 100
    layers = messages + layer * config.layers if config.layers else 0
    return KeptNumbers(
        radial=config.radial_basis.number,
        slot=config.channels * (embedding + layers),
        atom=features * config.layers * config.channels,
    )


OLDEST: Final = "tensornet"
"""The architecture of configurations that do not name one."""

ARCHITECTURES: Final[dict[str, Architecture]] = {
    word: Architecture(word, title, TensorNetConfig, TensorNetPotential, _kept_by_tensornet)
    for word, title in (("tensornet", "TensorNet"), ("tensornet2", "TensorNet2"))
}


def register(architecture: Architecture) -> None:
    """Adds an architecture.

    Raises:
        InputError: an architecture with this word exists.
    """
    if architecture.word in ARCHITECTURES:
        raise InputError(
            f"There is an architecture '{architecture.word}' already; choose another word."
        )
    ARCHITECTURES[architecture.word] = architecture


def architecture_named(word: str) -> Architecture:
    """The architecture of a word; raises InputError, which lists the known ones."""
    if not isinstance(word, str) or word not in ARCHITECTURES:
        raise InputError(
            f"There is no architecture '{printable(str(word), 100)}', only "
            f"{name_some(sorted(ARCHITECTURES), 20)}; import the module that registers it."
        )
    return ARCHITECTURES[word]
