"""What a potential is, in words and numbers that a person can check."""

from pathlib import Path
from typing import Any

from mdgraph.arguments import checked
from mdgraph.checkpoints.layout import Layout
from mdgraph.checkpoints.loading import load
from mdgraph.elements import SYMBOLS
from mdgraph.models import TensorNetPotential


@checked
def describe(
    potential: TensorNetPotential | str | Path, *, layout: Layout = "auto"
) -> dict[str, Any]:
    """Everything about a potential but its weights, ready for JSON.

    Args:
        potential: a potential, or what `load` takes.
        layout: see `load`.

    Raises:
        FileError, CheckpointError: see `load`.
    """
    if not isinstance(potential, TensorNetPotential):
        potential = load(potential, layout=layout)
    config = potential.config
    basis = config.radial_basis
    coulomb: str | None = None
    if config.coulomb is not None:
        cutoff = config.coulomb.cutoff
        coulomb = "all pairs" if cutoff is None else f"reaction field, {cutoff:g} A"
    return {
        "name": config.name,
        "origin": config.origin,
        "architecture": "TensorNet2" if config.architecture == "tensornet2" else "TensorNet",
        "group": config.group,
        "layers": config.layers,
        "channels": config.channels,
        "parameters": potential.parameter_count,
        "cutoff_A": config.cutoff,
        "cutoff_lower_A": config.cutoff_lower,
        "radial_basis": f"{basis.number} {basis.kind}",
        "activation": config.activation,
        "uses_charge": config.uses_charge,
        "coulomb": coulomb,
        "repulsion": [f"{part.kind}, {part.cutoff:g} A" for part in config.repulsion],
        "species": [SYMBOLS[number] for number in config.species],
        "units": {"energy": config.energy_unit, "length": config.length_unit},
        "level_of_theory": config.level_of_theory or "not stated",
        "licence": config.licence or "not stated",
        "training_hash": config.training_hash or "not stated",
        "schema_version": config.schema_version,
        "assumed": list(config.assumptions),
    }
