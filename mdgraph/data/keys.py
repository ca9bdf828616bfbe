"""Which of a file's own names holds which label: chosen where there is one, asked where not."""

import difflib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from mdgraph.data.units import Units
from mdgraph.errors import InputError, name_some

logger = logging.getLogger(__name__)

Missing = Literal["refuse", "drop", "keep"]
"""What becomes of frames that lack a label others have: an error, or left out, or kept."""

NONE: Final = "none"
"""As a key: leave the label out."""


@dataclass(frozen=True)
class Keys:
    """Names by which a file calls its labels; None finds the only candidate, `none` leaves out.

    Attributes:
        energy, forces, stress, dipole, charge, group: see LabelledFrame.
        weight: of a frame where it is one number, of the forces on atoms where there is one
            for each. Weights and dipoles are read only where their key is given.
    """

    energy: str | None = None
    forces: str | None = None
    stress: str | None = None
    dipole: str | None = None
    charge: str | None = None
    group: str | None = None
    weight: str | None = None


@dataclass(frozen=True)
class Request:
    """How a file is to be read."""

    keys: Keys = field(default_factory=Keys)
    units: Units = field(default_factory=Units)
    missing: Missing = "refuse"


def looks_like(label: str, name: str) -> bool:
    """Whether a name may mean the energy, the forces or the stress."""
    text = name.rpartition(".")[2].lower() if label == "energy" else name.lower()
    if label == "energy":
        excluded = any(word in text for word in ("kinetic", "per_atom", "correction", "weight"))
        return text in ("e", "energies", "u0") or ("energy" in text and not excluded)
    if label == "forces":
        return name == "F" or "force" in text or "gradient" in text
    return "stress" in text or "virial" in text


def choose(
    label: str,
    known: Collection[str],
    wanted: str | None,
    candidates: Collection[str],
    same: Callable[[str, str], bool],
    file: str,
) -> str | None:
    """The name that holds a label.

    Args:
        label: energy, forces or stress, whose option is `--LABEL-key`.
        known: every name there is.
        wanted: the user's choice or None.
        candidates: the names that may mean it, of fitting shape.
        same: whether two names hold equal numbers wherever both are.
        file: for sentences.

    Raises:
        InputError: the wanted name is not there, or several candidates differ.
    """
    option = f"--{label}-key"
    if wanted == NONE:
        return None
    if wanted is not None:
        if wanted in known:
            return wanted
        near = difflib.get_close_matches(wanted, known, 1, 0.4) or sorted(known)
        raise InputError(
            f"{file} has no '{wanted}'; it has {name_some(near, 12)}, so give one with {option}."
        )
    names = sorted(candidates, key=lambda name: (name != label, name))
    distinct = [
        name for place, name in enumerate(names) if not any(same(name, o) for o in names[:place])
    ]
    if len(distinct) > 1:
        raise InputError(
            f"{file} may have its {label} in {name_some(distinct, 12)}, which differ; "
            f"choose one with {option}, or leave it out with {option} none."
        )
    if distinct and distinct[0] != label:
        logger.info("%s: '%s' is taken for the %s", file, distinct[0], label)
    return distinct[0] if distinct else None


def check_labels(
    file: str, chosen: Collection[str], known: Collection[str], keys: Keys, largest: int
) -> None:
    """Raises InputError where no energy was found, and warns where no forces were.

    Args:
        file: for sentences.
        chosen: the labels that were found.
        known: every name there is.
        keys: the user's choices.
        largest: atoms of the largest frame; nothing acts on single ones.
    """
    there = f" among {name_some(sorted(known), 12)}" if known else ""
    if "energy" not in chosen and keys.energy != NONE:
        raise InputError(f"{file}: no energy is found{there}, so name it with --energy-key.")
    if largest > 1 and "forces" not in chosen and keys.forces != NONE:
        logger.warning(
            "%s: no forces are found%s; name them with --forces-key, or say that there are none "
            "with --forces-key none",
            file,
            there,
        )


class Gaps:
    """Counts frames that lack a label, and does with them what was asked."""

    def __init__(self, file: str, missing: Missing) -> None:
        self._file, self._missing, self._count = file, missing, 0

    def keeps(self, number: int, lacking: str | None) -> bool:
        """Whether a frame stays; `lacking` names what it has not, or is None.

        Raises:
            InputError: frames that lack something are refused.
        """
        if lacking is None:
            return True
        if self._missing == "refuse":
            raise InputError(
                f"Frame {number} of {self._file} has no finite {lacking}; leave such frames out "
                "with --missing drop, or keep what they have with --missing keep."
            )
        self._count += 1
        return self._missing == "keep"

    def say(self) -> None:
        """Says in the log how many there were."""
        if self._count:
            done = "kept" if self._missing == "keep" else "left out"
            logger.warning("%s: %d frames lack a label and are %s", self._file, self._count, done)
