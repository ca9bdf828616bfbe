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
    checked_config,
    network_tensors,
    perceptron_tensors,
    shown,
)
from mdgraph.checkpoints.pickles import read_pickle
from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.io.files import read_file
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.units import NUMBERS

_LARGEST_BYTES: Final = 1 << 25
"""Of model.json."""


@dataclass(frozen=True)
class Saved:
    """What a folder says of its model.

    Attributes:
        network: arguments of TensorNet.
        potential: arguments of the Potential around it; empty where there is none.
        version: of TensorNet's conventions; None where the folder does not say.
    """

    network: Mapping[str, Any]
    potential: Mapping[str, Any]
    version: int | None


def _compare(folder: Path, key: str, used: Any, told: Any) -> None:
    """Raises CheckpointError where model.json says another thing than model.pt.

    MatGL writes both from the same arguments; what JSON cannot hold is text there.
    """
    if isinstance(used, Mapping) and isinstance(told, Mapping):
        for name in used.keys() & told.keys():
            _compare(folder, f"{key}.{name}" if key else str(name), used[name], told[name])
        return
    if isinstance(used, list | tuple) and isinstance(told, list):
        if len(used) == len(told):
            for pair in zip(used, told, strict=True):
                _compare(folder, key, *pair)
            return
    elif not (_is_plain(used) and _is_plain(told)) or used == told:
        return
    raise CheckpointError(
        f"{folder} says two things of {printable(key, 200)}: model.pt and model.json differ; "
        "they are of different models, so copy the folder again, or save the model again with "
        "MatGL."
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def read_saved(folder: Path) -> Saved:
    """Reads model.pt and model.json, whichever are there.

    Raises:
        FileError: a file cannot be read.
        CheckpointError: they describe no TensorNet.
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
        if isinstance(description, Mapping) and (told := description.get("kwargs")) is not None:
            _compare(folder, "", arguments, told)
    elif isinstance(description, Mapping):
        arguments = description.get("kwargs")
    if not isinstance(description, Mapping) or not isinstance(arguments, Mapping):
        raise CheckpointError(
            f"{folder} does not say what its weights belong to: neither model.pt nor model.json "
            "holds a model's arguments; save the model again with MatGL."
        )
    inner = arguments.get("model")
    if isinstance(inner, Mapping):
        network, potential, named = inner.get("init_args"), arguments, inner
    else:
        network, potential, named = arguments, {}, description
    kind = named.get("@class", "TensorNet")
    if kind != "TensorNet" or not isinstance(network, Mapping):
        raise CheckpointError(
            f"{folder} holds MatGL's {printable(kind, 100)}, which is not a TensorNet; "
            "use a TensorNet or run it with MatGL."
        )
    version: int | None = None
    if "@model_version" in named:
        version = Settings(named, folder).integer("@model_version")
    elif named:
        version = 1
    return Saved(network, potential, version)


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
    tensors = {
        "scale": torch.ones((), dtype=torch.float64),
        "shift": torch.zeros((), dtype=torch.float64),
        "references": torch.zeros(count, dtype=torch.float64),
    }
    if not bare:
        tensors["scale"] = source.take_scalar("data_std")
        tensors["shift"] = source.take_scalar("data_mean")
    stated = not bare and saved.potential.get("element_refs") is not None
    if stated or "element_refs.property_offset" in source:
        # As stored, which is often a rounding to float32 of what the arguments state: MatGL
        # itself adds the stored ones.
        tensors["references"] = source.take("element_refs.property_offset", count)
    for place in range(len(config.repulsion)):
        own = f"repulsions.{place}."
        tensors[f"{own}constant"] = source.take_scalar("repuls.ke")
        tensors[f"{own}power"] = source.take("repuls.a_pow", 1)
        tensors[f"{own}division"] = source.take("repuls.a_div", 1)
        tensors[f"{own}coefficients"] = source.take("repuls.coefficients", 4)
        tensors[f"{own}exponents"] = source.take("repuls.exponents", 4)
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
"""Of MatGL's TensorNet: before release 3.0 and since."""


def read_matgl(folder: Path, layout: Layout = "auto") -> TensorNetPotential:
    """Reads a folder that MatGL saved: state.pt with model.pt or model.json or both.

    Args:
        folder: the folder.
        layout: side of release 3.0, which turned messages around; "auto" goes by the version
            of TensorNet that the folder names.

    Raises:
        FileError: a file cannot be read.
        CheckpointError: it is no such folder, or its energies cannot be had here.
    """
    saved = read_saved(folder)
    values = read_pickle(folder / "state.pt")
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{folder / 'state.pt'} holds no tensors; save the model again.")
    # torch.compile wraps the network under this name.
    tensors = {str(name).replace("_orig_mod.", ""): value for name, value in values.items()}
    bare = not any(name.startswith("model.") for name in tensors)
    prefix = "" if bare else "model."
    source = Tensors(tensors, folder)
    settings = Settings(saved.network, folder)
    before, reason = _before_3(saved, source, prefix, layout, folder)
    _refuse(settings, folder)
    fused = f"{prefix}tensor_embedding.distance_proj.weight" in source
    # The fused kernels turn the antisymmetric parts around, which SO(3) notices.
    direction = "to_neighbor" if before == fused else "from_neighbor"
    said = (reason, *other_versions(source, saved))
    alpha = _alpha(source, settings, folder)
    config = _config(settings, saved, folder, direction, fused, alpha, said)

    count = len(config.species)
    rows = torch.arange(count)
    ordering = Ordering(gate_by_channel=True, edges_by_channel=True, neighbor_first=before)
    found = network_tensors(source, prefix, config, rows, count, ordering)
    found |= basis_tensors(source, prefix, settings, config)
    widths = (config.channels, *config.readout.hidden, 1)
    for own, name in (("values", "layers"), ("gates", "gates")):
        gated = f"{prefix}final_layer.gated.{name}"
        found |= perceptron_tensors(source, f"readout.{own}", gated, widths)
    found |= potential_tensors(source, saved, config, bare)
    source.ignore(
        f"{prefix}bond_expansion.rbf.cutoff",
        "element_refs.onehot",
        # DGL releases from 2.2 stored it and left it unused.
        f"{prefix}tensor_embedding.emb3.weight",
        f"{prefix}tensor_embedding.emb3.bias",
    )
    source.finish()
    potential = TensorNetPotential(config)
    potential.load_state_dict(found)
    return potential


def _before_3(
    saved: Saved, source: Tensors, prefix: str, layout: Layout, folder: Path
) -> tuple[bool, str]:
    """Whether neighbors come first as before 3.0, and the sentence that says why."""
    new, old = "the messages of releases from 3.0", "the messages of releases before 3.0"
    if layout != "auto":
        before, reason = layout == "before-3.0", "as asked for"
    elif saved.version is None:
        raise CheckpointError(
            f"{folder} does not say the version of its TensorNet; give the layout, "
            "'before-3.0' or '3.0', by the release of MatGL that trained it."
        )
    elif saved.version not in _VERSIONS:
        raise CheckpointError(
            f"{folder} holds version {saved.version} of MatGL's TensorNet, and those known here "
            f"are {name_some(_VERSIONS)}, so what its weights mean is not known; upgrade mdgraph, "
            "or give the layout, 'before-3.0' or '3.0', if you know it."
        )
    else:
        before, reason = saved.version < 2, f"TensorNet's version is {saved.version}"
        if not before and f"{prefix}tensor_embedding.distance_proj.weight" in source:
            reason += (
                "; weights of the fused kernels of 2.2 look the same and must be loaded with "
                "layout 'before-3.0'"
            )
    if before and f"{prefix}tensor_embedding.emb3.weight" in source:
        raise CheckpointError(
            f"{folder} was trained with the DGL form of TensorNet before MatGL 3.0, whose "
            "messages differ from the published ones; train it with a later release."
        )
    return before, f"{old if before else new}: {reason}"


def _alpha(source: Tensors, settings: Settings, folder: Path) -> float:
    """The parameter of softexp, which all layers share and store again; zero for others."""
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
    """Raises CheckpointError for what is no sum of energies of atoms."""
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
            f"{folder} predicts {shown(targets)} numbers an atom, not an energy; "
            "use a model that was trained with ntargets=1."
        )


