"""Transfer of elements: a trained potential learns some that it does not know."""

from collections.abc import Iterable
from typing import Final

import torch

from mdgraph.elements import SYMBOLS
from mdgraph.models import TensorNetPotential

_TABLES: Final = ("network.embedding.species.weight", "references")
"""Weights and buffers with a row for each element."""

_NOBLE: Final = (0, 2, 10, 18, 36, 54, 86, 118)


def with_elements(
    potential: TensorNetPotential, numbers: Iterable[int]
) -> tuple[TensorNetPotential, str]:
    """A copy that knows these elements too, and a sentence about them; itself without new ones.

    A new element begins as a copy of the nearest one known, in group and period together. Energies
    of structures without new elements stay what they were. Its reference energy begins at 0.

    Args:
        potential: trained.
        numbers: atomic numbers.
    """
    known = potential.species
    new = sorted(set(numbers) - set(known))
    if not new:
        return potential, ""
    donors = [min(known, key=lambda old: _distance(number, old)) for number in new]
    places = [known.index(donor) for donor in donors]
    extended = potential.config.model_copy(update={"species": (*known, *new)})
    found = TensorNetPotential(extended)
    state = potential.state_dict()
    for name in _TABLES:
        added = state[name][places]
        state[name] = torch.cat([state[name], added if added.ndim > 1 else 0.0 * added])
    found.load_state_dict(state)
    pairs = ", ".join(
        f"{SYMBOLS[number]} as {SYMBOLS[donor]}" for number, donor in zip(new, donors, strict=True)
    )
    return found, f"New to the potential, elements begin as the nearest that it knows: {pairs}."


def _distance(one: int, other: int) -> tuple[int, int, int]:
    """Groups and periods between two elements; of equals the same group is nearer."""
    (group, period), (column, row) = _place(one), _place(other)
    across = abs(group - column)
    return across + abs(period - row), across, abs(one - other)


def _place(number: int) -> tuple[int, int]:
    """Group and period of an element; lanthanides and actinides stand in group 3."""
    period = next(row for row, last in enumerate(_NOBLE) if number <= last)
    place, length = number - _NOBLE[period - 1], _NOBLE[period] - _NOBLE[period - 1]
    if place > 2:
        place = max(3, place - length + 18) if length > 18 else place + 18 - length
    elif number == 2:
        place = 18
    return place, period
