"""Reads TorchMD-Net checkpoints: TensorNet and TensorNet2."""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.checkpoints.convert import (
    Layout,
    Ordering,
    Priors,
    Settings,
    Tensors,
    excerpt,
    network_tensors,
    perceptron_tensors,
    read_priors,
    species_text,
    validate_config,
)
from mdgraph.checkpoints.pickles import read_pickle
from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.units import SYMBOLS

NETWORK = "representation_model."
REPULSION = f"{NETWORK}repulsion."


def basis_tensors(source: Tensors, config: TensorNetConfig) -> dict[str, Tensor]:
    """Takes the tensors of the radial basis."""
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
    """Takes the charge networks of TensorNet2 and the weights of charges in its Coulomb energy."""
    tensors: dict[str, Tensor] = {}
    if not config.charge_channels:
        return tensors
    widths = (3 * config.channels, config.channels, config.channels, 2 * config.charge_channels)
    for step in range(config.layers + 1):
        target = f"network.charges.{step}."
        name = f"{NETWORK}charge_predict" + (f"s.{step - 1}." if step else "_0.")
        for parameter in ("weight", "bias"):
            tensors[f"{target}norm.{parameter}"] = source.take(
                f"{name}q_norm.{parameter}", widths[0]
            )
        tensors |= perceptron_tensors(source, f"{target}linears", f"{name}q_mlp.layers", widths)
    if config.coulomb is not None:
        channels = (config.layers + 1) * config.charge_channels
        tensors["coulomb.weights"] = source.take("output_model.qweights", channels)
    return tensors


def repulsion_tensors(
    source: Tensors, priors: Priors, config: TensorNetConfig
) -> dict[str, Tensor]:
    """Takes the tensors of the nuclear repulsion: of priors and of the network."""
    tensors = {
        f"repulsions.{number}.constant": constant
        for number, constant in enumerate(priors.repulsion_constants)
    }
    for number, repulsion in enumerate(config.repulsion):
        if repulsion.kind != "torchmdnet_network":
            continue
        powers = source.take(f"{REPULSION}z_pow", -1)
        radii = source.take(f"{REPULSION}cutoff_ab", len(powers), len(powers))
        source.ignore(f"{REPULSION}z_outer")
        rows = min(len(powers), len(SYMBOLS))
        padded = torch.ones(len(SYMBOLS), len(SYMBOLS), dtype=torch.float64)
        padded[:rows, :rows] = radii[:rows, :rows]
        tensors[f"repulsions.{number}.radii"] = padded
        tensors[f"repulsions.{number}.powers"] = torch.cat([powers[:rows], padded[rows:, 0]])
    return tensors


_ARCHITECTURES: Final = {
    "tensornet": "tensornet",
    "tensornet2": "tensornet2",
    "tensornetv2_alt": "tensornet2",
    "tensornet-nqe": "tensornet2",
}
_ACTIVATIONS: Final = {
    "silu": "silu",
    "swish": "silu",
    # TorchMD-Net rounds ln 2 to float32.
    "ssp": "ssp_float32",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
}
_BASES: Final = {"expnorm": "expnorm", "gauss": "gaussian"}
_HEADS: Final = {"Scalar": False, "ScalarPlusWeightedCoulomb": True}
_HEAD = "output_model.output_network.layers"


