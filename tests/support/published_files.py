"""Checkpoints as TorchMD-Net and MatGL write them, made from a potential of ours."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mdgraph.models import TensorNetPotential
from mdgraph.units import SYMBOLS

ROWS = 21
"""Length of TorchMD-Net's species table here; atomic numbers are its rows."""

_ACTIVATIONS = {"silu": "swish", "ssp": "softplus2"}


def by_channel(rows: Tensor) -> Tensor:
    """Rows in order (3, F) put into order (F, 3)."""
    return rows.unflatten(0, (3, -1)).transpose(0, 1).flatten(0, 1).contiguous()


def _network(
    potential: TensorNetPotential, gate_by_channel: bool, edges_by_channel: bool, fused: bool
) -> dict[str, Tensor]:
    """The tensors that both packages name alike, but for the species table."""
    own = {
        name.removeprefix("network."): value
        for name, value in potential.state_dict().items()
        if name.startswith("network.")
    }
    found: dict[str, Tensor] = {}
    pair = [own["embedding.atom.weight"], own["embedding.neighbor.weight"]]
    found["tensor_embedding.emb2.weight"] = torch.cat(pair, dim=1)
    found["tensor_embedding.emb2.bias"] = own["embedding.atom.bias"]
    for kind in ("weight", "bias"):
        distance = own[f"embedding.distance.{kind}"]
        if fused:
            found[f"tensor_embedding.distance_proj.{kind}"] = distance
        else:
            for part, value in enumerate(distance.chunk(3), start=1):
                found[f"tensor_embedding.distance_proj{part}.{kind}"] = value
        found[f"tensor_embedding.init_norm.{kind}"] = own[f"embedding.norm.{kind}"]
        for step in range(2):
            value = own[f"embedding.gate.{step}.{kind}"]
            found[f"tensor_embedding.linears_scalar.{step}.{kind}"] = (
                by_channel(value) if gate_by_channel and step == 1 else value
            )
        for layer in range(potential.config.layers):
            for step in range(3):
                value = own[f"layers.{layer}.edge_network.linears.{step}.{kind}"]
                found[f"layers.{layer}.linears_scalar.{step}.{kind}"] = (
                    by_channel(value) if edges_by_channel and step == 2 else value
                )
        found[f"out_norm.{kind}"] = own[f"norm.{kind}"]
        found[f"linear.{kind}"] = own[f"linear.{kind}"]
    for part in range(3):
        mixing = own[f"embedding.mixing.parts.{part}.weight"]
        found[f"tensor_embedding.linears_tensor.{part}.weight"] = mixing
        for layer in range(potential.config.layers):
            for place, side in enumerate(("before", "after")):
                value = own[f"layers.{layer}.{side}.parts.{part}.weight"]
                found[f"layers.{layer}.linears_tensor.{3 * place + part}.weight"] = value
    return found


def torchmdnet_content(potential: TensorNetPotential, before_3: bool = False) -> dict[str, Any]:
    """What TorchMD-Net saves; layouts before 3.0 look as release 2.4 wrote them."""
    config, own = potential.config, potential.state_dict()
    two = config.architecture == "tensornet2"
    torch.manual_seed(5)
    table = torch.randn(ROWS, config.channels, dtype=torch.float64)
    table[list(config.species)] = own["network.embedding.species.weight"]
    references = torch.randn(ROWS, 1, dtype=torch.float64)
    references[list(config.species), 0] = own["references"]
    network = _network(potential, before_3, before_3 and not two, fused=False)
    tensors = {f"model.representation_model.{name}": value for name, value in network.items()}
    tensors["model.representation_model.tensor_embedding.emb.weight"] = table
    tensors["model.mean"], tensors["model.std"] = own["shift"], own["scale"].reshape(1)
    tensors["model.prior_model.0.initial_atomref"] = torch.zeros(ROWS, 1)
    tensors["model.prior_model.0.atomref.weight"] = references
    basis = "model.representation_model.distance_expansion."
    if config.radial_basis.kind == "expnorm":
        tensors[f"{basis}means"] = own["network.basis.means"]
        tensors[f"{basis}betas"] = own["network.basis.betas"]
    else:
        tensors[f"{basis}offset"] = own["network.basis.centers"]
        tensors[f"{basis}coeff"] = -own["network.basis.width"]
    head = "model.output_model.output_network." + ("" if before_3 else "layers.")
    for place in range(len(config.readout.hidden) + 1):
        for kind in ("weight", "bias"):
            tensors[f"{head}{2 * place}.{kind}"] = own[f"readout.linears.{place}.{kind}"]
    for step in range(config.layers + 1 if two else 0):
        name = f"charge_predicts.{step - 1}" if step else "charge_predict_0"
        name = f"model.representation_model.{name}."
        for kind in ("weight", "bias"):
            tensors[f"{name}q_norm.{kind}"] = own[f"network.charges.{step}.norm.{kind}"]
            for place in range(3):
                value = own[f"network.charges.{step}.linears.{place}.{kind}"]
                tensors[f"{name}q_mlp.layers.{2 * place}.{kind}"] = value
    values: dict[str, Any] = {
        "model": config.architecture,
        "embedding_dimension": config.channels,
        "num_layers": config.layers,
        "num_rbf": config.radial_basis.number,
        "rbf_type": {"expnorm": "expnorm", "gaussian": "gauss"}[config.radial_basis.kind],
        "trainable_rbf": False,
        "activation": config.activation.removesuffix("_float32"),
        "cutoff_lower": config.cutoff_lower,
        "cutoff_upper": config.cutoff,
        "max_z": ROWS,
        "equivariance_invariance_group": config.group,
        "prior_model": [{"Atomref": {"max_z": ROWS}}],
        "prior_args": None,
        "atom_filter": -1,
        "output_model": "ScalarPlusWeightedCoulomb" if config.coulomb else "Scalar",
        "reduce_op": "add",
        "q_dim": config.charge_channels,
        "box_vecs": None,
    }
    if config.coulomb is not None:
        tensors["model.output_model.qweights"] = own["coulomb.weights"]
        values["coulomb_cutoff"] = config.coulomb.cutoff
    _add_repulsion(potential, tensors, values)
    if before_3:
        values["check_errors"] = True
    else:
        tensors["model.representation_model.distance.box"] = torch.zeros(3, 3)
    return {"state_dict": tensors, "hyper_parameters": values, "epoch": 3, "global_step": 12}


