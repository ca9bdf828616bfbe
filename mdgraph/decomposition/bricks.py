"""Bricks of a cell: how many along each axis, and which atoms lie in which.

Planes are put between atoms such that all bricks hold as many, at any density: slabs of equal
numbers of atoms along the first axis, each cut along the second, and these along the third.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.arguments import shown
from mdgraph.errors import InputError
from mdgraph.neighbors.geometry import complete_cell, heights, inverse
from mdgraph.neighbors.torch_builder import Brick
from mdgraph.state import State

_PIECE: Final = 2**20
"""Atoms that are counted at a time."""

UNEVEN: Final = 0.05
"""How uneven bricks may become before planes move, see `BrickGrid.balanced`."""


@dataclass(frozen=True)
class BrickGrid:
    """Numbers of bricks along the three cell vectors.

    Attributes:
        shape: such as (2, 1, 1).
    """

    shape: tuple[int, int, int]

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))

    def __len__(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def fitting(
        cls, domains: str | int | Sequence[int], widths: Sequence[float], reach: float
    ) -> "BrickGrid":
        """The grid that somebody asks for.

        Args:
            domains: their number, or numbers along the axes, also as text such as `2x1x1`.
            widths: A, of the atoms or the cell along its three axes.
            reach: A, of the forces; no brick may be narrower.

        Raises:
            InputError: no numbers above 0, or bricks that are too narrow.
        """
        numbers = _numbers(domains)
        if len(numbers) == 1:
            return cls.chosen(numbers[0], widths, reach)
        grid = cls((numbers[0], numbers[1], numbers[2]))
        if grid.narrowest(widths) < reach:
            raise InputError(
                f"The domains {grid} are as narrow as {grid.narrowest(widths):.3g} A, and forces "
                f"reach {reach:g} A; take fewer along that direction."
            )
        return grid

    @classmethod
    def chosen(cls, count: int, widths: Sequence[float], reach: float) -> "BrickGrid":
        """The grid of so many bricks that has the fewest copied atoms.

        Args:
            count: of the bricks.
            widths: A, of the atoms or the cell along its three axes.
            reach: A, of the neighbor lists; no brick may be narrower.

        Raises:
            InputError: the cell does not hold so many bricks.
        """
        grids = [cls(shape) for shape in _factors(count)]
        wide = [grid for grid in grids if grid.narrowest(widths) >= reach]
        if not wide:
            x, y, z = (max(1, int(width // reach)) for width in widths)
            most = cls((x, y, z))
            raise InputError(
                f"{count} domains are asked for, and this system holds {most} at most that are as "
                f"wide as the range of its forces, {reach:g} A; take fewer, or one."
            )
        return min(wide, key=lambda grid: grid.copied(widths, reach))

    def narrowest(self, widths: Sequence[float]) -> float:
        """A, of the directions that are cut; infinite where none is."""
        cut = [w / n for w, n in zip(widths, self.shape, strict=True) if n > 1]
        return min(cut, default=math.inf)

    def copied(self, widths: Sequence[float], reach: float) -> float:
        """A^3 around a brick, in which its copies of others' atoms lie."""
        sides = [w / n for w, n in zip(widths, self.shape, strict=True)]
        around = [
            min(side + 2.0 * reach, width) if number > 1 else side
            for side, width, number in zip(sides, widths, self.shape, strict=True)
        ]
        return math.prod(around) - math.prod(sides)

    def share(self, widths: Sequence[float], reach: float) -> float:
        """Part of the volume in which a brick and its copies of others' atoms lie."""
        cut = [(w, n) for w, n in zip(widths, self.shape, strict=True) if n > 1]
        return math.prod(min(1.0 / n + 2.0 * reach / w, 1.0) for w, n in cut)

    def planes(self, positions: Tensor, cell: Tensor, pbc: Tensor) -> Tensor:
        """Where planes lie so that all bricks hold as many atoms; a function of these alone.

        Args:
            positions: (N, 3) A, of one system.
            cell: (1, 3, 3) A.
            pbc: (1, 3) bool.

        Returns:
            (P,) in fractional coordinates, in A where a direction is not periodic: n_x - 1 along
            the first axis, n_y - 1 along the second in each slab, n_z - 1 along the third in each
            column.
        """
        fractional, _, _ = wrapped_in(positions, cell, pbc)
        owner = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
        found, groups = [], 1
        for axis, number in enumerate(self.shape):
            if number > 1:
                planes = _equal_shares(fractional[:, axis], owner, groups, number)
                owner = _part(fractional[:, axis], owner, planes)
                found.append(planes.flatten())
                groups *= number
        return torch.cat(found) if found else positions.new_zeros(0)

    def balanced(
        self,
        positions: Tensor,
        cell: Tensor,
        pbc: Tensor,
        planes: Tensor,
        *,
        in_pieces: bool = False,
    ) -> Tensor:
        """These planes, or others where a brick holds too many atoms; does not sync on CUDA.

        A function of its arguments alone, which gives planes that it gave back as they are.

        Args:
            positions: (N, 3) A, of one system.
            cell: (1, 3, 3) A.
            pbc: (1, 3) bool.
            planes: (P,) from `planes`, of other positions.
            in_pieces: whether no memory for all atoms is taken unless planes may have to move;
                syncs.

        Returns:
            (P,), those of `planes` where the fullest brick has more atoms than bricks have on
            average, n, and 5 % of n + 40 sqrt(n), or the emptiest fewer than n / 2, and either
            would come closer to n.
        """
        mean = len(positions) / len(self)
        now = self._counts(positions, cell, pbc, planes)
        full = now.max > mean + UNEVEN * (mean + 40.0 * mean**0.5)
        empty = now.min < 0.5 * mean
        if in_pieces and not bool(full | empty):
            return planes
        new = self.planes(positions, cell, pbc)
        then = self._counts(positions, cell, pbc, new)
        better = (full & (then.max < now.max)) | (empty & (then.min > now.min))
        return torch.where(better, new, planes)

    def _counts(self, positions: Tensor, cell: Tensor, pbc: Tensor, planes: Tensor) -> Any:
        """Fewest and most atoms of a brick, () each; by pieces, whose bits are those of all."""
        counts = torch.zeros(len(self), dtype=torch.int64, device=positions.device)
        for piece in positions.split(_PIECE):
            counts += _numbers_of(self.owners(piece, cell, pbc, planes), len(self))
        return counts.aminmax()

    def brick(self, number: int, planes: Tensor, margin: float = 0.0) -> Brick:
        """One of the bricks.

        Args:
            number: of the brick, as `owners` has it.
            planes: (P,) from `planes`, a buffer.
            margin: A, see Brick.
        """
        place, left, ends, groups, begin = 0, len(self), [], 1, 0
        for count in self.shape:
            left //= count
            part = number // left % count
            first = begin + place * (count - 1)
            low = None if part == 0 else first + part - 1
            ends.append((low, None if part == count - 1 else first + part))
            begin += groups * (count - 1)
            place, groups = place * count + part, groups * count
        return Brick(planes, tuple(ends), margin)

    def owners(self, positions: Tensor, cell: Tensor, pbc: Tensor, planes: Tensor) -> Tensor:
        """(N,) int64, brick of each atom; static shapes, does not sync.

        Args:
            positions: (N, 3) A, of one system.
            cell: (1, 3, 3) A.
            pbc: (1, 3) bool.
            planes: (P,) from `planes`.
        """
        return self.owners_at(wrapped_in(positions, cell, pbc)[0], planes)

    def owners_at(self, fractional: Tensor, planes: Tensor) -> Tensor:
        """The same from wrapped fractional coordinates (N, 3) in the complete cell."""
        owner = torch.zeros(len(fractional), dtype=torch.int64, device=fractional.device)
        groups, begin = 1, 0
        for axis, number in enumerate(self.shape):
            if number > 1:
                end = begin + groups * (number - 1)
                own = planes[begin:end].view(groups, number - 1)
                owner = _part(fractional[:, axis], owner, own)
                groups, begin = groups * number, end
        return owner