def read_torchmdnet(path: Path, layout: Layout = "auto") -> TensorNetPotential:
    """Reads a Lightning checkpoint of TorchMD-Net.

    Args:
        path: the .ckpt file.
        layout: whether the order of the weights is that of releases before 3.0; "auto" decides
            by the content of the file and adds the reason to `config.assumptions`.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: it is no checkpoint of TorchMD-Net, or its model is not supported.
    """
    hyper_parameters, tensors = _content(path)
    settings = Settings(hyper_parameters, path)
    source = Tensors(tensors, path)
    _refuse(settings, path)
    before_3, reason = _before_3(settings, source, layout)
    priors = read_priors(source, settings, path)
    priors.row_limit = min((priors.row_limit, *source.shape(f"{REPULSION}z_pow")))
    table = settings.integer("max_z")
    species, rows = priors.species(table, path)
    config = _config(settings, source, path, species, priors, before_3, reason)
    is_tensornet2 = config.predicts_charges
    ordering = Ordering(gate_by_channel=before_3, edges_by_channel=before_3 and not is_tensornet2)
    weights = network_tensors(source, NETWORK, config, rows, table, ordering)
    weights |= basis_tensors(source, config)
    weights |= charge_tensors(source, config)
    widths = (config.channels, *config.readout.hidden, 1)
    weights |= perceptron_tensors(source, "readout.linears", _HEAD, widths)
    weights |= repulsion_tensors(source, priors, config)
    weights |= {f"dispersion.{name}": value for name, value in priors.dispersion_tensors.items()}
    weights["scale"] = source.take_scalar("std")
    weights["shift"] = source.take_scalar("mean")
    weights["references"] = priors.reference_energies(rows)
    source.ignore(f"{NETWORK}distance.box", "output_model.distance.box")
    source.finish()
    potential = TensorNetPotential(config)
    potential.load_state_dict(weights)
    return potential


def _content(path: Path) -> tuple[Mapping[Any, Any], dict[str, object]]:
    content = read_pickle(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("state_dict"), Mapping):
        description = (
            name_some(sorted(map(str, content)), 3) if isinstance(content, Mapping) else ""
        )
        description = description or f"a {type(content).__name__}"
        raise CheckpointError(
            f"{path} is a torch file but no TorchMD-Net checkpoint: it holds "
            f"{printable(description, 300)} and no "
            "state_dict; give the .ckpt that training wrote, or the folder for MatGL."
        )
    hyper_parameters = content.get("hyper_parameters")
    hyper_parameters = (
        vars(hyper_parameters) if isinstance(hyper_parameters, Namespace) else hyper_parameters
    )
    if not isinstance(hyper_parameters, Mapping):
        raise CheckpointError(
            f"{path} holds weights without hyper_parameters, so its architecture is unknown; "
            "give the .ckpt that training wrote."
        )
    tensors = {}
    for name, tensor in content["state_dict"].items():
        short_name = str(name).removeprefix("model.")
        tensors[
            re.sub(r"^(output_model\.output_network)\.(\d+)\.", r"\1.layers.\2.", short_name)
        ] = tensor
    return hyper_parameters, tensors


def _refuse(settings: Settings, path: Path) -> None:
    """Raises CheckpointError for a model that does not predict a sum of atomic energies."""
    reduction = settings.get("reduce_op", "add")
    if reduction not in ("add", "sum", "mean"):
        raise CheckpointError(
            f"{path} reduces its atoms by {excerpt(reduction)}, which is not an energy of all of "
            "them; train it with reduce_op 'sum'."
        )
    if settings.get("atom_filter") is not None and settings.integer("atom_filter") > -1:
        raise CheckpointError(
            f"{path} leaves atoms out of its energy (atom_filter); train it with atom_filter -1."
        )


def _before_3(settings: Settings, source: Tensors, layout: Layout) -> tuple[bool, str]:
    """Whether the order of weights is that before 3.0, and a sentence with the reason."""
    new, old = "the layout of releases from 3.0", "the layout of releases before 3.0"
    if layout != "auto":
        return layout == "before-3.0", f"{new if layout == '3.0' else old}, as asked for"
    if f"{NETWORK}distance.box" not in source:
        return True, f"{old}: the file lacks distance.box, which later releases store"
    # Releases 2.5 to 2.6.1 wrote both distance.box and check_errors. Training never writes
    # False: programs that load a checkpoint of any release set it.
    if settings.get("check_errors"):
        return True, f"{old}: the hyper-parameters hold check_errors, which 2.6.2 removed"
    if "check_errors" in settings:
        return False, (
            f"{new}: distance.box is there, and check_errors is False as programs set it that "
            "load a checkpoint; if energies are wrong, load it with layout 'before-3.0'"
        )
    return False, (
        f"{new}: distance.box is there and check_errors is not; only a checkpoint of 2.6.2 "
        "looks the same and must be loaded with layout 'before-3.0'"
    )


