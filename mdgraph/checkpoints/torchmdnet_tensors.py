"""The tensors of TorchMD-Net's checkpoints that are not the network's own."""

import torch
from torch import Tensor

from mdgraph.checkpoints.network import perceptron_tensors
from mdgraph.checkpoints.priors import Priors
from mdgraph.checkpoints.tensors import Tensors
from mdgraph.elements import SYMBOLS
from mdgraph.models import TensorNetConfig

NETWORK = "representation_model."
REPULSION = f"{NETWORK}repulsion."


def basis_tensors(source: Tensors, config: TensorNetConfig) -> dict[str, Tensor]:
    """Those of the radial basis."""
    prefix, number = f"{NETWORK}distance_expansion.", config.radial_basis.number
    if config.radial_basis.kind == "expnorm":
        return {
            "network.basis.means": source.take(f"{prefix}means", number),
            "network.basis.betas": source.take(f"{prefix}betas", number),
        }
    return {
        "network.basis.centers": source.take(f"{prefix}offset", number),
        "network.basis.width": -source.take_scalar(f"{prefix}coeff"),
    }


def charge_tensors(source: Tensors, config: TensorNetConfig) -> dict[str, Tensor]:
    """Those that predict the charges of TensorNet2, and weigh them in its Coulomb energy."""
    found: dict[str, Tensor] = {}
    if not config.charge_channels:
        return found
    widths = (3 * config.channels, config.channels, config.channels, 2 * config.charge_channels)
    for step in range(config.layers + 1):
        own = f"network.charges.{step}."
        name = f"{NETWORK}charge_predict" + (f"s.{step - 1}." if step else "_0.")
        for kind in ("weight", "bias"):
            found[f"{own}norm.{kind}"] = source.take(f"{name}q_norm.{kind}", widths[0])
        found |= perceptron_tensors(source, f"{own}linears", f"{name}q_mlp.layers", widths)
    if config.coulomb is not None:
        channels = (config.layers + 1) * config.charge_channels
        found["coulomb.weights"] = source.take("output_model.qweights", channels)
    return found


def repulsion_tensors(
    source: Tensors, priors: Priors, config: TensorNetConfig
) -> dict[str, Tensor]:
    """Those of the repulsion of nuclei, in either of its dialects."""
    found = {
        f"repulsions.{place}.constant": constant
        for place, constant in enumerate(priors.repulsion_constants)
    }
    for place, part in enumerate(config.repulsion):
        if part.kind != "torchmdnet_network":
            continue
        powers = source.take(f"{REPULSION}z_pow", -1)
        radii = source.take(f"{REPULSION}cutoff_ab", len(powers), len(powers))
        source.ignore(f"{REPULSION}z_outer")
        rows = min(len(powers), len(SYMBOLS))
        padded = torch.ones(len(SYMBOLS), len(SYMBOLS), dtype=torch.float64)
        padded[:rows, :rows] = radii[:rows, :rows]
        found[f"repulsions.{place}.radii"] = padded
        found[f"repulsions.{place}.powers"] = torch.cat([powers[:rows], padded[rows:, 0]])
    return found
