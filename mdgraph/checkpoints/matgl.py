"""MatGL's folders: TensorNet, alone or in a Potential."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from mdgraph.checkpoints.layout import Layout
from mdgraph.checkpoints.matgl_folders import Saved, read_saved
from mdgraph.checkpoints.matgl_tensors import basis_tensors, other_versions, potential_tensors
from mdgraph.checkpoints.network import Ordering, network_tensors, perceptron_tensors
from mdgraph.checkpoints.pickles import read_pickle
from mdgraph.checkpoints.settings import Settings, checked_config, shown
from mdgraph.checkpoints.tensors import Tensors
from mdgraph.elements import NUMBERS
from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.models import TensorNetConfig, TensorNetPotential

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
