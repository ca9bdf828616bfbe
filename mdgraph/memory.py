"""How much memory a simulation takes, and how much its device has."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch

from mdgraph.errors import CapacityError
from mdgraph.host_memory import available_host_memory
from mdgraph.models import PotentialModule, SumPotential, TensorNetConfig, architecture_named
from mdgraph.models.architectures import KeptNumbers
from mdgraph.precision import Precision

_GEOMETRY: Final = 500
"""Bytes a slot: vectors, distances, unit vectors and their gradients."""

_RADIAL: Final = 8
"""Bytes a slot and radial function."""

_LONGER_LIST: Final = 800
"""Bytes a slot of a list beyond the network's own."""

_FUSED_ATOM: Final = 500
"""Bytes an atom of the fused form beside its features: state, sums and bookkeeping."""

_FUSED_SLOT: Final = {"cuda": 64, "cpu": 92}
"""Bytes a slot: the list, the edge, its gradient."""

_FUSED_LONGER_LIST: Final = 32
"""Bytes a slot of a list beyond the network's own."""

_FUSED_PLACE: Final = 28
"""Bytes of an edge that a network on edges takes, beside what its layers write."""

_EDGES: Final = 0.6
_FEW_EDGES: Final = 4096
"""On CUDA a network on edges has room for those that there are and a tenth, of a liquid 0.55 of the
slots, and for so many at least."""

_LAYERS_SHARE: Final = 8192
"""On CUDA layers of so many atoms share the buffers of their networks on edges."""

_START: Final = {"cpu": 66_000_000, "cuda": 12_000_000}
"""Bytes of a run of one atom: the log, the state, a list and on a CPU its compiler, first
operations of torch."""

_CAPTURED_START: Final = 70_000_000
"""Bytes that libraries take for autograd within a CUDA graph, beside what they take outside."""

_WEIGHT: Final = 20
"""Bytes a weight, of which copies in float64 are made while a potential is loaded."""

_FUSED_START: Final = {"cpu": 25_000_000, "cuda": 20_000_000}
_CHANNEL: Final = {"cpu": 500_000, "cuda": 150_000}
"""Bytes for making tables, and for each channel of them; on a CPU kernels read from the disk are
in, and on CUDA tables are made on the host. With 250 to 900 intervals on a CPU, 8, 64, 128 and 256
channels took 22, 42 to 90, 80 to 96 and 170 MB beside the weights' 20 bytes each."""

_COMPILER: Final = 100_000_000
"""Bytes that LLVM takes while kernels are compiled."""

_BUILDING: Final = 150
"""Bytes a slot while a list is built."""

_FIRST_CALL: Final = {"cpu": 3_000_000, "cuda": 40_000_000}
_SHARE: Final = {"cpu": 1.0, "cuda": 0.62}
"""Of what is kept for each slot on a CPU. Measured on an H200: 4.8 GB of 6.8 at 3,000 atoms, and
17.5 of 27.9 at 12,288 (2 layers, 128 channels)."""


@dataclass(frozen=True)
class Workload:
    """What is evaluated, and how.

    Attributes:
        potential: of any architecture; the fused form is that of a TensorNet.
        atoms: N, of all replicas.
        capacities: slots a row of each neighbor list, in the order of the potential's cutoffs.
        precision: its network type counts.
        device: where it runs.
    """

    potential: PotentialModule
    atoms: int
    capacities: Sequence[int]
    precision: Precision
    device: torch.device

    @property
    def own(self) -> int:
        """Slots a row of the network's own list."""
        place = self.potential.list_roles.places.get("network", 0)
        return self.capacities[place] if self.capacities else 0

    def terms(self) -> list["Workload"]:
        """The work of each term of a sum; of another potential itself alone."""
        if not isinstance(self.potential, SumPotential):
            return [self]
        return [
            replace(
                self,
                potential=part,
                capacities=[self.capacities[place] for place in self.potential.places(number)],
            )
            for number, part in enumerate(self.potential.parts)
        ]

    @property
    def longer(self) -> int:
        """Slots a row of all other lists."""
        return sum(self.capacities) - self.own

    @property
    def number(self) -> int:
        """Bytes of a number of the network."""
        return self.precision.network.itemsize


def _kept(work: Workload) -> KeptNumbers:
    config = work.potential.config
    return architecture_named(config.architecture).kept(config)


def _tensornet(work: Workload) -> TensorNetConfig:
    """The configuration of a potential that has a fused form."""
    config = work.potential.config
    assert isinstance(config, TensorNetConfig)
    return config


