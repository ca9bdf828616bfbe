"""Reads MatGL model folders: TensorNet, alone or inside a Potential."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.checkpoints.convert import (
    Layout,
    Ordering,
    Settings,
    Tensors,
    excerpt,
    network_tensors,
    perceptron_tensors,
    validate_config,
)
from mdgraph.checkpoints.pickles import read_pickle
from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.io.files import read_file
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.units import NUMBERS

_LARGEST_BYTES: Final = 1 << 25
"""Largest accepted model.json."""


@dataclass(frozen=True)
class ModelArguments:
    """Arguments of a model in a MatGL folder.

    Attributes:
        network: arguments of TensorNet.
        potential: arguments of the Potential around it; empty if there is no Potential.
        version: version of TensorNet's conventions; None if the folder does not state it.
    """

    network: Mapping[str, Any]
    potential: Mapping[str, Any]
    version: int | None


def _compare(folder: Path, key: str, value: Any, copy: Any) -> None:
    """Raises CheckpointError if a value in model.pt differs from its copy in model.json.

    MatGL writes both from the same arguments; values that JSON cannot store become text.
    """
    if isinstance(value, Mapping) and isinstance(copy, Mapping):
        for name in value.keys() & copy.keys():
            _compare(folder, f"{key}.{name}" if key else str(name), value[name], copy[name])
        return
    if isinstance(value, list | tuple) and isinstance(copy, list):
        if len(value) == len(copy):
            for pair in zip(value, copy, strict=True):
                _compare(folder, key, *pair)
            return
    elif not (_is_plain(value) and _is_plain(copy)) or value == copy:
        return
    raise CheckpointError(
        f"{folder} says two things of {printable(key, 200)}: model.pt and model.json differ; "
        "they are of different models, so copy the folder again, or save the model again with "
        "MatGL."
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def read_arguments(folder: Path) -> ModelArguments:
    """Reads model.pt or model.json or both.

    Raises:
        FileError: a file cannot be read.
        CheckpointError: they do not describe a TensorNet.
    """
    description: Any = {}
    if (folder / "model.json").exists():
        text = read_file(folder / "model.json", "a description of MatGL's", _LARGEST_BYTES)
        try:
            description = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{folder / 'model.json'} is not JSON; copy or download the folder again."
            ) from error
    if (folder / "model.pt").exists():
        arguments = read_pickle(folder / "model.pt", arrays=True)
        if isinstance(description, Mapping) and (copy := description.get("kwargs")) is not None:
            _compare(folder, "", arguments, copy)
    elif isinstance(description, Mapping):
        arguments = description.get("kwargs")
    if not isinstance(description, Mapping) or not isinstance(arguments, Mapping):
        raise CheckpointError(
            f"{folder} does not say what its weights belong to: neither model.pt nor model.json "
            "holds a model's arguments; save the model again with MatGL."
        )
    model = arguments.get("model")
    if isinstance(model, Mapping):
        network, potential, network_description = model.get("init_args"), arguments, model
    else:
        network, potential, network_description = arguments, {}, description
    class_name = network_description.get("@class", "TensorNet")
    if class_name != "TensorNet" or not isinstance(network, Mapping):
        raise CheckpointError(
            f"{folder} holds MatGL's {printable(class_name, 100)}, which is not a TensorNet; "
            "use a TensorNet or run it with MatGL."
        )
    version: int | None = None
    if "@model_version" in network_description:
        version = Settings(network_description, folder).integer("@model_version")
    elif network_description:
        version = 1
    return ModelArguments(network, potential, version)


def basis_tensors(
    source: Tensors, prefix: str, settings: Settings, config: TensorNetConfig
) -> dict[str, Tensor]:
    """Takes the tensors of the radial basis."""
    basis, name = config.radial_basis, f"{prefix}bond_expansion.rbf."
    if basis.kind == "expnorm":
        return {
            "network.basis.means": source.take(f"{name}means", basis.number),
            "network.basis.betas": source.take(f"{name}betas", basis.number),
        }
    if basis.kind == "gaussian":
        centers = source.take(f"{name}centers", basis.number)
        # MatGL computes the width in float32 and does not store it.
        width = torch.tensor(0.5)
        if "width" in settings and settings.is_none("width"):
            grid = torch.linspace(0.0, config.cutoff + 1.0, basis.number, dtype=torch.float32)
            width = 1.0 / grid.diff().mean()
        elif "width" in settings:
            width = torch.tensor(settings.number("width"), dtype=torch.float32)
        return {"network.basis.centers": centers, "network.basis.width": width.double()}
    return {}


def differing_copies(source: Tensors, arguments: ModelArguments) -> list[str]:
    """Sentences about numbers that differ between state.pt and the arguments of the Potential."""
    sentences: list[str] = []
    for tensor, argument in (
        ("element_refs.property_offset", "element_refs"),
        ("data_mean", "data_mean"),
        ("data_std", "data_std"),
    ):
        values = arguments.potential.get(argument)
        if values is not None:
            name = f"the argument {argument} of the Potential"
            sentences += source.differing_copy(tensor, name, values)
    return sentences


def potential_tensors(
    source: Tensors, arguments: ModelArguments, config: TensorNetConfig, without_potential: bool
) -> dict[str, Tensor]:
    """Takes the tensors of the Potential: scale, shift, references and repulsion."""
    count = len(config.species)
    tensors = {
        "scale": torch.ones((), dtype=torch.float64),
        "shift": torch.zeros((), dtype=torch.float64),
        "references": torch.zeros(count, dtype=torch.float64),
    }
    if not without_potential:
        tensors["scale"] = source.take_scalar("data_std")
        tensors["shift"] = source.take_scalar("data_mean")
    has_references = not without_potential and arguments.potential.get("element_refs") is not None
    if has_references or "element_refs.property_offset" in source:
        # MatGL adds the stored references, which are often rounded to float32.
        tensors["references"] = source.take("element_refs.property_offset", count)
    for number in range(len(config.repulsion)):
        target = f"repulsions.{number}."
        tensors[f"{target}constant"] = source.take_scalar("repuls.ke")
        tensors[f"{target}power"] = source.take("repuls.a_pow", 1)
        tensors[f"{target}division"] = source.take("repuls.a_div", 1)
        tensors[f"{target}coefficients"] = source.take("repuls.coefficients", 4)
        tensors[f"{target}exponents"] = source.take("repuls.exponents", 4)
    return tensors


_ACTIVATIONS: Final = {
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "softplus2": "ssp",
    "softexp": "softexp",
}


_VERSIONS: Final = (1, 2)
"""Versions of MatGL's TensorNet: before release 3.0, and from 3.0 on."""


