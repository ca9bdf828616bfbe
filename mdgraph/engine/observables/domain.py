"""DomainMonitor: reports, from the device, when a run leaves the domain of its potential."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.observables.base import ObservableResult, OnlineObservable, Row
from mdgraph.errors import InputError
from mdgraph.models import Domain

KINDS: Final = {
    "too few neighbors": "neighbors",
    "too many neighbors": "neighbors",
    "too short a distance": "A",
    "too large a force": "eV/A",
}
"""Kinds of extrapolation, with the units of their values."""


EVERY: Final = 100
"""Steps between checks, unless others are given."""


@dataclass(frozen=True)
class Departure:
    """One kind of extrapolation in a run: how often, and where first.

    Attributes:
        kind: one of KINDS.
        looks: number of checks that found it.
        step: of the first of these checks.
        atom: the one farthest beyond its bound then, indexed over all systems.
        neighbor: the neighbor at too short a distance; the atom itself for other kinds.
        value: of that atom.
        bound: the limit that the value exceeds.
    """

    kind: str
    looks: int
    step: int
    atom: int
    neighbor: int
    value: float
    bound: float


@dataclass(frozen=True, eq=False, kw_only=True)
class DeparturesResult(ObservableResult):
    """All kinds of extrapolation in a run; `samples` counts checks.

    Attributes:
        departures: at most one of each kind.
    """

    kind: ClassVar[str] = "departures"
    departures: tuple[Departure, ...]

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each kind, over all systems; 0 looks if none left."""
        by_kind = {departure.kind: departure for departure in self.departures}
        return [
            vars(by_kind[kind] if kind in by_kind else Departure(kind, 0, 0, 0, 0, 0.0, 0.0))
            | {"unit": unit}
            for kind, unit in KINDS.items()
        ]


class DomainMonitor(OnlineObservable):
    """Compares neighbor counts, distances and forces with the ranges of a domain.

    Unlike other observables it does not record within steps. At the start, and after each chunk
    that reaches a multiple of `every` steps, it launches some 60 small kernels outside of graphs
    and does not wait for them. It does not influence the dynamics.
    """

    kind: ClassVar[str] = "departures"
    within_steps: ClassVar[bool] = False

    @checked
    def __init__(self, domain: Domain, *, margin: float = 0.1, every: int = EVERY) -> None:
        """Checks nothing yet.

        Args:
            domain: of the potential.
            margin: tolerance beyond the ranges, as a fraction: of the range of neighbor counts
                and of the largest force; half of it of the shortest distance.
            every: steps between checks, at least.
        """
        super().__init__(every=every)
        self.domain, self.margin = domain, margin

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """See OnlineObservable; raises InputError for the domain of another potential."""
        state = self._state
        elements = set(self.domain.species.tolist())
        if not calculation.lists or not elements.issuperset(state.elements.tolist()):
            raise InputError(
                "This domain knows other elements than are here; give that of the potential."
            )
        self._calculation = calculation
        domain = self.domain.to(state.device)
        rows = domain.rows(state.elements)
        least, _, _, most = domain.neighbors[rows][state.kinds].unbind(1)
        slack = self.margin * (most - least).clamp(min=0.0)
        largest = (1.0 + self.margin) * domain.forces[rows, 1][state.kinds]
        self._fewest, self._most, self._largest = least - slack, most + slack, largest
        shortest = (1.0 - 0.5 * self.margin) * domain.shortest
        self._shortest = shortest[rows][:, rows][state.kinds]

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(len(KINDS), dtype=dtype, device=state.device)

        names = ("looks", "step", "atom", "neighbor")
        self._integers = {name: zeros(torch.int64) for name in names}
        self._reals = {name: zeros(torch.float64) for name in ("value", "bound")}
        return self._integers | self._reals

    def record_(self) -> None:
        """Does nothing: see `poll`."""

    def poll(self, before: int, after: int) -> None:
        """Checks the current state if a check is due; does not sync."""
        if before // self.every == after // self.every:
            return
        state = self._state
        pairs = self._calculation.list_of("network").pairs(state.positions, state.cell)
        with torch.no_grad():
            distance = torch.cat(
                [vectors.norm(dim=-1) for vectors in pairs.vectors], dim=1
            ).double()
            mask = torch.cat([block.valid for block in pairs.blocks], dim=1)
            mask = mask & (distance < pairs.cutoff)
            kinds = state.kinds.index_select(0, pairs.index.flatten()).view_as(pairs.index)
            bounds = self._shortest.gather(1, kinds)
            shortfall = torch.where(mask, bounds - distance, -torch.inf)
            slot = shortfall.argmax(1, keepdim=True)
            nearest, bound = distance.gather(1, slot)[:, 0], bounds.gather(1, slot)[:, 0]
            shortfall = shortfall.gather(1, slot)[:, 0]
            forces = self._calculation.evaluator.forces(state)
            count, force = mask.sum(1).double(), forces.double().norm(dim=1)
            values = torch.stack([count, count, nearest, force])
            limits = torch.stack([self._fewest, self._most, bound, self._largest])
            excess = torch.stack(
                [self._fewest - count, count - self._most, shortfall, force - self._largest]
            )
            # NaN exceeds no bound; the run loop stops at it.
            farthest, atom = excess.max(1)
            beyond = farthest > 0.0
            own = torch.arange(len(count), device=count.device)
            near = pairs.index.gather(1, slot)[:, 0].long()
            neighbors = torch.stack([own, own, near, own])
            place = atom[:, None]
            records = {
                "step": state.step.expand(len(KINDS)),
                "atom": atom,
                "neighbor": neighbors.gather(1, place)[:, 0],
                "value": values.gather(1, place)[:, 0],
                "bound": limits.gather(1, place)[:, 0],
            }
            first = beyond & (self._integers["looks"] == 0)
            for name, value in records.items():
                torch.where(first, value, self._buffers[name], out=self._buffers[name])
            self._integers["looks"] += beyond
            self._samples += 1

    def settings(self) -> dict[str, Any]:
        """See OnlineObservable."""
        return super().settings() | {"margin": self.margin}

    def result(self) -> DeparturesResult:
        """See OnlineObservable."""
        samples = self.samples()
        columns = [self._buffers[field].tolist() for field in (*self._integers, *self._reals)]
        return DeparturesResult(
            samples=samples,
            every=self.every,
            departures=tuple(
                Departure(kind, *row) for kind, *row in zip(KINDS, *columns, strict=True) if row[0]
            ),
        )
