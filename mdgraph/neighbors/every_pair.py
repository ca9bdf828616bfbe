"""EveryPair: the search of small systems, by all pairs."""

import math

import torch
from torch import Tensor

from mdgraph.grouping import Grouping
from mdgraph.neighbors.images import ImageTable
from mdgraph.neighbors.search import Found, Frame, chunk_rows, compacted


class EveryPair:
    """Compares each atom with every atom of its system, in every image within reach.

    Attributes:
        shell: images looked at each way around the nearest one, along the three vectors.
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
        one = (reach.amax(0) > 0).tolist()
        x, y, z = (m + int(periodic) for m, periodic in zip(self.shell, one, strict=True))
        self.images = ImageTable((x, y, z), device)
        self._periodic = (reach > 0).to(torch.float64).to(device)
        # A system has images only along its own periodic directions, whatever its neighbors
        # in the batch have.
        self._own = ((self._shifts == 0) | (reach > 0).to(device)[:, None]).all(-1)
        self._slots = torch.arange(grouping.largest, device=device)
        self._sizes = grouping.counts

    @property
    def candidates(self) -> int:
        """See Search."""
        return len(self._slots) * len(self._shifts)

    def find(self, frame: Frame, cutoff: float, capacity: int) -> Found:
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
            # A position that is not a number must stay within the table.
            image = self.images.rank(offset).clamp(0, len(self.images) - 1)
            vectors = (frame.positions[neighbor] - frame.positions[atoms][:, None])[
                :, :, None
            ] + frame.translations[system[:, None, None], image]
            itself = (neighbor == atoms[:, None])[:, :, None] & (image == self.images.zero)
            allowed = present[:, :, None] & self._own[system][:, None]
            within = (vectors.square().sum(-1) < cutoff**2) & allowed & ~itself
            candidate = neighbor[:, :, None] * len(self.images) + image
            row, count = compacted(candidate.flatten(1), within.flatten(1), capacity)
            keys.append(row)
            counts.append(count)
        none = torch.zeros((), dtype=torch.int64, device=device)
        return Found(torch.cat(keys), torch.cat(counts), none, every)
