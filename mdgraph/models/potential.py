"""Potential: the protocol between models and everything that runs them; and its domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from mdgraph.neighbors.pairs import Pairs
from mdgraph.state import Grouping
from mdgraph.units import SYMBOLS


@dataclass(frozen=True)
class Atoms:
    """What a potential knows of a batch besides its pairs.

    Attributes:
        numbers: (N,) int64, atomic numbers.
        elements: (E,) int64, the distinct atomic numbers among them, ascending.
        kinds: (N,) int64, place of each atom's number among `elements`.
        charge: (S,) e, total charge of each system.
        grouping: which atom belongs to which system.
    """

    numbers: Tensor
    elements: Tensor
    kinds: Tensor
    charge: Tensor
    grouping: Grouping


T = TypeVar("T")


@dataclass(frozen=True)
class ListRoles:
    """Which neighbor list each part of a potential reads. Parts may share a list.

    Attributes:
        cutoffs: A, range of each list.
        places: number of the list in `cutoffs`, by role: `network`, `coulomb`, `dispersion`,
            and `repulsion 0`, `repulsion 1` and so on, one for each repulsion.
    """

    cutoffs: tuple[float, ...]
    places: Mapping[str, int]

    @classmethod
    def of(cls, own: Mapping[str, float], within: Mapping[str, float]) -> Self:
        """Gives each role its list.

        Args:
            own: A, roles that need a list of just their range; equal ranges share one.
            within: A, roles that skip pairs beyond their range. They take the shortest list
                that reaches far enough; one more is made where none does.
        """
        cutoffs = list(dict.fromkeys(own.values()))
        longest = max(within.values(), default=0.0)
        if longest > max((cutoff for cutoff in cutoffs if isfinite(cutoff)), default=0.0):
            cutoffs.append(longest)
        places = {role: cutoffs.index(cutoff) for role, cutoff in own.items()}
        for role, cutoff in within.items():
            reaching = [place for place, reach in enumerate(cutoffs) if reach >= cutoff]
            places[role] = min(reaching, key=lambda place: cutoffs[place])
        return cls(tuple(cutoffs), places)

    def cutoff(self, role: str) -> float:
        """A; range of the list that a role reads."""
        return self.cutoffs[self.places[role]]

    def assign(self, lists: Sequence[T]) -> dict[str, T]:
        """What each role reads, of one entry for each of `cutoffs`."""
        return {role: lists[place] for role, place in self.places.items()}


class Potential(Protocol):
    """A torch module that gives the energy of each atom."""

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """A; one pair list is made for each, infinity standing for all pairs."""
        ...

    @property
    def species(self) -> tuple[int, ...] | None:
        """Atomic numbers it accepts; None accepts every element."""
        ...

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy."""
        ...

    def __call__(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Energies (N,) float64 in eV, differentiable twice by the pair vectors.

        Args:
            atoms: the batch.
            pairs: one list for each of `cutoffs`, in their order.
        """
        ...


@dataclass(frozen=True, eq=False)
class Domain:
    """Ranges over the atoms of E elements in the training frames, and what sigma is made of.

    A potential's energy is linear in what the last layer of its readout sees of each atom,
    phi_i. With f = sum_i (phi_i - mean of its element, 1) of a structure and C the mean of
    f f^T / n^2 over training frames of n atoms, the variance of its energy is
    alpha^2 f^T (C + ridge)^-1 f: last-layer prediction rigidity (DOI
    10.1088/2632-2153/ad805f). Validation frames give alpha. With one atom's own term alone
    it tells how well that atom's surroundings are covered (DOI 10.1021/acs.jctc.3c00704).

    Attributes:
        species: (E,) int64, atomic numbers that the potential accepts, ascending. Of an element
            that no frame holds nothing is within its ranges.
        neighbors: (E, 4) float64, neighbors within the network's cutoff: least, 0.1 and 99.9 %
            of the atoms, most.
        shortest: (E, E) float64, A; infinite where a pair was never within the cutoff.
        forces: (E, 2) float64, eV/A, label of 99.9 % of the atoms, and the largest.
        mean: (E, H) float64, of phi.
        factor: (H + 1, H + 1) float64, whose square is alpha^2 (C + ridge)^-1, eV^2; NaN where
            no frame has an energy.
        sigma: (E, 2) float64, eV, of 99.9 % of the atoms, and the largest.
    """

    species: Tensor
    neighbors: Tensor
    shortest: Tensor
    forces: Tensor
    mean: Tensor
    factor: Tensor
    sigma: Tensor

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return type(self)(*(getattr(self, field.name).to(device) for field in fields(self)))

    @property
    def calibrated(self) -> bool:
        """Whether it tells a sigma; reads the device."""
        return bool(self.factor.isfinite().all())

    def rows(self, numbers: Tensor) -> Tensor:
        """Row of each atomic number (N,); does not sync."""
        return torch.searchsorted(self.species, numbers)

    def projected(self, latent: Tensor, numbers: Tensor) -> Tensor:
        """Vectors (N, H + 1) float64, eV; does not sync.

        The length of an atom's own is its sigma, that of a structure's sum the structure's.

        Args:
            latent: (N, H), phi; see `TensorNetPotential.latent`.
            numbers: (N,) atomic numbers.
        """
        centred = latent.double() - self.mean.index_select(0, self.rows(numbers))
        return torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1) @ self.factor.T

    def lines(self) -> list[str]:
        """The ranges in words."""
        symbols = [SYMBOLS[number] for number in self.species.tolist()]
        found = [
            f"{symbol}: {least:.0f} to {most:.0f} neighbors, forces up to {force:.3g} eV/A"
            if isfinite(least)
            else f"{symbol}: in no frame of several atoms that was trained on"
            for symbol, (least, _, _, most), (_, force) in zip(
                symbols, self.neighbors.tolist(), self.forces.tolist(), strict=True
            )
        ]
        pairs = [
            (f"{symbols[first]}-{symbols[second]}", row[second])
            for first, row in enumerate(self.shortest.tolist())
            for second in range(first, len(symbols))
        ]
        near = [f"{pair} {distance:.3f} A" for pair, distance in pairs if isfinite(distance)]
        never = [pair for pair, distance in pairs if not isfinite(distance)]
        found.append(f"shortest distances: {', '.join(near) or 'none'}")
        if never:
            found.append(f"never near: {', '.join(never)}")
        return found
