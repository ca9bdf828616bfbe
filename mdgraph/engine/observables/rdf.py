"""RadialDistributions: g(r) of every pair of elements, from the neighbor list."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import volume
from mdgraph.engine.observables.base import ObservableResult, OnlineObservable, Row
from mdgraph.errors import InputError
from mdgraph.units import SYMBOLS

_COPIES: Final = 64
"""Number of histograms that share the counts, because GPU threads queue for a popular bin."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DistributionResult(ObservableResult):
    """Radial distribution functions of P pairs of elements in S systems.

    Attributes:
        pairs: names, such as H-O.
        distance: (B,) float64, A, middle of each bin.
        counts: (S, P, B) int64, neighbors at that distance, over all atoms and samples.
        value: (S, P, B) float64, g averaged over each bin; NaN where a system has no pair.
    """

    kind: ClassVar[str] = "radial distributions"
    pairs: tuple[str, ...]
    distance: NDArray[np.float64]
    counts: NDArray[np.int64]
    value: NDArray[np.float64]

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each system, pair and bin."""
        return [
            {
                "system": index,
                "pair": pair,
                "distance_A": float(distance),
                "g": float(self.value[index, place, bin_]),
                "count": int(self.counts[index, place, bin_]),
            }
            for index in (range(len(self.value)) if system is None else [system])
            for place, pair in enumerate(self.pairs)
            if np.isfinite(self.value[index, place]).all()
            for bin_, distance in enumerate(self.distance)
        ]


class RadialDistributions(OnlineObservable):
    """Counts neighbors by distance, for each pair of elements and each system.

    Counts are int64, whose sum does not depend on the order of additions, so the atomic additions
    of `index_add_` are deterministic. Pairs with all images within the range count, except an
    atom with its own images; with N (N - 1) pairs of like atoms an ideal gas has g = 1.
    """

    kind: ClassVar[str] = "radial distributions"

    @checked
    def __init__(
        self, maximum: float | None = None, *, bins: int = 100, every: int = 1, start: int = 0
    ) -> None:
        """Checks the numbers.

        Args:
            maximum: A, at most the cutoff of the potential; None takes that.
            bins: between 0 and the maximum.
            every: steps from one sample to the next.
            start: steps of the trajectory that are left out.

        Raises:
            InputError: an invalid number.
        """
        super().__init__(every=every, start=start)
        distance = 1.0 if maximum is None else maximum
        numbers = isinstance(distance, Real) and isinstance(bins, Real)
        if not numbers or not 0.0 < distance < np.inf or not 1 <= bins < 2**31 or bins % 1:
            raise InputError(
                f"Radial distributions cannot have {bins} bins up to {maximum} A; give a whole "
                "number of bins and a distance above zero."
            )
        self.maximum, self.bins = maximum, int(bins)

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """See OnlineObservable."""
        state = self._state
        if not bool(state.pbc.all()):
            raise InputError("Radial distributions need systems with three periodic directions.")
        self._calculation = calculation
        cutoffs = [item.cutoff for item in calculation.lists]
        longest = max(cutoffs, default=0.0)
        self.maximum = longest if self.maximum is None else self.maximum
        if longest == 0.0 or self.maximum > longest:
            raise InputError(
                f"Radial distributions reach as far as the neighbor list, {longest:g} A here; "
                "ask for a shorter range."
            )
        reaching = [place for place, cutoff in enumerate(cutoffs) if cutoff >= self.maximum]
        self._list = min(reaching, key=lambda place: cutoffs[place])
        elements, systems = len(state.elements), state.grouping.systems
        rows, columns = torch.triu_indices(elements, elements)
        numbers = torch.zeros(elements, elements, dtype=torch.int64)
        numbers[rows, columns] = numbers[columns, rows] = torch.arange(len(rows))
        self._pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
        copies = max(1, _COPIES // systems)
        shape = (copies, systems, len(self._pairs), self.bins)
        self._counts = torch.zeros(shape, dtype=torch.int64, device=state.device)
        self._own = torch.arange(state.grouping.atoms, device=state.device)[:, None]
        # (N, E): where the histogram of an atom with each element begins.
        first = (self._own % copies * systems + state.grouping.index[:, None]) * len(self._pairs)
        self._first_bin = (first + numbers.to(state.device)[state.kinds]) * self.bins
        self._inverse_volumes = torch.zeros(systems, dtype=torch.float64, device=state.device)
        return {"counts": self._counts, "inverse_volume": self._inverse_volumes}

    def sample_(self, due: Tensor) -> None:
        """See OnlineObservable."""
        state, maximum = self._state, self.maximum
        assert maximum is not None
        # Looked up each time: a list that has grown has other buffers.
        pairs = self._calculation.lists[self._list].pairs(state.positions, state.cell)
        norms = [torch.linalg.vector_norm(vectors.detach(), dim=-1) for vectors in pairs.vectors]
        distance = torch.cat(norms, dim=1)
        # Empty slots hold vectors beyond the cutoff.
        mask = due & (distance < maximum) & (pairs.index != self._own)
        # A distance that is not finite, in a step that will be undone, needs a valid bin too.
        bin_ = (distance * (self.bins / maximum)).to(torch.int64).clamp(0, self.bins - 1)
        kinds = state.kinds.index_select(0, pairs.index.flatten()).view_as(bin_)
        place = self._first_bin.gather(1, kinds) + bin_
        mask = mask.to(torch.int64)
        self._counts.view(-1).index_add_(0, place.flatten(), mask.flatten())
        self._inverse_volumes += torch.where(due, 1.0 / volume(state), 0.0)

    def settings(self) -> dict[str, Any]:
        """See OnlineObservable."""
        return super().settings() | {"maximum": self.maximum, "bins": self.bins}

    def result(self) -> DistributionResult:
        """See OnlineObservable."""
        samples = self.samples()
        assert self.maximum is not None
        state = self._state
        counts = self._counts.sum(0).cpu().numpy()
        inverse_volumes = self._inverse_volumes.cpu().numpy()
        atoms = torch.nn.functional.one_hot(state.kinds, len(state.elements))
        present = state.grouping.sum(atoms).cpu().numpy()
        # The list has a pair of unlike atoms in both of their rows.
        ordered = np.stack(
            [
                present[:, a] * (present[:, b] - 1) if a == b else 2 * present[:, a] * present[:, b]
                for a, b in self._pairs
            ],
            axis=1,
        )
        edges = np.linspace(0.0, self.maximum, self.bins + 1)
        shells = 4.0 / 3.0 * np.pi * np.diff(edges**3)
        ideal = (ordered * inverse_volumes[:, None])[..., None] * shells
        symbols = [SYMBOLS[number] for number in state.elements.tolist()]
        return DistributionResult(
            samples=samples,
            every=self.every,
            pairs=tuple(f"{symbols[a]}-{symbols[b]}" for a, b in self._pairs),
            distance=0.5 * (edges[1:] + edges[:-1]),
            counts=counts,
            value=np.divide(counts, ideal, out=np.full(ideal.shape, np.nan), where=ideal > 0.0),
        )
