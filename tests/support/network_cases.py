"""Networks of every kind, and systems none of whose pairs is near the end of a window."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from ase_pairs import pairs_by_ase
from random_networks import TENSORNET, TENSORNET2, crystal, molecule
from torch import Tensor

from mdgraph.models.tensornet import ACTIVATIONS
from mdgraph.system import System

CHARGED = TENSORNET | {"charge_factor": True}
COULOMB = TENSORNET2 | {"coulomb": {"cutoff": 5.1}}
ALL_PAIRS = TENSORNET2 | {"coulomb": {}}

BASES = {
    "expnorm": {"kind": "expnorm", "number": 6},
    "gaussian": {"kind": "gaussian", "number": 6},
    "smooth Bessel": {"kind": "smooth_bessel", "number": 3},
    "spherical Bessel": {"kind": "spherical_bessel", "number": 6, "orders": 3},
}

REPULSIONS = ("torchmdnet_prior", "torchmdnet_network", "matgl")

NETWORKS: dict[str, dict[str, Any]] = {
    "O(3)": TENSORNET,
    "SO(3)": TENSORNET | {"group": "SO(3)"},
    "SO(3), to neighbor": TENSORNET | {"group": "SO(3)", "edge_direction": "to_neighbor"},
    "no self interaction": TENSORNET | {"self_interaction": False},
    "lower cutoff": TENSORNET | {"cutoff_lower": 1.1},
    "no layers": TENSORNET | {"layers": 0},
    "charge factor": CHARGED,
    "charge factor, SO(3)": CHARGED | {"group": "SO(3)"},
    "gated": TENSORNET | {"readout": {"kind": "gated", "hidden": (6, 5)}},
    "no readout activation": TENSORNET | {"readout_activation": False},
    **{name: TENSORNET | {"activation": name} for name in ACTIVATIONS if name != "silu"},
    **{name: TENSORNET | {"radial_basis": basis} for name, basis in BASES.items()},
    **{name: TENSORNET | {"repulsion": ({"kind": name, "cutoff": 3.0},)} for name in REPULSIONS},
    "far repulsion": TENSORNET | {"repulsion": ({"kind": "torchmdnet_prior", "cutoff": 4.3},)},
    "TensorNet2": TENSORNET2,
    "TensorNet2, SO(3)": TENSORNET2 | {"group": "SO(3)", "self_interaction": False},
    "TensorNet2, lower cutoff": TENSORNET2 | {"cutoff_lower": 1.1},
    "TensorNet2, smooth Bessel": TENSORNET2 | {"radial_basis": BASES["smooth Bessel"]},
    "TensorNet2, gated": TENSORNET2 | {"readout": {"kind": "gated", "hidden": (6,)}},
    "TensorNet2, Coulomb": COULOMB,
    "TensorNet2, all pairs": ALL_PAIRS,
    "TensorNet2, everything": COULOMB
    | {"repulsion": [{"kind": kind, "cutoff": 3.0} for kind in REPULSIONS]},
}

SOME = {
    name: NETWORKS[name]
    for name in ("O(3)", "SO(3)", "charge factor", "gated", "TensorNet2, everything")
}


STEP = 3e-4
"""A, of numerical differences."""

ENDS = (1.1, 3.0, 3.4, 4.3, 5.1)
"""A, where windows end above."""


@cache
def clear_of_ends(make: Callable[..., System], atoms: int, charge: float, pbc: Any) -> System:
    """A system none of whose pairs crosses the end of a window within a few steps."""
    for seed in range(200):
        system = make(atoms, charge, seed).replace(pbc=pbc)
        pairs = np.array(list(pairs_by_ase(system, max(ENDS) + 1.0).values()))
        distances = np.linalg.norm(pairs, axis=1)
        if all(np.abs(distances - end).min() > 10 * STEP for end in ENDS):
            return system
    raise AssertionError("no such system")


def systems_for(settings: dict[str, Any]) -> list[System]:
    """A charged molecule and, where the Coulomb energy allows it, a charged crystal."""
    one = clear_of_ends(molecule, 7, -1.0, False)
    if settings.get("coulomb") == {}:
        return [one, clear_of_ends(molecule, 9, 2.0, False)]
    return [one, clear_of_ends(crystal, 6, 1.0, True)]


def close(one: Tensor, other: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def slope(energy: Any) -> float:
    """Central difference of fourth order."""
    near = energy(STEP) - energy(-STEP)
    far = energy(2 * STEP) - energy(-2 * STEP)
    return (8.0 * near - far) / (12.0 * STEP)
