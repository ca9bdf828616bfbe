"""Search: rows of neighbor keys for all atoms, with static shapes and no host read.

A key is `neighbor * images + image`, where `image` numbers the lattice translations that
a plan allows; sorted keys order a row by atom, then by image. Two ways give the same rows:
every pair of a system (`EveryPair`), and a cell list of linear cost (`CellList`).
Both take wrapped positions and work in chunks of rows, so that memory stays bounded.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mdgraph.grouping import Grouping

CANDIDATES = {"cpu": 2**19, "cuda": 2**23}
"""Candidate pairs looked at in one chunk: a cache's worth, or enough to fill a GPU."""


@dataclass(frozen=True)
class Frame:
    """Wrapped coordinates of one moment.

    Attributes:
        positions: (N, 3) A, wrapped along periodic directions.
        fractional: (N, 3) coordinates in the completed cell, in [0, 1) where periodic.
        reach: (S, 3) cutoff over the distance between opposite faces; 0 where not periodic.
        translations: (S, images, 3) A, the lattice vector of each image number.
    """

    positions: Tensor
    fractional: Tensor
    reach: Tensor
    translations: Tensor


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        keys: (N, capacity) int64 ascending; rows are padded with `padding`.
        count: (N,) int64, true number of neighbors, also beyond the capacity.
        occupancy: () int64, most atoms found in one cell of the cell list, or 0.
    """

    keys: Tensor
    count: Tensor
    occupancy: Tensor


class ImageTable:
    """Numbers the lattice translations n with |n_a| <= bound_a, lexicographically."""

    def __init__(self, bound: tuple[int, int, int], device: torch.device) -> None:
        self.bound = bound
        self.strides = (
            (2 * bound[1] + 1) * (2 * bound[2] + 1),
            2 * bound[2] + 1,
            1,
        )
        ranges = [torch.arange(-b, b + 1) for b in bound]
        self.offsets = torch.cartesian_prod(*ranges).to(device)
        self._strides = torch.tensor(self.strides, device=device)
        self.zero = sum(b * s for b, s in zip(bound, self.strides, strict=True))

    def __len__(self) -> int:
        return len(self.offsets)

    def rank(self, offsets: Tensor) -> Tensor:
        """Image numbers (...) of integer translations (..., 3)."""
        return (offsets * self._strides).sum(-1) + self.zero


class Search(Protocol):
    """What both searches offer."""

    images: ImageTable

    def insufficient(self, frame: Frame) -> Tensor:
        """() bool: the cell has shrunk so far that pairs beyond the plan may exist."""
        ...

    def find(self, frame: Frame, cutoff: float, capacity: int) -> Found:
        """Finds every directed pair closer than the cutoff."""
        ...


class EveryPair:
    """Compares each atom with every atom of its system, in every image within reach."""

    def __init__(self, grouping: Grouping, reach: Tensor, device: torch.device) -> None:
        # After rounding, a fractional difference lies in [-1/2, 1/2]; a pair within the
        # cutoff in image m has |s + m| <= reach, so |m| <= floor(reach + 1/2).
        shell = [math.floor(value + 0.5) for value in reach.amax(0).tolist()]
        self._grouping = grouping
        self._allowed = torch.tensor(shell, device=device)
        self._shifts = torch.cartesian_prod(*[torch.arange(-m, m + 1) for m in shell]).to(device)
        # Rounding the difference of two wrapped coordinates adds at most one.
        one = (reach.amax(0) > 0).tolist()
        x, y, z = (m + int(periodic) for m, periodic in zip(shell, one, strict=True))
        self.images = ImageTable((x, y, z), device)
        self._periodic = (reach > 0).to(torch.float64).to(device)
        # A system has images only along its own periodic directions, whatever its neighbors
        # in the batch have.
        self._own = ((self._shifts == 0) | (reach > 0).to(device)[:, None]).all(-1)
        self._slots = torch.arange(grouping.largest, device=device)
        self._sizes = torch.tensor(grouping.sizes, device=device)

    @property
    def candidates(self) -> int:
        """Candidate pairs an atom."""
        return len(self._slots) * len(self._shifts)

    def insufficient(self, frame: Frame) -> Tensor:
        """See Search."""
        return ((frame.reach + 0.5).floor() > self._allowed).any()

    def find(self, frame: Frame, cutoff: float, capacity: int) -> Found:
        """See Search."""
        group = self._grouping
        device = frame.positions.device
        rows = max(1, CANDIDATES[device.type] // self.candidates)
        periodic = self._periodic.to(frame.positions.dtype)
        keys, counts = [], []
        for atoms in torch.arange(group.atoms, device=device).split(rows):
            system = group.index[atoms]
            present = self._slots < self._sizes[system][:, None]
            neighbor = torch.where(present, group.start[system][:, None] + self._slots, 0)
            difference = frame.fractional[neighbor] - frame.fractional[atoms][:, None]
            nearest = -(difference * periodic[system][:, None]).round().to(torch.int64)
            offset = nearest[:, :, None] + self._shifts
            # A position that is not a number must stay within the table.
            image = self.images.rank(offset).clamp(0, len(self.images) - 1)
            vectors = (frame.positions[neighbor] - frame.positions[atoms][:, None])[
                :, :, None
            ] + frame.translations[system[:, None, None], image]
            itself = (neighbor == atoms[:, None])[:, :, None] & (image == self.images.zero)
            allowed = present[:, :, None] & self._own[system][:, None]
            within = (vectors.square().sum(-1) < cutoff**2) & allowed & ~itself
            candidate = neighbor[:, :, None] * len(self.images) + image
            row, count = _compact(candidate.flatten(1), within.flatten(1), capacity)
            keys.append(row)
            counts.append(count)
        none = torch.zeros((), dtype=torch.int64, device=device)
        return Found(torch.cat(keys), torch.cat(counts), none)


class CellList:
    """Bins atoms into cells no narrower than needed and compares with the cells around.

    Any cell shape: bins are cut in fractional coordinates, and the stencil spans
    `ceil(cutoff / bin height)` bins each way, also around a cell smaller than the cutoff.
    Along directions that are not periodic, bins cover the extent of the atoms when planned;
    atoms that later leave it are counted in the outermost bins, which keeps every pair
    within the stencil.
    """

    def __init__(
        self,
        grouping: Grouping,
        frame: Frame,
        cutoff: float,
        bin_capacity: int,
    ) -> None:
        device = frame.positions.device
        self._grouping = grouping
        self.bin_capacity = bin_capacity
        periodic = frame.reach > 0
        low, extent = _extents(grouping, frame.fractional)
        width = torch.where(periodic, 1.0, extent)
        span = torch.where(periodic, frame.reach, cutoff / extent)
        bins = (1.0 / span).floor().clamp(min=1.0, max=128.0)
        # A bin along a free direction is as wide as the cutoff, or it is the only one.
        reach_in_bins = torch.where(periodic, (span * bins).ceil(), (bins > 1).to(bins.dtype))
        shell = [int(value) for value in reach_in_bins.amax(0).tolist()]
        self._allowed = torch.where(periodic, reach_in_bins / bins, torch.inf)
        self._periodic = periodic
        self._low = torch.where(periodic, 0.0, low)
        self._scale = bins / width
        self._bins = bins.to(torch.int64)
        total = self._bins.prod(-1)
        self._first = total.cumsum(0) - total
        self._total = int(total.sum())
        grid = torch.cartesian_prod(*[torch.arange(-m, m + 1) for m in shell]).to(device)
        self._stencil = grid
        images = [
            math.ceil(m / max(1, b)) if p else 0
            for m, b, p in zip(
                shell, self._bins.amin(0).tolist(), periodic.any(0).tolist(), strict=True
            )
        ]
        self.images = ImageTable((images[0], images[1], images[2]), device)
        self._slots = torch.arange(bin_capacity, device=device)

    @property
    def candidates(self) -> int:
        """Candidate pairs an atom."""
        return len(self._stencil) * self.bin_capacity

    def insufficient(self, frame: Frame) -> Tensor:
        """See Search."""
        return (frame.reach > self._allowed).any()

    def find(self, frame: Frame, cutoff: float, capacity: int) -> Found:
        """See Search."""
        group = self._grouping
        device = frame.positions.device
        bins = self._bins[group.index]
        place = self._place(frame)
        sorted_bin, order = self._flat(place, group.index).sort(stable=True)
        numbers = torch.arange(self._total, device=device)
        start = torch.searchsorted(sorted_bin, numbers)
        count_in_bin = torch.searchsorted(sorted_bin, numbers, right=True) - start
        rows = max(1, CANDIDATES[device.type] // self.candidates)
        keys, counts = [], []
        for atoms in torch.arange(group.atoms, device=device).split(rows):
            system = group.index[atoms]
            target = place[atoms][:, None] + self._stencil
            across = torch.div(target, bins[atoms][:, None], rounding_mode="floor")
            inside = ((across == 0) | self._periodic[system][:, None]).all(-1)
            target = torch.where(inside[..., None], target - across * bins[atoms][:, None], 0)
            image = self.images.rank(torch.where(inside[..., None], across, 0))
            cells = self._flat(target, system[:, None])
            present = (self._slots < count_in_bin[cells][..., None]) & inside[..., None]
            slot = torch.where(present, start[cells][..., None] + self._slots, 0)
            neighbor = order[slot]
            # Difference first: (a - b) + t and (b - a) - t then round alike, and the list is
            # symmetric to the last bit.
            vectors = frame.positions[neighbor] - frame.positions[atoms][:, None, None]
            vectors = vectors + frame.translations[system[:, None], image][:, :, None]
            itself = (neighbor == atoms[:, None, None]) & (image == self.images.zero)[..., None]
            within = (vectors.square().sum(-1) < cutoff**2) & present & ~itself
            candidate = neighbor * len(self.images) + image[..., None]
            row, count = _compact(candidate.flatten(1), within.flatten(1), capacity)
            keys.append(row.sort(dim=1).values)
            counts.append(count)
        return Found(torch.cat(keys), torch.cat(counts), count_in_bin.max())

    def largest_bin(self, frame: Frame) -> int:
        """Most atoms in one bin; host only, for planning the bin capacity."""
        flat = self._flat(self._place(frame), self._grouping.index)
        return int(flat.bincount().max())

    def _place(self, frame: Frame) -> Tensor:
        system = self._grouping.index
        place = (frame.fractional - self._low[system]) * self._scale[system]
        place = place.floor().to(torch.int64).clamp(min=0)
        return torch.minimum(place, self._bins[system] - 1)

    def _flat(self, place: Tensor, system: Tensor) -> Tensor:
        bins = self._bins[system]
        inside = (place[..., 0] * bins[..., 1] + place[..., 1]) * bins[..., 2] + place[..., 2]
        return inside + self._first[system]


PADDING = torch.iinfo(torch.int64).max
"""Key of an empty slot; larger than any pair's."""


def _compact(candidate: Tensor, within: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Moves the wanted keys of each row to its front; what exceeds the capacity is dropped."""
    slot = within.cumsum(1)
    count = slot[:, -1]
    slot = torch.where(within & (slot <= capacity), slot - 1, capacity)
    rows = torch.full((len(candidate), capacity + 1), PADDING, device=candidate.device)
    return rows.scatter_(1, slot, candidate)[:, :capacity], count


def _extents(grouping: Grouping, fractional: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest coordinate and extent (at least 1e-3) of each system along each direction."""
    members = fractional[grouping.members]
    present = grouping.present[..., None]
    low = torch.where(present, members, torch.inf).amin(1)
    high = torch.where(present, members, -torch.inf).amax(1)
    return low, (high - low).clamp(min=1e-3)
