"""Skins: how much farther than the cutoff a list looks, so that it lasts for several steps."""

import math
from numbers import Real

import torch

from mdgraph.errors import InputError


def checked_skin(skin: float) -> float:
    """The skin, A; raises InputError for one that cannot be."""
    if not isinstance(skin, Real) or not 0.0 <= skin < math.inf:
        raise InputError(f"The skin is {skin} A; it must be a finite number, not negative.")
    return skin


def default_skin(device: torch.device) -> float:
    """A; on a GPU the list is cheaper than the padding of a skin, on a CPU it is not."""
    return 0.0 if device.type == "cuda" else 0.3
