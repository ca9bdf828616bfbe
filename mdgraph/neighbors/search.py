"""Searches for neighbors: all pairs (`EveryPair`) and a cell list of linear cost (`CellList`).

Both give the same rows. A neighbor is a key, `neighbor * images + image`, where `image` numbers
the lattice translations of a plan; sorted keys order a row by atom, then by image.

An object of either class is a plan, which holds everything that is the same in all builds. `find`
takes wrapped positions, has static shapes, does not sync, and works in chunks of rows to limit its
memory. `triton_kernels` finds the same rows from the same plan.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from mdgraph.errors import InputError
from mdgraph.host_tensors import on_host
from mdgraph.state import Grouping

MOST_BINS: Final = 128
"""Largest number of bins along one direction; a power of two."""


class Bins:
    """Numbers the bins of S systems, one system after the other, each along a Morton curve.

    Bins with close numbers are close in space, so successive atoms, sorted by bin, find the data
    of their neighbors in the cache.

    Attributes:
        shape: (S, 3) int64, bins along each direction.
        first: (S,) int64, number of bins of all previous systems.
        curve: (bins,) int64, number of the bin at first + (p0 * shape1 + p1) * shape2 + p2.
        places: (bins, 3) int64, place (p0, p1, p2) of each bin within its system.
        system: (bins,) int64, system of each bin.
    """

    def __init__(self, shape: Tensor) -> None:
        device = shape.device
        total = shape.prod(-1)
        self.shape = shape
        self.first = total.cumsum(0) - total
        system = torch.repeat_interleave(torch.arange(len(shape), device=device), total)
        _, width, depth = shape[system].unbind(-1)
        inside = torch.arange(len(system), device=device) - self.first[system]
        places = [inside // (width * depth), inside // depth % width, inside % depth]
        place = torch.stack(places, dim=-1)
        along = (system * MOST_BINS**3 + _morton(place)).argsort()
        self.curve = torch.empty_like(along).scatter_(
            0, along, torch.arange(len(along), device=device)
        )
        self.places = place[along]
        self.system = system[along]

    def __len__(self) -> int:
        return len(self.curve)

    def number(self, place: Tensor, system: Tensor) -> Tensor:
        """Numbers (...) of the bins at places (..., 3) of systems (...)."""
        shape = self.shape[system]
        inside = (place[..., 0] * shape[..., 1] + place[..., 1]) * shape[..., 2] + place[..., 2]
        return self.curve[inside + self.first[system]]


def _morton(place: Tensor) -> Tensor:
    """Interleaved bits of places (..., 3) below MOST_BINS, to (...)."""
    code = torch.zeros_like(place[..., 0])
    for bit in range(MOST_BINS.bit_length() - 1):
        for axis in range(3):
            code |= (place[..., axis] >> bit & 1) << (3 * bit + axis)
    return code


_MOST: Final = 1_000_000
"""Limit of translations: a cell of 1 A has 30,000 within a cutoff of 15 A."""


class ImageTable:
    """Numbers the lattice translations n with |n_a| <= bound_a, lexicographically.

    Raises InputError for more translations than a cell of atoms can need.

    Attributes:
        strides: the number of n is the sum of n_a * strides_a, plus `zero`.
        offsets: (images, 3) int64, translation of each number.
        zero: number of the translation (0, 0, 0).
    """

    def __init__(self, bound: tuple[int, int, int], device: torch.device) -> None:
        count = math.prod(2 * b + 1 for b in bound)
        if count > _MOST:
            raise InputError(
                f"The cell is so thin that {count:.0e} copies of it lie within the range of the "
                "forces; check the unit of its vectors, or give a shorter cutoff or skin."
            )
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


CANDIDATES = {"cpu": 2**19, "cuda": 2**23}
"""Candidate pairs of one chunk: as many as fit into a cache, or fill a GPU."""


@dataclass(frozen=True)
class WrappedFrame:
    """Wrapped coordinates at one step.

    Attributes:
        positions: (N, 3) A, wrapped along periodic directions.
        fractional: (N, 3) coordinates in the completed cell, in [0, 1) where periodic.
        reach: (S, 3) cutoff divided by the distance of opposite faces; 0 where not periodic.
        translations: (S, images, 3) A, the lattice vector of each image number.
    """

    positions: Tensor
    fractional: Tensor
    reach: Tensor
    translations: Tensor


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        keys: (N, capacity) int64, ascending; rows are padded with `PADDING`.
        count: (N,) int64, number of neighbors, which may exceed the capacity.
        occupancy: () int64, largest number of atoms in a bin of the cell list, else 0.
        order: (N,) int64, atoms along the curve through the bins, else in their own order.
    """

    keys: Tensor
    count: Tensor
    occupancy: Tensor
    order: Tensor


