"""The potential of a run: its weights, their origin, and the files beside them."""

import json
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdgraph.checkpoints import describe, load, load_domain
from mdgraph.checkpoints.convert import Layout
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.checkpoints.location import locate
from mdgraph.errors import InputError
from mdgraph.io.files import disk_failures
from mdgraph.io.structures import read_system
from mdgraph.models import Domain, PotentialModule, SumPotential, check_coulomb_range, with_terms
from mdgraph.runs.config import Configuration, MDConfig
from mdgraph.shipped import FILE_NAME
from mdgraph.system import System, total_charge

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Source:
    """A potential with its origin.

    Attributes:
        potential: the module.
        reference: name, absolute path or address with a commit that loads it again.
        sha256: of the file, or of all files in the folder.
        folder: may hold a start structure, metrics and labels beside the weights; None without one.
        inner: the small potential of a run with two time steps, or None.
        own_terms: how many terms of a sum the potential has by itself, before those added to it.
    """

    potential: PotentialModule
    reference: str
    sha256: str
    folder: Path | None
    inner: "Source | None" = None
    own_terms: int = 1

    @property
    def name(self) -> str:
        """Name for people to read."""
        return self.potential.config.name or Path(self.reference).stem

    def description(self) -> dict[str, Any]:
        """What `run.json` records of the potential."""
        about = describe(self.potential)
        own = {"reference": self.reference, "sha256": self.sha256, **about}
        if any(self.term_sha256):
            own["term_sha256"] = self.term_sha256
        return own if self.inner is None else own | {"inner": self.inner.description()}

    @property
    def term_sha256(self) -> list[str]:
        """Of the files of the terms of a sum; empty for terms without one."""
        terms = self.potential.config.terms if isinstance(self.potential, SumPotential) else ()
        return [term.sha256 for term in terms]

    @cached_property
    def domain(self) -> Domain | None:
        """Domain of the training set, if it lies beside the weights; see `load_domain`."""
        return None if self.folder is None else load_domain(self.folder)

    def start(self) -> System:
        """The structure that comes with it; raises InputError without one."""
        path = None if self.folder is None else self.folder / "start.extxyz"
        if path is None or not path.exists():
            raise InputError(
                f"No structure is given and none comes with the potential {self.reference}; "
                "give a structure file."
            )
        return read_system(path)

    def training_distribution(
        self, pair: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Radii (A) and g(r) of a pair such as O-O in the training frames; None if unknown."""
        path = None if self.folder is None else self.folder / "metrics.json"
        if path is None or not path.exists():
            return None
        with disk_failures(path, "read"):
            text = path.read_text(encoding="utf-8", errors="replace")
        try:
            distributions = json.loads(text)["training_rdf"]
            radii, values = (
                np.array(distributions[name], dtype=float)
                for name in ("r_A", pair.replace("-", "").lower())
            )
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return (radii, values) if radii.ndim == 1 and radii.shape == values.shape else None


def read_potential(configuration: Configuration) -> Source:
    """Loads the potential that a configuration names, and its inner potential if it has one.

    Terms are added to the potential, and not to the inner one. That takes the range of the Coulomb
    energy too, where it has such an energy.

    Raises:
        FileError, CheckpointError, InputError: see `load`.
    """
    inner = None
    if isinstance(configuration, MDConfig) and configuration.inner_potential is not None:
        inner = _load_source(configuration.inner_potential)
        if "coulomb" in inner.potential.list_roles.places:
            inner = _with_coulomb_cutoff(inner, configuration)
    source = _load_source(configuration.potential, configuration.layout)
    source = replace(_with_coulomb_cutoff(source, configuration), inner=inner)
    terms = configuration.terms or ()
    potential = source.potential
    if terms and not potential.config.name:
        potential.config = potential.config.model_copy(update={"name": source.name})
    steps = None
    if isinstance(configuration, MDConfig):
        steps = configuration.ramp_steps or max(configuration.total_steps, 1)
    whole = with_terms(potential, terms, force=configuration.force, ramp_steps=steps)
    own = len(potential.parts) if isinstance(potential, SumPotential) else 1
    return replace(source, potential=whole, own_terms=own)


def _load_source(potential: str, layout: Layout = "auto") -> Source:
    location = locate(potential)
    module = load(location.name or potential, layout=layout)
    path, reference = location.weights, location.reference
    for assumption in module.config.assumptions:
        logger.info("%s: %s", path.name, assumption)
    folder = path.parent if path.name == FILE_NAME else None
    return Source(module, reference, potential_sha256(reference), folder)


def _with_coulomb_cutoff(source: Source, configuration: Configuration) -> Source:
    cutoff = configuration.coulomb_cutoff_A
    if cutoff is None:
        return source
    own = None if cutoff == "all-pairs" else cutoff
    return replace(source, potential=source.potential.with_coulomb_cutoff(own))


def log_neutral(uncharged: bool, configuration: Configuration, source: Source) -> None:
    """Logs that the charge is taken as 0, if the potential uses charges and none is given.

    Args:
        uncharged: whether a structure has no charge of its own.
        configuration: may have one.
        source: the potential.
    """
    if uncharged and configuration.charge is None and source.potential.uses_charge:
        logger.info("No charge is given; the total charge is taken as 0.")


def with_charge(system: System, configuration: Configuration, source: Source) -> System:
    """The system with its total charge; raises InputError for all-pairs Coulomb in a cell."""
    advice = "--coulomb-cutoff-A 12 for a reaction field"
    inner = () if source.inner is None else source.inner.potential.cutoffs
    check_coulomb_range((*source.potential.cutoffs, *inner), bool(system.pbc.any()), advice)
    return system.replace(charge=total_charge(system, configuration.charge))
