"""Errors that say in one sentence what is wrong, where, and what to do.

Everything that mdgraph raises on purpose derives from `MDGraphError`; the command line
prints the sentence and ends with status 1, a Python caller sees the class.
"""

import difflib
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from numpy.typing import NDArray

_LONGEST_SENTENCE: Final = 3000
"""Characters; more of them say nothing on a terminal."""


class MDGraphError(Exception):
    """Base of all errors raised on purpose."""


class InputError(MDGraphError, ValueError):
    """Wrong values given by the user: a structure, an option, a configuration."""


class MDGraphFutureWarning(FutureWarning):
    """A name or an argument that a later release will not take any more."""


OLD_NAMES_UNTIL: Final = "0.3.0"
"""The release that takes no old name any more."""


def old_name(old: str, new: str) -> str:
    """The sentence of a warning that a name has changed, which every deprecation gives."""
    return f"{old} is now {new}; the old name goes with release {OLD_NAMES_UNTIL}."


class FileError(MDGraphError, OSError):
    """A file that cannot be read or written."""


class CheckpointError(MDGraphError):
    """A file that is not a potential this version can read."""


class UnknownSpeciesError(InputError):
    """Atoms of elements that the potential was not made for."""


class StressUndefinedError(InputError):
    """Stress asked for where the cell has no volume."""


class CapacityError(MDGraphError):
    """A fixed-capacity buffer that cannot be grown further."""


class SelfCheckError(MDGraphError):
    """A fast evaluator that does not agree with the reference."""


class SimulationError(MDGraphError):
    """A run that had to stop: non-finite forces, a runaway temperature, a collapsing cell.

    Attributes:
        step: the step at which it happened.
        atoms: indices of the atoms concerned.
    """

    def __init__(self, message: str, step: int, atoms: Sequence[int]) -> None:
        super().__init__(message)
        self.step = step
        self.atoms = tuple(atoms)


def name_some(items: Sequence[object] | NDArray[Any], limit: int = 8) -> str:
    """Lists the first items for a sentence: `3, 5, 9 and 12 more`."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def similar_names(word: str, known: Collection[str], cutoff: float = 0.5) -> list[str]:
    """The known names that a word begins, else the closest one, else none; case is ignored.

    Args:
        word: an unknown one.
        known: names.
        cutoff: least similarity of the closest one, from 0 to 1, as of `difflib`.
    """
    folded = {name.casefold(): name for name in known}
    begun = [name for fold, name in folded.items() if fold.startswith(word.casefold())]
    closest = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=cutoff)
    return begun or [folded[fold] for fold in closest]


def printable(text: object, longest: int = _LONGEST_SENTENCE) -> str:
    """One line that any terminal shows as it is, of text that comes from a file or a name.

    Control characters, escape codes, line breaks, marks that turn the direction of the text
    and lone surrogates are written as escapes; a long text loses its middle.

    Args:
        text: what `str` makes a text of.
        longest: characters that are kept.
    """
    characters = str(text)
    if len(characters) > longest:
        half = longest // 2
        characters = f"{characters[:half]} … {characters[-half:]}"
    if characters.isprintable():
        return characters
    return "".join(one if one.isprintable() else _escape(one) for one in characters)


def _escape(character: str) -> str:
    number = ord(character)
    # A byte of a file's name that is no text in its encoding.
    byte = number - 0xDC00 if 0xDC80 <= number <= 0xDCFF else number
    return chr(byte).encode("unicode_escape").decode("ascii")


class LostRankError(MDGraphError):
    """Another rank of the job ended, or does not answer."""


@contextmanager
def errors_logged_alone(name: str) -> Iterator[None]:
    """A logger, and those below it by name, log nothing below errors within the block."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Puts a name, such as that of a structure, before input errors; nothing if it is empty."""
    try:
        yield
    except InputError as error:
        if not name:
            raise
        raise type(error)(f"{name}: {error}") from error
