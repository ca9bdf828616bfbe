"""The tensors of MatGL's folders that are not the network's own."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdgraph.checkpoints.matgl_folders import Saved
from mdgraph.checkpoints.settings import Settings
from mdgraph.checkpoints.tensors import Tensors
from mdgraph.models import TensorNetConfig


def basis_tensors(
    source: Tensors, prefix: str, settings: Settings, config: TensorNetConfig
) -> dict[str, Tensor]:
    """Those of the radial basis."""
    basis, name = config.radial_basis, f"{prefix}bond_expansion.rbf."
    if basis.kind == "expnorm":
        return {
            "network.basis.means": source.take(f"{name}means", basis.number),
            "network.basis.betas": source.take(f"{name}betas", basis.number),
        }
    if basis.kind == "gaussian":
        centers = source.take(f"{name}centers", basis.number)
        width = settings.get("width", 0.5)
        if width is None:
            width = float(1.0 / centers.diff().mean())
        # MatGL holds the width in float32 and does not store it.
        width = torch.tensor(width, dtype=torch.float32).double()
        return {"network.basis.centers": centers, "network.basis.width": width}
    return {}


def _unrounded(stored: Tensor, stated: Any) -> Tensor:
    """What the arguments state, where the stored numbers are its rounding to float32.

    References were fitted in float64 and are large, so the rounding would show.
    """
    if not isinstance(stated, Tensor | np.ndarray | list):
        return stored
    exact = torch.as_tensor(stated, dtype=torch.float64)
    same = exact.shape == stored.shape and torch.equal(exact.float(), stored.float())
    return exact if same else stored


def potential_tensors(
    source: Tensors, saved: Saved, config: TensorNetConfig, bare: bool
) -> dict[str, Tensor]:
    """Scale, shift, references and repulsion: what the Potential adds to the network."""
    count = len(config.species)
    found = {
        "scale": torch.ones((), dtype=torch.float64),
        "shift": torch.zeros((), dtype=torch.float64),
        "references": torch.zeros(count, dtype=torch.float64),
    }
    if not bare:
        found["scale"] = source.take_scalar("data_std")
        found["shift"] = source.take_scalar("data_mean")
    if "element_refs.property_offset" in source:
        stored = source.take("element_refs.property_offset", count)
        found["references"] = _unrounded(stored, saved.potential.get("element_refs"))
    for place in range(len(config.repulsion)):
        own = f"repulsions.{place}."
        found[f"{own}constant"] = source.take_scalar("repuls.ke")
        found[f"{own}power"] = source.take("repuls.a_pow", 1)
        found[f"{own}division"] = source.take("repuls.a_div", 1)
        found[f"{own}coefficients"] = source.take("repuls.coefficients", 4)
        found[f"{own}exponents"] = source.take("repuls.exponents", 4)
    return found