def _assumptions(
    settings: Settings, priors: Priors, species: tuple[int, ...], layout: str
) -> tuple[str, ...]:
    assumptions = [
        layout,
        *priors.assumptions,
        "the file does not name the elements it was trained on: all in its table are accepted, "
        + species_text(species),
    ]
    if settings.get("reduce_op") == "mean":
        assumptions.append(
            "energies of the network and references are means over atoms (reduce_op 'mean'), for "
            "which TorchMD-Net divides by one more than their number; two systems far apart do not "
            "have the sum of their energies"
        )
    if not priors.state_units:
        assumptions.append("energies are in eV and lengths in A: the file does not name its units")
    if not settings.is_none("box_vecs"):
        assumptions.append("box_vecs are ignored: the structure says its own cell")
    return tuple(assumptions)


def _config(
    settings: Settings,
    source: Tensors,
    path: Path,
    species: tuple[int, ...],
    priors: Priors,
    before_3: bool,
    layout: str,
) -> TensorNetConfig:
    advice = "use a TensorNet or TensorNet2 that predicts an energy"
    architecture = settings.choice("model", _ARCHITECTURES, advice)
    is_tensornet2 = architecture == "tensornet2"
    lower, upper = settings.number("cutoff_lower"), settings.number("cutoff_upper")
    coulomb = None
    if settings.choice("output_model", _HEADS, advice):
        coulomb = {"cutoff": settings.get("coulomb_cutoff")}
    repulsion = [
        {"kind": "torchmdnet_prior", "cutoff": cutoff} for cutoff in priors.repulsion_cutoffs
    ]
    if any(name.startswith(REPULSION) for name in source.names):
        network_repulsion = {"kind": "torchmdnet_network", "cutoff": upper, "cutoff_lower": lower}
        repulsion.append(network_repulsion)
    dispersion = None
    if priors.dispersion_cutoff is not None:
        dispersion = {"cutoff": priors.dispersion_cutoff}
    return validate_config(
        path,
        architecture=architecture,
        species=species,
        channels=settings.integer("embedding_dimension"),
        layers=settings.integer("num_layers"),
        cutoff=upper,
        cutoff_lower=lower,
        radial_basis={
            "kind": settings.choice("rbf_type", _BASES, "train it with expnorm or gauss"),
            "number": settings.integer("num_rbf"),
        },
        activation=settings.choice("activation", _ACTIVATIONS, "train it with silu"),
        rounded_third=True,
        group=settings.text("equivariance_invariance_group"),
        # Kernels of 3.x reverse the sign of antisymmetric parts, which matters for SO(3).
        edge_direction="from_neighbor" if before_3 else "to_neighbor",
        # With a lower cutoff, the cutoff function is zero at distance zero.
        self_interaction=lower <= 0.0,
        charge_factor=not is_tensornet2,
        charge_channels=settings.integer("q_dim") if is_tensornet2 else 0,
        coulomb=coulomb,
        readout={"hidden": _hidden(source)},
        repulsion=repulsion,
        dispersion=dispersion,
        reduction="mean" if settings.get("reduce_op") == "mean" else "sum",
        name=path.stem,
        origin="TorchMD-Net",
        assumptions=_assumptions(settings, priors, species, layout),
    )


def _hidden(source: Tensors) -> tuple[int, ...]:
    """Widths of the head's hidden layers, from its biases, not from the hyper-parameters."""
    biases = [re.fullmatch(re.escape(_HEAD) + r"\.(\d+)\.bias", name) for name in source.names]
    widths = {int(match[1]): source.shape(match[0]) for match in biases if match}
    # A bias that is no vector gives width 0, which the configuration refuses.
    return tuple((*widths[step], 0)[0] for step in sorted(widths)[:-1])