def _add_repulsion(
    potential: TensorNetPotential, tensors: dict[str, Tensor], values: dict[str, Any]
) -> None:
    own = potential.state_dict()
    for place, part in enumerate(potential.config.repulsion):
        if part.kind == "torchmdnet_prior":
            prefix = f"model.prior_model.{len(values['prior_model'])}."
            tensors[f"{prefix}atomic_number"] = torch.arange(ROWS)
            tensors[f"{prefix}distance.box"] = torch.zeros(3, 3)
            scales = {"distance_scale": 1e-10, "energy_scale": 1.602176634e-19}
            values["prior_model"].append({"ZBL": {"cutoff_distance": part.cutoff, **scales}})
        else:
            prefix = "model.representation_model.repulsion."
            tensors[f"{prefix}z_pow"] = own[f"repulsions.{place}.powers"][:ROWS]
            tensors[f"{prefix}cutoff_ab"] = own[f"repulsions.{place}.radii"][:ROWS, :ROWS]
            tensors[f"{prefix}z_outer"] = torch.zeros(ROWS, ROWS)


def matgl_content(
    potential: TensorNetPotential, before_3: bool = False, fused: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Arguments and tensors that MatGL saves of a Potential around a TensorNet."""
    config, own = potential.config, potential.state_dict()
    network = _network(potential, True, True, fused)
    network["tensor_embedding.emb.weight"] = own["network.embedding.species.weight"]
    if before_3:
        pair = network["tensor_embedding.emb2.weight"].chunk(2, dim=1)
        network["tensor_embedding.emb2.weight"] = torch.cat(pair[::-1], dim=1)
    basis = config.radial_basis
    arguments: dict[str, Any] = {
        "element_types": [SYMBOLS[number] for number in config.species],
        "units": config.channels,
        "nblocks": config.layers,
        "cutoff": config.cutoff,
        "num_rbf": basis.number,
        "max_n": basis.number // basis.orders,
        "max_l": basis.orders,
        "use_smooth": basis.kind == "smooth_bessel",
        "activation_type": _ACTIVATIONS.get(config.activation, config.activation),
        "equivariance_invariance_group": config.group,
        "dtype": torch.float32,
        "include_state": False,
        "is_intensive": False,
        "ntargets": 1,
    }
    if basis.kind == "gaussian":
        arguments |= {"rbf_type": "Gaussian", "width": float(own["network.basis.width"])}
        network["bond_expansion.rbf.centers"] = own["network.basis.centers"]
    elif basis.kind == "expnorm":
        arguments["rbf_type"] = "ExpNorm"
        for name in ("means", "betas"):
            network[f"bond_expansion.rbf.{name}"] = own[f"network.basis.{name}"]
    else:
        arguments["rbf_type"] = "SphericalBessel"
        network["bond_expansion.rbf.cutoff"] = torch.tensor(config.cutoff)
    for branch, name in (("values", "layers"), ("gates", "gates")):
        for place in range(4):
            for kind in ("weight", "bias"):
                value = own[f"readout.{branch}.{place}.{kind}"]
                network[f"final_layer.gated.{name}.{2 * place}.{kind}"] = value
    tensors = {f"model.{name}": value for name, value in network.items()}
    tensors |= {"data_mean": own["shift"], "data_std": own["scale"]}
    tensors["element_refs.property_offset"] = own["references"]
    tensors["element_refs.onehot"] = torch.eye(len(config.species))
    if config.repulsion:
        for ours, theirs in (
            ("constant", "ke"),
            ("power", "a_pow"),
            ("division", "a_div"),
            ("coefficients", "coefficients"),
            ("exponents", "exponents"),
        ):
            tensors[f"repuls.{theirs}"] = own[f"repulsions.0.{ours}"]
    inner = {
        "@class": "TensorNet",
        "@module": "matgl.models._tensornet",
        "@model_version": 1 if before_3 else 2,
        "init_args": arguments,
    }
    outer = {"model": inner, "element_refs": None, "calc_repuls": bool(config.repulsion)}
    return outer, tensors


def write_matgl(
    folder: Path,
    arguments: dict[str, Any],
    tensors: dict[str, Tensor],
    files: tuple[str, ...] = ("model.pt", "model.json"),
) -> Path:
    """A folder with state.pt and what describes it."""
    folder.mkdir(parents=True)
    torch.save(tensors, folder / "state.pt")
    if "model.pt" in files:
        torch.save(arguments, folder / "model.pt")
    if "model.json" in files:
        bare = "model" not in arguments
        description = {
            "@class": "TensorNet" if bare else "Potential",
            "@model_version": 2 if bare else 3,
            "kwargs": arguments,
        }
        (folder / "model.json").write_text(json.dumps(description, default=str))
    return folder
