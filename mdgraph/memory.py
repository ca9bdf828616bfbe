"""How much memory a simulation takes, and how much its device has."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from mdgraph.errors import CapacityError
from mdgraph.host_memory import available_host_memory
from mdgraph.models import TensorNetPotential
from mdgraph.precision import Precision

_GEOMETRY: Final = 500
"""Bytes a slot: vectors, distances, unit vectors and their gradients."""

_RADIAL: Final = 8
"""Bytes a slot and radial function."""

_LONGER_LIST: Final = 800
"""Bytes a slot of a list beyond the network's own."""

_EMBEDDING: Final = 3
_MESSAGES: Final = 11
_LAYER: Final = 20
"""Numbers a slot and channel kept for the backward pass: by the embedding, by the widest
moment of message passing, and by each layer. Fitted to peaks of 80 MB to 2 GB on a CPU."""

_FUSED_ATOM: Final = 500
"""Bytes an atom of the fused form beside its features: state, sums and bookkeeping."""

_FUSED_SLOT: Final = 64
"""Bytes a slot: the list, the edge, its gradient."""

_FUSED_LONGER_LIST: Final = 32
"""Bytes a slot of a list beyond the network's own."""

_FUSED_PLACE: Final = 28
"""Bytes of an edge that a network on edges takes, beside what its layers write."""


def estimated_memory(
    potential: TensorNetPotential, atoms: int, capacities: Sequence[int], precision: Precision
) -> int:
    """Peak in bytes of evaluating a potential by autograd, within a fifth or so.

    What CUDA's allocator holds, the captured graph included, lies within a third of it;
    CUDA's libraries take 0.3 GB more.

    Args:
        potential: TensorNet or TensorNet2.
        atoms: N.
        capacities: slots a row of each neighbor list, in the order of its cutoffs.
        precision: its network type counts.
    """
    config = potential.config
    layers = _MESSAGES + _LAYER * config.layers if config.layers else 0
    numbers = config.channels * (_EMBEDDING + layers)
    slot = _GEOMETRY + _RADIAL * config.radial_basis.number + precision.network.itemsize * numbers
    own = potential.cutoffs.index(config.cutoff)
    longer = sum(capacity for place, capacity in enumerate(capacities) if place != own)
    return atoms * (capacities[own] * slot + longer * _LONGER_LIST)


def fused_memory(
    potential: TensorNetPotential,
    atoms: int,
    capacities: Sequence[int],
    precision: Precision,
    device: torch.device,
) -> int:
    """Bytes that the fused form of a potential keeps, within a tenth or so.

    TensorNet2 keeps what its networks on edges write: at 128 channels 3 KB for each slot of
    the list and layer on CUDA, half of that on a CPU.

    Args:
        potential: TensorNet or TensorNet2.
        atoms: N.
        capacities: slots a row of each neighbor list, in the order of its cutoffs.
        precision: its network type counts.
        device: where it runs.
    """
    config, number = potential.config, precision.network.itemsize
    features = 9 * (4 + max(0, config.layers - 1) + 3 * config.layers) + 6
    slot = _FUSED_SLOT + config.channels // 8
    if config.architecture == "tensornet2":
        features += 8 + 5 * config.layers
        kept = 6 if device.type == "cuda" else 3
        slot += _FUSED_PLACE + number * kept * config.layers * config.channels
    atom = number * features * config.channels + _FUSED_ATOM
    own = potential.cutoffs.index(config.cutoff)
    longer = sum(capacity for place, capacity in enumerate(capacities) if place != own)
    return atoms * (atom + capacities[own] * slot + longer * _FUSED_LONGER_LIST)


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
