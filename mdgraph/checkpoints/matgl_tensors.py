"""The tensors of MatGL's folders that are not the network's own."""

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
        # MatGL holds the width in float32 and does not store it.
        width = torch.tensor(0.5)
        if "width" in settings and settings.is_none("width"):
            spaced = torch.linspace(0.0, config.cutoff + 1.0, basis.number, dtype=torch.float32)
            width = 1.0 / spaced.diff().mean()
        elif "width" in settings:
            width = torch.tensor(settings.number("width"), dtype=torch.float32)
        return {"network.basis.centers": centers, "network.basis.width": width.double()}
    return {}


def other_versions(source: Tensors, saved: Saved) -> list[str]:
    """Sentences about numbers that state.pt and the arguments of the Potential both hold."""
    sentences: list[str] = []
    for tensor, argument in (
        ("element_refs.property_offset", "element_refs"),
        ("data_mean", "data_mean"),
        ("data_std", "data_std"),
    ):
        stated = saved.potential.get(argument)
        if stated is not None:
            name = f"the argument {argument} of the Potential"
            sentences += source.other_version(tensor, name, stated)
    return sentences


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
    stated = not bare and saved.potential.get("element_refs") is not None
    if stated or "element_refs.property_offset" in source:
        # As stored, which is often a rounding to float32 of what the arguments state: MatGL
        # itself adds the stored ones.
        found["references"] = source.take("element_refs.property_offset", count)
    for place in range(len(config.repulsion)):
        own = f"repulsions.{place}."
        found[f"{own}constant"] = source.take_scalar("repuls.ke")
        found[f"{own}power"] = source.take("repuls.a_pow", 1)
        found[f"{own}division"] = source.take("repuls.a_div", 1)
        found[f"{own}coefficients"] = source.take("repuls.coefficients", 4)
        found[f"{own}exponents"] = source.take("repuls.exponents", 4)
    return found