def wrapped_in(positions: Tensor, cell: Tensor, pbc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates in the complete cell of one system, wrapped where periodic; does not sync.

    Their bits do not depend on the number of atoms, of which ranks have different ones.

    Args:
        positions: (N, 3) A.
        cell: (1, 3, 3) A.
        pbc: (1, 3) bool.

    Returns:
        Coordinates (N, 3), the integers (N, 3) that wrapping subtracted, and the inverse (1, 3, 3)
        of the complete cell.
    """
    inverted = inverse(complete_cell(cell, pbc))
    x, y, z = (positions[:, axis, None] * inverted[0, axis] for axis in range(3))
    fractional = x + y + z
    whole = torch.where(pbc[0], fractional.floor(), 0.0)
    return fractional - whole, whole, inverted


def _equal_shares(values: Tensor, group: Tensor, groups: int, number: int) -> Tensor:
    """Planes (G, number - 1) halfway between values that divide each group into equal shares."""
    order = values.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    counts = _numbers_of(group, groups)
    starts = counts.cumsum(0) - counts
    shares = torch.arange(1, number, device=values.device)
    above = starts[:, None] + (shares * counts[:, None] + number - 1) // number
    ordered = values[order]
    last = len(values) - 1
    return 0.5 * (ordered[(above - 1).clamp(0, last)] + ordered[above.clamp(0, last)])


def _numbers_of(group: Tensor, groups: int) -> Tensor:
    """(G,) int64, atoms of each group; not by bincount, which reads the device."""
    return group.new_zeros(groups).index_add_(0, group, torch.ones_like(group))


def _part(values: Tensor, group: Tensor, planes: Tensor) -> Tensor:
    """The part of its group that each atom lies in: parts are numbered on through all groups."""
    number = planes.shape[1] + 1
    return group * number + (values[:, None] >= planes[group]).sum(1)


def domain_count(domains: str | int | Sequence[int]) -> int:
    """How many domains are asked for, see `BrickGrid.fitting`; raises InputError for no number."""
    return math.prod(_numbers(domains))


def _numbers(domains: str | int | Sequence[int]) -> list[int]:
    """One number or three, above 0; raises InputError for anything else."""
    parts = domains.lower().split("x") if isinstance(domains, str) else domains
    try:
        numbers = [int(part) for part in (parts if isinstance(parts, Sequence) else [parts])]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise InputError(
            f"The domains are {shown(domains)}; give a number such as 2, or a grid such as 2x1x1."
        )
    return numbers


def _factors(count: int) -> list[tuple[int, int, int]]:
    """All ordered ways to write a number as a product of three."""
    divisors = [part for part in range(1, count + 1) if count % part == 0]
    return [(x, y, count // (x * y)) for x in divisors for y in divisors if count % (x * y) == 0]


def widths_of(state: State) -> list[float]:
    """Widths (3) of a system, A: of its cell where periodic, else of its atoms; syncs."""
    fractional, _, inverted = wrapped_in(state.positions, state.cell, state.pbc)
    extent = fractional.amax(0) - fractional.amin(0)
    widths = torch.where(state.pbc[0], 1.0, extent) * heights(inverted)[0]
    numbers: list[float] = widths.tolist()
    return numbers