class Search(Protocol):
    """Interface of both searches.

    Attributes:
        images: numbers of the lattice translations.
        allowed: (S, 3) largest reach for which the plan covers all pairs.
    """

    images: ImageTable
    allowed: Tensor

    @property
    def candidates(self) -> int:
        """Candidate pairs for each atom, the cost by which searches are compared."""
        ...

    def find(self, frame: WrappedFrame, cutoff: float, capacity: int) -> SearchResult:
        """Finds all directed pairs closer than the cutoff; does not sync."""
        ...

    def leave_device_(self) -> None:
        """Puts what there is by bin into memory of the host, as tensors of the device."""
        ...


PADDING = torch.iinfo(torch.int64).max
"""Key of an empty slot, larger than any key of a pair."""


def chunk_rows(candidates: int, device: torch.device) -> int:
    """Number of rows in a chunk, given the candidates of a row."""
    return max(1, CANDIDATES[device.type] // candidates)


def compact(candidate: Tensor, within: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Moves the keys within the cutoff to the front of each row and drops those beyond capacity."""
    slot = within.cumsum(1)
    count = slot[:, -1]
    slot = torch.where(within & (slot <= capacity), slot - 1, capacity)
    rows = torch.full((len(candidate), capacity + 1), PADDING, device=candidate.device)
    return rows.scatter_(1, slot, candidate)[:, :capacity], count


class EveryPair:
    """Compares each atom with every atom of its system, in every image within reach.

    Attributes:
        shell: number of images on either side of the nearest one, along the three cell vectors.
        images, allowed: see Search.
    """

    def __init__(self, grouping: Grouping, reach: Tensor, device: torch.device) -> None:
        # The nearest fractional difference s lies in [-1/2, 1/2]; a pair within the cutoff
        # in image m has |s + m| < reach, so |m| < reach + 1/2.
        x, y, z = (math.floor(value + 0.5) for value in reach.amax(0).tolist())
        self.shell = (x, y, z)
        self._grouping = grouping
        self.allowed = (torch.tensor(self.shell, device=device) + 0.5).expand(reach.shape)
        self._shifts = torch.cartesian_prod(*[torch.arange(-m, m + 1) for m in self.shell])
        self._shifts = self._shifts.to(device)
        # Rounding the difference of two wrapped coordinates adds at most one.
        directions = (reach.amax(0) > 0).tolist()
        x, y, z = (m + int(periodic) for m, periodic in zip(self.shell, directions, strict=True))
        self.images = ImageTable((x, y, z), device)
        self._periodic = (reach > 0).to(torch.float64).to(device)
        # A system has images only along its own periodic directions, not along those of other
        # systems in the batch.
        self._own = ((self._shifts == 0) | (reach > 0).to(device)[:, None]).all(-1)
        self._slots = torch.arange(grouping.largest, device=device)
        self._sizes = grouping.counts

    @property
    def candidates(self) -> int:
        """See Search."""
        return len(self._slots) * len(self._shifts)

    def find(self, frame: WrappedFrame, cutoff: float, capacity: int) -> SearchResult:
        """See Search."""
        group = self._grouping
        device = frame.positions.device
        rows = chunk_rows(self.candidates, device)
        periodic = self._periodic.to(frame.positions.dtype)
        keys, counts = [], []
        every = torch.arange(group.atoms, device=device)
        for atoms in every.split(rows):
            system = group.index[atoms]
            present = self._slots < self._sizes[system][:, None]
            neighbor = torch.where(present, group.start[system][:, None] + self._slots, 0)
            difference = frame.fractional[neighbor] - frame.fractional[atoms][:, None]
            nearest = -(difference * periodic[system][:, None]).round().to(torch.int64)
            offset = nearest[:, :, None] + self._shifts
            # A NaN position must not index beyond the table.
            image = self.images.rank(offset).clamp(0, len(self.images) - 1)
            vectors = (frame.positions[neighbor] - frame.positions[atoms][:, None])[
                :, :, None
            ] + frame.translations[system[:, None, None], image]
            itself = (neighbor == atoms[:, None])[:, :, None] & (image == self.images.zero)
            allowed = present[:, :, None] & self._own[system][:, None]
            within = (vectors.square().sum(-1) < cutoff**2) & allowed & ~itself
            candidate = neighbor[:, :, None] * len(self.images) + image
            row, count = compact(candidate.flatten(1), within.flatten(1), capacity)
            keys.append(row)
            counts.append(count)
        none = torch.zeros((), dtype=torch.int64, device=device)
        return SearchResult(torch.cat(keys), torch.cat(counts), none, every)

    def leave_device_(self) -> None:
        """See Search; there are no bins."""


class CellList:
    """Sorts atoms into bins and compares each atom with those in the bins around it.

    Any cell shape: bins are cut in fractional coordinates, and the stencil spans
    `ceil(cutoff / bin height)` bins each way, also around a cell smaller than the cutoff.
    Along directions that are not periodic, bins cover the extent of the atoms at planning; atoms
    that leave it later count as in the outermost bins, so the stencil still covers every pair.

    Attributes:
        low, scale: (S, 3); an atom is in bin floor((fractional - low) * scale).
        bins: the bins of all systems.
        stencil: (bins, M) int32, the bins around each bin, or `len(bins)`, an empty bin, where
            there is none.
        stencil_image: (bins, M) int32, number of the image of each of them.
        bin_capacity: largest number of atoms in a bin that `find` supports.
        images, allowed: see Search.
    """

    def __init__(
        self, grouping: Grouping, frame: WrappedFrame, cutoff: float, occupancy: int
    ) -> None:
        """Plans for the atoms of the frame; syncs.

        Args:
            grouping: the systems.
            frame: current coordinates; its translations are not used.
            cutoff: A.
            occupancy: largest number of atoms in a bin so far.
        """
        device = frame.positions.device
        self._grouping = grouping
        periodic = frame.reach > 0
        low, extent = _extents(grouping, frame.fractional)
        width = torch.where(periodic, 1.0, extent)
        span = torch.where(periodic, frame.reach, cutoff / extent)
        shape = (1.0 / span).floor().clamp(min=1.0, max=MOST_BINS)
        # At most two bins for each atom, so that empty space does not need many.
        excess = (shape.prod(-1) / (2 * grouping.counts)).clamp(min=1.0)
        shape = (shape / excess.pow(1 / 3)[:, None]).floor().clamp(min=1.0)
        # Along a direction that is not periodic, bins are as wide as the cutoff, or there is one.
        reach_in_bins = torch.where(periodic, (span * shape).ceil(), (shape > 1).to(shape.dtype))
        shell = [int(value) for value in reach_in_bins.amax(0).tolist()]
        self.allowed = torch.where(periodic, reach_in_bins / shape, torch.inf)
        self.low = torch.where(periodic, 0.0, low)
        self.scale = shape / width
        self.bins = Bins(shape.to(torch.int64))
        x, y, z = (
            math.ceil(m / max(1, int(b))) if p else 0
            for m, b, p in zip(shell, shape.amin(0).tolist(), periodic.any(0).tolist(), strict=True)
        )
        self.images = ImageTable((x, y, z), device)
        self.stencil, self.stencil_image = self._stencil(shell, periodic)
        fullest = max(int(self.bin_of(frame).bincount().max()), occupancy)
        self.bin_capacity = math.ceil(1.3 * fullest) + 1

    def _stencil(self, shell: list[int], periodic: Tensor) -> tuple[Tensor, Tensor]:
        bins, device = self.bins, periodic.device
        steps = torch.cartesian_prod(*[torch.arange(-m, m + 1) for m in shell]).to(device)
        stencil, images = [], []
        for part in torch.arange(len(bins), device=device).split(chunk_rows(len(steps), device)):
            system = bins.system[part][:, None]
            shape = bins.shape[system]
            target = bins.places[part][:, None] + steps
            across = torch.div(target, shape, rounding_mode="floor")
            there = ((across == 0) | periodic[system]).all(-1)
            across = torch.where(there[..., None], across, 0)
            target = torch.where(there[..., None], target - across * shape, 0)
            around = torch.where(there, bins.number(target, system), len(bins))
            stencil.append(around.to(torch.int32))
            images.append(self.images.rank(across).to(torch.int32))
        return torch.cat(stencil), torch.cat(images)

    @property
    def candidates(self) -> int:
        """See Search."""
        return self.stencil.shape[1] * self.bin_capacity

    def find(self, frame: WrappedFrame, cutoff: float, capacity: int) -> SearchResult:
        """See Search."""
        group = self._grouping
        device = frame.positions.device
        bin_of = self.bin_of(frame)
        sorted_bin, order = bin_of.sort(stable=True)
        numbers = torch.arange(len(self.bins) + 1, device=device)
        start = torch.searchsorted(sorted_bin, numbers)
        count_in_bin = torch.searchsorted(sorted_bin, numbers, right=True) - start
        slots = torch.arange(self.bin_capacity, device=device)
        rows = chunk_rows(self.candidates, device)
        keys, counts = [], []
        for atoms in torch.arange(group.atoms, device=device).split(rows):
            system = group.index[atoms]
            around = self.stencil[bin_of[atoms]].to(torch.int64)
            image = self.stencil_image[bin_of[atoms]].to(torch.int64)
            present = slots < count_in_bin[around][..., None]
            neighbor = order[torch.where(present, start[around][..., None] + slots, 0)]
            # The difference first: then (a - b) + t and (b - a) - t round alike, and the list is
            # bitwise symmetric.
            vectors = frame.positions[neighbor] - frame.positions[atoms][:, None, None]
            vectors = vectors + frame.translations[system[:, None], image][:, :, None]
            itself = (neighbor == atoms[:, None, None]) & (image == self.images.zero)[..., None]
            within = (vectors.square().sum(-1) < cutoff**2) & present & ~itself
            candidate = neighbor * len(self.images) + image[..., None]
            row, count = compact(candidate.flatten(1), within.flatten(1), capacity)
            keys.append(row.sort(dim=1).values)
            counts.append(count)
        return SearchResult(torch.cat(keys), torch.cat(counts), count_in_bin.max(), order)

    def leave_device_(self) -> None:
        """See Search."""
        for owner in (self, self.bins):
            for name, value in vars(owner).items():
                if isinstance(value, Tensor) and len(self.bins) in value.shape:
                    setattr(owner, name, on_host(value))

    def bin_of(self, frame: WrappedFrame) -> Tensor:
        """Number of the bin of each atom, (N,) int64."""
        system = self._grouping.index
        place = (frame.fractional - self.low[system]) * self.scale[system]
        place = place.floor().to(torch.int64).clamp(min=0)
        return self.bins.number(torch.minimum(place, self.bins.shape[system] - 1), system)


def _extents(grouping: Grouping, fractional: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest coordinates and extents (at least 1e-3) of each system, (S, 3) each."""
    members = fractional[grouping.members]
    present = grouping.present[..., None]
    low = torch.where(present, members, torch.inf).amin(1)
    high = torch.where(present, members, -torch.inf).amax(1)
    return low, (high - low).clamp(min=1e-3)
