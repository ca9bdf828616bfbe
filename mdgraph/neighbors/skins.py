"""Skins: how much farther than the cutoff a list looks, so that it lasts for several steps."""

from numbers import Real
from typing import Final

import torch

from mdgraph.errors import InputError

_LARGEST: Final = 1e4
"""A; no machine holds the pairs of a list that looks farther."""


def checked_skin(skin: float) -> float:
    """The skin, A; raises InputError for one that cannot be."""
    if not isinstance(skin, Real) or not 0.0 <= skin <= _LARGEST:
        raise InputError(f"The skin is {skin} A; it must be a number from 0 to {_LARGEST:g}.")
    return float(skin)


def default_skin(device: torch.device) -> float:
    """A; on a GPU the list is cheaper than the padding of a skin, on a CPU it is not."""
    return 0.0 if device.type == "cuda" else 0.3
