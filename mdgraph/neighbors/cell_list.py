"""CellList: the search of large systems, by bins."""

import math

import torch
from torch import Tensor

from mdgraph.grouping import Grouping
from mdgraph.neighbors.bins import MOST_BINS, Bins
from mdgraph.neighbors.images import ImageTable
from mdgraph.neighbors.search import Found, Frame, chunk_rows, compacted


class CellList:
    """Sorts atoms into bins no narrower than needed and compares with the bins around.

    Any cell shape: bins are cut in fractional coordinates, and the stencil spans
    `ceil(cutoff / bin height)` bins each way, also around a cell smaller than the cutoff.
    Along directions that are not periodic, bins cover the extent of the atoms when planned;
    atoms that later leave it are counted in the outermost bins, which keeps every pair
    within the stencil.

    Attributes:
        low, scale: (S, 3), place of an atom = floor((fractional - low) * scale).
        bins: the bins of all systems.
        stencil: (bins, M) int32, the bins around each bin; `len(bins)`, which holds no
            atom, where there is none.
        stencil_image: (bins, M) int32, number of the image in which each of them is met.
        bin_capacity: atoms a bin has room for in `find`.
        images, allowed: see Search.
    """

    def __init__(self, grouping: Grouping, frame: Frame, cutoff: float, occupancy: int) -> None:
        """Plans for the atoms of the frame; reads the device.

        Args:
            grouping: the systems.
            frame: of the moment; its translations are not used.
            cutoff: A.
            occupancy: most atoms seen in one bin so far.
        """
        device = frame.positions.device
        self._grouping = grouping
        periodic = frame.reach > 0
        low, extent = _extents(grouping, frame.fractional)
        width = torch.where(periodic, 1.0, extent)
        span = torch.where(periodic, frame.reach, cutoff / extent)
        shape = (1.0 / span).floor().clamp(min=1.0, max=MOST_BINS)
        # Empty space is not worth bins of its own.
        excess = (shape.prod(-1) / (2 * grouping.counts)).clamp(min=1.0)
        shape = (shape / excess.pow(1 / 3)[:, None]).floor().clamp(min=1.0)
        # A bin along a free direction is as wide as the cutoff, or it is the only one.
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
        fullest = max(int(self._bin_of(frame).bincount().max()), occupancy)
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

    def find(self, frame: Frame, cutoff: float, capacity: int) -> Found:
        """See Search."""
        group = self._grouping
        device = frame.positions.device
        bin_of = self._bin_of(frame)
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
            # Difference first: (a - b) + t and (b - a) - t then round alike, and the list is
            # symmetric to the last bit.
            vectors = frame.positions[neighbor] - frame.positions[atoms][:, None, None]
            vectors = vectors + frame.translations[system[:, None], image][:, :, None]
            itself = (neighbor == atoms[:, None, None]) & (image == self.images.zero)[..., None]
            within = (vectors.square().sum(-1) < cutoff**2) & present & ~itself
            candidate = neighbor * len(self.images) + image[..., None]
            row, count = compacted(candidate.flatten(1), within.flatten(1), capacity)
            keys.append(row.sort(dim=1).values)
            counts.append(count)
        return Found(torch.cat(keys), torch.cat(counts), count_in_bin.max(), order)

    def _bin_of(self, frame: Frame) -> Tensor:
        """Bin of each atom (N,)."""
        system = self._grouping.index
        place = (frame.fractional - self.low[system]) * self.scale[system]
        place = place.floor().to(torch.int64).clamp(min=0)
        return self.bins.number(torch.minimum(place, self.bins.shape[system] - 1), system)


def _extents(grouping: Grouping, fractional: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest coordinate and extent (at least 1e-3) of each system along each direction."""
    members = fractional[grouping.members]
    present = grouping.present[..., None]
    low = torch.where(present, members, torch.inf).amin(1)
    high = torch.where(present, members, -torch.inf).amax(1)
    return low, (high - low).clamp(min=1e-3)