def estimated_memory(work: Workload) -> int:
    """Peak in bytes of evaluating a potential by autograd on a CPU, within a fifth or so.

    What CUDA's allocator holds, the captured graph included, lies within a third of it;
    CUDA's libraries take 0.3 GB more.
    """
    kept = _kept(work)
    slot = _GEOMETRY + _RADIAL * kept.radial + work.number * kept.slot
    return work.atoms * (work.own * slot + work.longer * _LONGER_LIST)


def fused_memory(work: Workload) -> int:
    """Bytes that the fused form of a potential keeps, within a tenth or so.

    TensorNet2 keeps what its networks on edges write: at 128 channels 2.5 KB for each edge on
    CUDA, of few atoms for each layer too; 1.5 for each slot of the list and each layer on a CPU.
    """
    form, kind = architecture_named(work.potential.config.architecture).fused, work.device.type
    if form is not None and form.kept is not None:
        slot = _FUSED_LONGER_LIST + (8 * form.kept.slot if kind == "cuda" else 0)
        return work.atoms * (8 * form.kept.atom + _FUSED_ATOM + slot * sum(work.capacities))
    config = _tensornet(work)
    if kind == "cuda":
        features = 9 * (4 + max(0, config.layers - 1) + 3 * config.layers) + 6
        if work.precision.reduced and not config.predicts_charges:
            features -= 9 * (1 + 3 * config.layers) // 2  # in float16
    else:  # Nothing is written over there.
        features = 9 * (4 + 4 * config.layers) + 16
    slot = _FUSED_SLOT[kind] + config.channels // 8
    if config.predicts_charges:
        features += 5 + 2 * config.layers if kind == "cuda" else 8 + 5 * config.layers
        turns = work.atoms >= _LAYERS_SHARE
        kept = 3 * config.layers
        if kind == "cuda":
            kept = 5 * (min(1, config.layers) if turns else config.layers)
        place = _FUSED_PLACE + work.number * kept * config.channels
        if kind == "cuda":
            slots = max(1, work.atoms * work.own)
            place = int(place * min(1.0, max(_EDGES, _FEW_EDGES / slots)))
        slot += place
    atom = work.number * features * config.channels + _FUSED_ATOM
    return work.atoms * (atom + work.own * slot + work.longer * _FUSED_LONGER_LIST)


def run_memory(work: Workload, *, fused: bool, check: int, compiles: bool) -> int:
    """Peak in bytes of a simulation beyond what imports take, within 30 %.

    On a CPU that is resident memory, whose floor is what libraries take at their first call;
    on CUDA what torch reserves.

    Args:
        work: what runs.
        fused: whether the fused form runs, else autograd.
        check: bytes that the self-check takes beside that; 0 without one.
        compiles: whether kernels will be compiled on the CPU.
    """
    kind, potential = work.device.type, work.potential
    start = _START[kind] + _WEIGHT * potential.parameter_count
    if not fused:
        needed = autograd_memory(work)
        if kind == "cuda":  # A graph has memory of its own, beside that of the first call.
            needed += needed - _FIRST_CALL[kind] + _CAPTURED_START
        return start + needed
    config = potential.config
    channels = config.channels if isinstance(config, TensorNetConfig) else 0
    start += _FUSED_START[kind]
    if compiles:
        start += _COMPILER
    tables = _CHANNEL[kind] * channels
    building = _BUILDING * work.atoms * sum(work.capacities)
    if kind == "cuda":
        return start + fused_memory(work) + tables + max(check, building)
    # The self-check takes again what tables leave: with it and without it runs of 9 atoms take
    # the same, at 8 to 256 channels.
    return start + fused_memory(work) + max(check, tables + building)


def autograd_memory(work: Workload) -> int:
    """Peak in bytes of one evaluation by autograd, whatever its size; see `estimated_memory`.

    Counts too what no slot takes: copies of the weights, features of atoms, and on CUDA the
    workspaces of its libraries. There the kernels of messages keep less of each slot.
    """
    kind = work.device.type
    numbers = 2 * work.potential.parameter_count + _kept(work).atom * work.atoms
    once = _FIRST_CALL[kind] + work.number * numbers
    return once + int(_SHARE[kind] * estimated_memory(work))


def available_memory(device: torch.device) -> int:
    """Bytes that a device has left; on a CPU what the system would give without swapping."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    return available_host_memory()


@contextmanager
def memory_failures(device: torch.device) -> Iterator[None]:
    """Turns torch's error inside the block into a CapacityError about the device."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"{device} ran out of memory; simulate fewer atoms, or choose a device with more."
        ) from error
