"""OnlineObservable, the base of quantities that steps record, and tables of their results."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.multiple_time_steps import checked_multiple, steps_together
from mdgraph.engine.schedules import checked_steps
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.state import State

Row = dict[str, int | float | str]


@dataclass(frozen=True, eq=False, kw_only=True)
class ObservableResult:
    """Base of results.

    Attributes:
        kind: what was recorded.
        samples: number of samples.
        every: steps from one to the next.
    """

    kind: ClassVar[str]
    samples: int
    every: int

    def rows(self, system: int | None = None) -> list[Row]:
        """One row for each value, of one system or all; names of columns have units."""
        raise NotImplementedError

    def text(self) -> str:
        """A table with aligned columns."""
        rows = self.rows()
        lines = [list(rows[0]), *([_plain(value, ".7g") for value in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = (
            "  ".join(field.rjust(width) for field, width in zip(line, widths, strict=True))
            for line in lines
        )
        return "\n".join(
            [f"{self.kind}, {self.samples} samples, every {self.every} steps", *aligned]
        )

    def csv(self, system: int | None = None) -> str:
        """Comma-separated values of one system or all, with a header; 15 digits."""
        file, rows = io.StringIO(), self.rows(system)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0] if rows else [])
        writer.writerows([_plain(value, ".15g") for value in row.values()] for row in rows)
        return file.getvalue()

    def json(self) -> str:
        """The rows of all systems as JSON; null for numbers that are not finite."""
        rows = [finite_or_null(row) for row in self.rows()]
        head = {"kind": self.kind, "samples": self.samples, "every": self.every}
        return json.dumps({**head, "rows": rows}, indent=1) + "\n"

    def save(self, path: str | Path, system: int | None = None, *, overwrite: bool = False) -> None:
        """Writes .txt, .csv or .json atomically.

        Args:
            path: the file.
            system: the only one in a .csv; None writes all.
            overwrite: whether to replace an existing file.

        Raises:
            InputError: another suffix.
            FileError: the file exists, or the disk refused.
        """
        forms: dict[str, Callable[[], str]] = {
            ".txt": lambda: self.text() + "\n",
            ".csv": lambda: self.csv(system),
            ".json": self.json,
        }
        suffix = Path(path).suffix
        if suffix not in forms:
            raise InputError(f"Results go into .txt, .csv or .json files, not '{path}'.")
        refuse_existing(Path(path), overwrite=overwrite)
        content = forms[suffix]()
        write_atomically(path, content, new=not overwrite)


def _plain(value: float | str, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)


def finite_or_null(value: Any) -> Any:
    """The same for JSON, also within dictionaries and lists: null for numbers not finite."""
    if isinstance(value, dict):
        return {name: finite_or_null(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class OnlineObservable:
    """Base of quantities that are recorded within the step.

    Each step computes a sample, and a flag on the device, from the state's step counter, decides
    whether it counts, so one captured graph serves all steps. The buffers of `tensors` hold
    everything recorded, zero before the first sample, so copies of them restore a record.

    Attributes:
        kind: in results and records.
        even: whether samples must lie evenly in time.
        between_chunks: whether `poll` takes the samples, so that chunks end where they are due.
        within_steps: whether `record_` takes them.
        every: steps from one sample to the next, counted from the start of the trajectory.
        start: steps of the trajectory that are left out.
    """

    kind: ClassVar[str]
    even: ClassVar[bool] = False
    between_chunks: ClassVar[bool] = False
    within_steps: ClassVar[bool] = True

    @checked
    def __init__(self, *, every: int = 1, start: int = 0) -> None:
        self.every = checked_steps(every, 1, f"The interval of the {self.kind}")
        self.start = checked_steps(start, 0, f"The start of the {self.kind}")
        self._buffers: dict[str, Tensor] = {}

    def attach(self, calculation: Calculation, integrator: Integrator) -> None:
        """Makes buffers for a simulation, once; reads the device.

        Raises:
            InputError: it records another simulation, or one in which it has no meaning.
        """
        if self._buffers:
            raise InputError(
                f"The {self.kind} records another simulation already; make one for each."
            )
        self._state: State = calculation.state
        self._samples = torch.zeros((), dtype=torch.int64, device=self._state.device)
        own = self.allocate(calculation, integrator)
        self._buffers = {"samples": self._samples, **own}

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """Makes and names the buffers, all zero; see `attach`."""
        raise NotImplementedError

    def record_(self) -> None:
        """Called after every step; static shapes, does not sync."""
        step = self._state.step
        due = (step % self.every == 0) & (step > self.start)
        self.sample_(due)
        self._samples += due

    def sample_(self, due: Tensor) -> None:
        """Adds a sample of the current state if `due`, () bool; static shapes, does not sync."""
        raise NotImplementedError

    def poll(self, before: int, after: int) -> None:
        """Called at the start and after every chunk of steps, never captured; does not sync.

        Args:
            before: steps done before the chunk, -1 at the start.
            after: steps done after it.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Everything recorded, by name; the buffers themselves, not copies."""
        return self._buffers

    def reset(self) -> None:
        """Clears the record, for example after an equilibration; does not sync."""
        for tensor in self._buffers.values():
            tensor.zero_()

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {"kind": self.kind, "every": self.every, "start": self.start}

    def samples(self) -> int:
        """Number of samples; syncs.

        Raises:
            InputError: there is none yet.
        """
        count = int(self._samples) if self._buffers else 0
        if count == 0:
            first = (self.start // self.every + 1) * self.every
            raise InputError(f"The {self.kind} has no sample yet; run {first} steps at least.")
        return count

    def result(self) -> ObservableResult:
        """The result of all samples so far; syncs.

        Raises:
            InputError: there is no sample yet.
        """
        raise NotImplementedError


class OnlineObservables(Sequence[OnlineObservable]):
    """All observables of a simulation."""

    def __init__(
        self, observe: Iterable[OnlineObservable], calculation: Calculation, integrator: Integrator
    ) -> None:
        """Attaches each; see `OnlineObservable.attach`."""
        self._all = tuple(observe) if isinstance(observe, Iterable) else (observe,)
        together = steps_together(calculation.evaluator)
        for record in self._all:
            if not isinstance(record, OnlineObservable):
                raise InputError(
                    f"observe takes a list of what mdgraph.engine records, such as Averages(), and "
                    f"no {type(record).__name__}."
                )
            checked_multiple(record.every, 1, f"The interval of the {record.kind}", together)
        for record in self._all:
            record.attach(calculation, integrator)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def record_(self, step: int | None = None) -> None:
        """Called after every step; static shapes, does not sync.

        Args:
            step: number of steps done, by which the host skips observables that are not due;
                None within a captured step.
        """
        for record in self._all:
            if step is None or (step % record.every == 0 and step > record.start):
                record.record_()

    def poll(self, before: int, after: int) -> None:
        """See OnlineObservable."""
        for record in self._all:
            record.poll(before, after)

    def tensors(self) -> dict[str, Tensor]:
        """Everything recorded, by name; the buffers themselves, not copies."""
        return {
            f"{number}.{name}": tensor
            for number, record in enumerate(self._all)
            for name, tensor in record.tensors().items()
        }

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Writes copies of `tensors` back; does not sync."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])

    def settings(self) -> list[dict[str, Any]]:
        """What must be the same when a run is resumed."""
        return [record.settings() for record in self._all]

    def check_change(self, names: Iterable[str]) -> None:
        """Raises InputError for a change of the time step that an observable does not allow."""
        even = [record.kind for record in self._all if record.even]
        if even and "timestep" in names:
            raise InputError(
                f"The time step cannot change while the {even[0]} is recorded, whose samples "
                "lie evenly in time; make a new simulation."
            )
