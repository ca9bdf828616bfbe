"""Arguments that nobody takes, refused with the nearest names that are known."""

import difflib
from collections.abc import Collection, Iterable

from mdgraph.errors import InputError, name_some


def check_known(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuses names of arguments that are not known.

    Args:
        function: that they were given to, for the sentence.
        given: their names.
        known: what it takes.

    Raises:
        InputError: the names that it does not take, and those near to them.
    """
    if unknown := sorted(set(given) - set(known)):
        near = [one for name in unknown for one in difflib.get_close_matches(name, known, 1)]
        some = name_some(sorted(known), 30)
        advice = f"did you mean {name_some(near)}?" if near else f"it takes {some}."
        raise InputError(f"{function} does not take {name_some(unknown)}; {advice}")
