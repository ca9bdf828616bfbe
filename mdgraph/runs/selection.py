"""Atoms chosen by index, range or element."""

import re

import numpy as np

from mdgraph.elements import SYMBOLS
from mdgraph.errors import InputError, printable
from mdgraph.system import System


def selected_atoms(text: str, system: System) -> list[int]:
    """Indices of the atoms that a text such as `0,4,9-20,O` names, in order, each once.

    Args:
        text: indices from 0 on, ranges with both ends, and elements, parted by commas.
        system: where they are.

    Raises:
        InputError: a word that is none of these, or no atom of that name.
    """
    chosen: set[int] = set()
    for word in filter(None, re.split(r"[,\s]+", text)):
        span = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", word)
        if span is not None:
            first, last = int(span[1]), int(span[2] or span[1])
            if not first <= last < len(system):
                raise InputError(
                    f"There are no atoms {word}; atoms are counted from 0 to {len(system) - 1}."
                )
            chosen.update(range(first, last + 1))
        elif word in SYMBOLS[1:]:
            found = np.flatnonzero(system.numbers == SYMBOLS.index(word)).tolist()
            if not found:
                raise InputError(f"The structure has no {word} to choose; see its elements.")
            chosen.update(found)
        else:
            raise InputError(
                f"'{printable(word, 60)}' names no atoms; give indices from 0 on, ranges such as "
                "3-8, or elements."
            )
    if not chosen:
        raise InputError(
            f"'{printable(text, 60)}' names no atoms; give some, or leave the option out."
        )
    return sorted(chosen)