def read_matgl(folder: Path, layout: Layout = "auto") -> TensorNetPotential:
    """Reads a folder of MatGL: state.pt with model.pt or model.json or both.

    Args:
        folder: the folder.
        layout: whether the weights are from before release 3.0, which reversed the direction of
            messages; "auto" decides by the version of TensorNet in the folder.

    Raises:
        FileError: a file cannot be read.
        CheckpointError: it is no folder of MatGL, or its model is not supported.
    """
    arguments = read_arguments(folder)
    values = read_pickle(folder / "state.pt")
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{folder / 'state.pt'} holds no tensors; save the model again.")
    # torch.compile wraps the network under this name.
    tensors = {str(name).replace("_orig_mod.", ""): value for name, value in values.items()}
    without_potential = not any(name.startswith("model.") for name in tensors)
    prefix = "" if without_potential else "model."
    source = Tensors(tensors, folder)
    settings = Settings(arguments.network, folder)
    before_3, reason = _before_3(arguments, source, prefix, layout, folder)
    _refuse(settings, folder)
    is_fused = f"{prefix}tensor_embedding.distance_proj.weight" in source
    # MatGL's fused kernels reverse the sign of antisymmetric parts, which matters for SO(3).
    direction = "to_neighbor" if before_3 == is_fused else "from_neighbor"
    assumptions = (reason, *differing_copies(source, arguments))
    alpha = _alpha(source, settings, folder)
    config = _config(settings, arguments, folder, direction, is_fused, alpha, assumptions)

    count = len(config.species)
    rows = torch.arange(count)
    ordering = Ordering(gate_by_channel=True, edges_by_channel=True, neighbor_first=before_3)
    weights = network_tensors(source, prefix, config, rows, count, ordering)
    weights |= basis_tensors(source, prefix, settings, config)
    widths = (config.channels, *config.readout.hidden, 1)
    for target, name in (("values", "layers"), ("gates", "gates")):
        gated = f"{prefix}final_layer.gated.{name}"
        weights |= perceptron_tensors(source, f"readout.{target}", gated, widths)
    weights |= potential_tensors(source, arguments, config, without_potential)
    source.ignore(
        f"{prefix}bond_expansion.rbf.cutoff",
        "element_refs.onehot",
        # DGL releases from 2.2 stored it without using it.
        f"{prefix}tensor_embedding.emb3.weight",
        f"{prefix}tensor_embedding.emb3.bias",
    )
    source.finish()
    potential = TensorNetPotential(config)
    potential.load_state_dict(weights)
    return potential