def _config(
    settings: Settings,
    saved: Saved,
    folder: Path,
    direction: str,
    fused: bool,
    alpha: float,
    said: tuple[str, ...],
) -> TensorNetConfig:
    elements = settings.get("element_types")
    if not isinstance(elements, list | tuple) or not elements:
        raise CheckpointError(
            f"{folder} does not name its element_types; save it again with MatGL."
        )
    unknown = [one for one in elements if not isinstance(one, str) or one not in NUMBERS]
    if unknown:
        names = name_some([shown(one) for one in unknown])
        raise CheckpointError(
            f"{folder} names elements that do not exist ({names}); save it again with MatGL."
        )
    cutoff = settings.number("cutoff")
    repulsion = (
        [{"kind": "matgl", "cutoff": cutoff}]
        if Settings(saved.potential, folder).get("calc_repuls")
        else []
    )
    return checked_config(
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
        rounded_third=fused,
        group=settings.text("equivariance_invariance_group"),
        edge_direction=direction,
        readout={"kind": "gated", "hidden": (settings.integer("units"),) * 3},
        repulsion=repulsion,
        name=folder.resolve().name,
        origin="MatGL",
        assumptions=(*said, "energies are in eV and lengths in A, as always in MatGL"),
    )


def _radial_basis(settings: Settings, folder: Path) -> dict[str, Any]:
    kinds = {"gaussian": "gaussian", "sphericalbessel": "spherical_bessel", "expnorm": "expnorm"}
    word = settings.text("rbf_type")
    kind = kinds.get(word.lower())
    if kind is None:
        raise CheckpointError(
            f"{folder} has rbf_type '{printable(word, 100)}', which cannot be used here; "
            "use a model that was trained with Gaussian or SphericalBessel."
        )
    if kind != "spherical_bessel":
        return {"kind": kind, "number": settings.integer("num_rbf")}
    number, orders = settings.integer("max_n"), settings.integer("max_l")
    if settings.get("use_smooth"):
        return {"kind": "smooth_bessel", "number": number}
    return {"kind": kind, "number": orders * number, "orders": orders}