def _before_3(
    arguments: ModelArguments, source: Tensors, prefix: str, layout: Layout, folder: Path
) -> tuple[bool, str]:
    """Whether neighbors come first, as before 3.0, and a sentence with the reason."""
    new, old = "the messages of releases from 3.0", "the messages of releases before 3.0"
    if layout != "auto":
        before_3, reason = layout == "before-3.0", "as asked for"
    elif arguments.version is None:
        raise CheckpointError(
            f"{folder} does not say the version of its TensorNet; give the layout, "
            "'before-3.0' or '3.0', by the release of MatGL that trained it."
        )
    elif arguments.version not in _VERSIONS:
        raise CheckpointError(
            f"{folder} holds version {arguments.version} of MatGL's TensorNet, and those known "
            f"here are {name_some(_VERSIONS)}, so what its weights mean is not known; upgrade "
            "mdgraph, or give the layout, 'before-3.0' or '3.0', if you know it."
        )
    else:
        before_3, reason = arguments.version < 2, f"TensorNet's version is {arguments.version}"
        if not before_3 and f"{prefix}tensor_embedding.distance_proj.weight" in source:
            reason += (
                "; weights of the fused kernels of 2.2 look the same and must be loaded with "
                "layout 'before-3.0'"
            )
    if before_3 and f"{prefix}tensor_embedding.emb3.weight" in source:
        raise CheckpointError(
            f"{folder} was trained with the DGL form of TensorNet before MatGL 3.0, whose "
            "messages differ from the published ones; train it with a later release."
        )
    return before_3, f"{old if before_3 else new}: {reason}"


def _alpha(source: Tensors, settings: Settings, folder: Path) -> float:
    """The parameter of softexp, of which every layer stores a copy; 0 for other activations."""
    if settings.get("activation_type") != "softexp":
        return 0.0
    names = [name for name in source.names if name.endswith(("act.alpha", "activation.alpha"))]
    values = {float(source.take_scalar(name)) for name in names}
    source.check()
    if len(values) != 1:
        raise CheckpointError(
            f"{folder} holds {len(values)} values of the parameter of softexp, which all layers "
            "share; save it again with MatGL."
        )
    return values.pop()


def _refuse(settings: Settings, folder: Path) -> None:
    """Raises CheckpointError for a model that does not predict a sum of atomic energies."""
    if settings.get("is_intensive", True):
        raise CheckpointError(
            f"{folder} predicts an intensive property, not an energy; "
            "use a model that was trained with is_intensive=False."
        )
    if settings.get("include_state"):
        raise CheckpointError(
            f"{folder} depends on a global state, which a structure does not have; "
            "use a model that was trained with include_state=False."
        )
    targets = settings.get("ntargets", 1)
    if targets != 1:
        raise CheckpointError(
            f"{folder} predicts {excerpt(targets)} numbers an atom, not an energy; "
            "use a model that was trained with ntargets=1."
        )


def _config(
    settings: Settings,
    arguments: ModelArguments,
    folder: Path,
    direction: str,
    is_fused: bool,
    alpha: float,
    assumptions: tuple[str, ...],
) -> TensorNetConfig:
    elements = settings.get("element_types")
    if not isinstance(elements, list | tuple) or not elements:
        raise CheckpointError(
            f"{folder} does not name its element_types; save it again with MatGL."
        )
    unknown = [name for name in elements if not isinstance(name, str) or name not in NUMBERS]
    if unknown:
        names = name_some([excerpt(name) for name in unknown])
        raise CheckpointError(
            f"{folder} names elements that do not exist ({names}); save it again with MatGL."
        )
    cutoff = settings.number("cutoff")
    repulsion = (
        [{"kind": "matgl", "cutoff": cutoff}]
        if Settings(arguments.potential, folder).get("calc_repuls")
        else []
    )
    return validate_config(
        folder,
        species=[NUMBERS[element] for element in elements],
        channels=settings.integer("units"),
        layers=settings.integer("nblocks"),
        cutoff=cutoff,
        radial_basis=_radial_basis(settings, folder),
        activation=settings.choice(
            "activation_type", _ACTIVATIONS, "use a model that was trained with swish"
        ),
        activation_parameter=alpha,
        readout_activation=False,
        rounded_third=is_fused,
        group=settings.text("equivariance_invariance_group"),
        edge_direction=direction,
        readout={"kind": "gated", "hidden": (settings.integer("units"),) * 3},
        repulsion=repulsion,
        name=folder.resolve().name,
        origin="MatGL",
        assumptions=(*assumptions, "energies are in eV and lengths in A, as always in MatGL"),
    )


def _radial_basis(settings: Settings, folder: Path) -> dict[str, Any]:
    bases = {"gaussian": "gaussian", "sphericalbessel": "spherical_bessel", "expnorm": "expnorm"}
    word = settings.text("rbf_type")
    basis = bases.get(word.lower())
    if basis is None:
        raise CheckpointError(
            f"{folder} has rbf_type '{printable(word, 100)}', which cannot be used here; "
            "use a model that was trained with Gaussian or SphericalBessel."
        )
    if basis != "spherical_bessel":
        return {"kind": basis, "number": settings.integer("num_rbf")}
    number, orders = settings.integer("max_n"), settings.integer("max_l")
    if settings.get("use_smooth"):
        return {"kind": "smooth_bessel", "number": number}
    return {"kind": basis, "number": orders * number, "orders": orders}
