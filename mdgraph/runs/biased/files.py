"""COLVAR and HILLS of a run, in PLUMED's layout and units: kJ/mol, nm, ps and rad."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.biases.applied import AppliedBiases
from mdgraph.biases.metadynamics import BoundMetadynamics
from mdgraph.engine import Simulation
from mdgraph.engine.reporting import HostSnapshot
from mdgraph.errors import FileError, name_some
from mdgraph.io.files import check_steps
from mdgraph.io.plumed import PlumedTable, PlumedWriter, read_plumed
from mdgraph.runs.biased.config import HILLS_COLUMNS
from mdgraph.runs.config import MDConfig
from mdgraph.runs.folder import Run, RunDirectory
from mdgraph.units import KILOJOULE_PER_MOLE

UNITS: Final[Mapping[str, float]] = {
    "A": 0.1,
    "A^3": 1e-3,
    "rad": 1.0,
    "eV": 1.0 / KILOJOULE_PER_MOLE,
    "": 1.0,
}
"""Units of variables in those of PLUMED: nm, nm^3, rad and kJ/mol."""

_DIGITS: Final = 15


def _domains(biases: AppliedBiases, names: Sequence[str]) -> dict[str, str]:
    """Constants that say which variables are periodic."""
    constants: dict[str, str] = {}
    for name in names:
        if biases.periods[name]:
            constants |= {f"min_{name}": "-pi", f"max_{name}": "pi"}
    return constants


class ColvarFile:
    """COLVAR of each system: variables, energies of biases and their work; a Recorder."""

    def __init__(
        self, simulation: Simulation, parts: Sequence[RunDirectory], interval: int, stack: ExitStack
    ) -> None:
        """Opens the files at the step of the simulation; rows after it are dropped.

        Args:
            simulation: with biases.
            parts: folders of its systems.
            interval: steps between rows.
            stack: closes the files.

        Raises:
            FileError: a file is missing or damaged, or the disk refuses.
        """
        biases = simulation.calculation.biases
        assert biases is not None
        self.interval = interval
        self._writers = [
            stack.enter_context(_resume_table(part.colvar, simulation)) for part in parts
        ]
        self._factors = np.array(
            [
                UNITS[biases.units[name]] if name in biases.units else UNITS["eV"]
                for name in biases.columns()
            ]
        )
        self._by_window: Callable[[torch.Tensor], torch.Tensor] | None = None

    def sort_by(self, by_window: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Gives each system the rows of its window, wherever replicas take that.

        Args:
            by_window: see `UmbrellaExchange.by_window`.
        """
        self._by_window = by_window

    @staticmethod
    def create(simulation: Simulation, parts: Sequence[RunDirectory]) -> None:
        """Writes the files of a new run without rows; raises FileError."""
        biases = simulation.calculation.biases
        assert biases is not None
        constants = _domains(biases, [*biases.variables])
        fields = ["time", *biases.columns()]
        for part in parts:
            PlumedWriter.create(part.colvar, fields, constants, digits=_DIGITS).close()

    @staticmethod
    def check(simulation: Simulation, parts: Sequence[RunDirectory], interval: int) -> None:
        """Raises FileError unless the files hold every row up to the step of the simulation."""
        biases = simulation.calculation.biases
        assert biases is not None
        for part in parts:
            table = _own_table(part.colvar, ["time", *biases.columns()])
            steps = _steps(table, simulation)
            steps = steps[steps <= simulation.step]
            check_steps(part.colvar, steps.tolist(), simulation.step, interval)

    def record(self, snapshot: HostSnapshot) -> None:
        """See Recorder."""
        thermo = snapshot.observables
        rows = torch.stack([*thermo.biases.values()])
        # Rows of a step come before its exchange, so windows are those of the step.
        columns = (rows if self._by_window is None else self._by_window(rows)).numpy()
        for number, writer in enumerate(self._writers):
            writer.append([1e-3 * thermo.time, *(columns[:, number] * self._factors).tolist()])

    def sync(self) -> None:
        """Waits until all rows would survive a loss of power."""
        for writer in self._writers:
            writer.sync()


def _own_table(path: Path, fields: Sequence[str]) -> PlumedTable:
    """The table of a run that writes these columns; raises FileError for that of another one."""
    table = read_plumed(path)
    if [*table.fields] != [*fields]:
        raise FileError(
            f"{path} has the columns {name_some(table.fields, 20)}, and this run writes "
            f"{name_some(fields, 20)}; put back the file that belongs to this run."
        )
    return table


def _resume_table(path: Path, simulation: Simulation) -> PlumedWriter:
    """A table opened at the step of the simulation; raises FileError."""
    time, timestep = 1e-3 * simulation.time, 1e-3 * simulation.timestep
    return PlumedWriter.resume(path, time, timestep, digits=_DIGITS)


def _hills_fields(names: Sequence[str]) -> list[str]:
    """Columns of HILLS of variables."""
    return ["time", *names, *(f"sigma_{own}" for own in names), *HILLS_COLUMNS]


def _steps(table: PlumedTable, simulation: Simulation) -> NDArray[np.int64]:
    """Steps of the rows of a table, by their times."""
    return np.rint(1e3 * table.values[:, 0] / simulation.timestep).astype(np.int64)


def hills_paths(run: Run, biases: AppliedBiases) -> dict[str, list[Path]]:
    """Files of hills by bias: one for each system, or one of all walkers, which rank 0 writes."""
    known = biases.metadynamics()
    paths = {}
    for name, bias in known.items():
        if bias.apart and run.ranks.rank:
            continue
        parts = [run.folder] if bias.shared else run.parts
        paths[name] = [part.hills(name if len(known) > 1 else "") for part in parts]
    return paths


class HillsFile:
    """HILLS of metadynamics; a Recorder.

    The device keeps the last hills of each bias, and every checkpoint holds them too; recording
    writes those since the last row.
    """

    def __init__(
        self, name: str, simulation: Simulation, paths: Sequence[Path], stack: ExitStack
    ) -> None:
        """Opens the files at the step of the simulation; rows after it are dropped.

        Args:
            name: of the bias.
            simulation: with that bias.
            paths: one file for each system, or one of all walkers.
            stack: closes the files.

        Raises:
            FileError: a file is missing or damaged, or the disk refuses.
        """
        biases = simulation.calculation.biases
        assert biases is not None
        self._name, self._simulation = name, simulation
        self._bias = _bias(biases, name)
        names = biases.biases[biases.names.index(name)].names
        self._factors = np.array([UNITS[biases.units[own]] for own in names])
        every, rows = self._bias.every, len(self._bias.records)
        # Whole outer steps; the device keeps at least as many hills.
        each = math.lcm(every, simulation.together)
        self.interval = rows * every // each * each
        assert self.interval, "hills are overwritten before they are read"
        self._writers = [stack.enter_context(_resume_table(path, simulation)) for path in paths]
        self._last = self._last_step(paths[0])

    def _last_step(self, path: Path) -> int:
        """Step of the last hill in a file."""
        steps = _steps(read_plumed(path), self._simulation)
        return int(steps[-1]) if len(steps) else 0

    @staticmethod
    def create(name: str, biases: AppliedBiases, paths: Sequence[Path]) -> None:
        """Writes the files of a new run without rows; raises FileError."""
        names = biases.biases[biases.names.index(name)].names
        fields = _hills_fields(names)
        constants = {"multivariate": "false", "kerneltype": "gaussian"}
        constants |= _domains(biases, names)
        for path in paths:
            PlumedWriter.create(path, fields, constants, digits=_DIGITS).close()

    @staticmethod
    def check(name: str, simulation: Simulation, paths: Sequence[Path]) -> None:
        """Raises FileError unless the files hold all hills but those that the device has yet."""
        biases = simulation.calculation.biases
        assert biases is not None
        bias, step = _bias(biases, name), simulation.step
        walkers = bias.records.shape[1] if bias.shared else 1
        fields = _hills_fields(biases.biases[biases.names.index(name)].names)
        for path in paths:
            steps = _steps(_own_table(path, fields), simulation)
            steps = steps[steps <= step]
            last = int(steps[-1]) if len(steps) else 0
            expected = np.arange(bias.every, last + 1, bias.every).repeat(walkers)
            lost = step // bias.every - last // bias.every > len(bias.records)
            if lost or not np.array_equal(steps, expected):
                raise FileError(
                    f"{path} does not hold the hills up to step {step} of the checkpoint beside "
                    "it; put back the file that belongs to this run."
                )

    def record(self, snapshot: HostSnapshot) -> None:
        """See Recorder."""
        # Where ranks share them, those of this step come after the snapshot.
        done = snapshot.step - self._bias.apart
        self._write(snapshot.hills[self._name].numpy(), done)

    def sync(self) -> None:
        """Writes the hills of all steps done, and waits until they would survive a loss of power.

        Reads the device.
        """
        self._write(self._bias.records.cpu().numpy(), self._simulation.step)
        for writer in self._writers:
            writer.sync()

    def _write(self, records: NDArray[np.float64], step: int) -> None:
        every, timestep = self._bias.every, self._simulation.timestep
        steps = range((self._last // every + 1) * every, step + 1, every)
        if not steps:
            return
        bias = self._bias
        hills = records[[done // every % len(records) for done in steps]]
        times = np.broadcast_to(1e-3 * timestep * np.array(steps)[:, None, None], hills.shape)
        sigma = np.broadcast_to(bias.sigma * self._factors, (*hills.shape[:2], len(bias.sigma)))
        rows = np.concatenate(
            [
                times[..., :1],
                hills[..., :-1] * self._factors,
                sigma,
                hills[..., -1:] * bias.factor * UNITS["eV"],
                np.full((*hills.shape[:2], 1), bias.bias_factor or 1.0),
            ],
            axis=-1,
        )
        if bias.shared:
            self._writers[0].append(rows.reshape(-1, rows.shape[-1]))
        else:
            for number, writer in enumerate(self._writers):
                writer.append(rows[:, number])
        self._last = steps[-1]


def _bias(biases: AppliedBiases, name: str) -> BoundMetadynamics:
    return biases.metadynamics()[name]


BiasFile = ColvarFile | HillsFile


def create_bias_files(run: Run, simulation: Simulation) -> None:
    """Writes COLVAR with the start as its first row, and empty HILLS; of a run with variables."""
    biases, configuration = simulation.calculation.biases, run.configuration
    assert biases is not None
    assert isinstance(configuration, MDConfig)
    ColvarFile.create(simulation, run.parts)
    with ExitStack() as stack:
        colvar = ColvarFile(simulation, run.parts, configuration.colvar_steps, stack)
        colvar.record(simulation.view())
        colvar.sync()
    for name, paths in hills_paths(run, biases).items():
        HillsFile.create(name, biases, paths)


def check_bias_files(run: Run, simulation: Simulation) -> None:
    """Raises FileError unless COLVAR and HILLS belong to the checkpoint; changes nothing."""
    biases, configuration = simulation.calculation.biases, run.configuration
    assert biases is not None
    assert isinstance(configuration, MDConfig)
    ColvarFile.check(simulation, run.parts, configuration.colvar_steps)
    for name, paths in hills_paths(run, biases).items():
        HillsFile.check(name, simulation, paths)


def open_bias_files(run: Run, simulation: Simulation, stack: ExitStack) -> list[BiasFile]:
    """Opens COLVAR and HILLS at the step of a simulation with variables."""
    biases, configuration = simulation.calculation.biases, run.configuration
    assert biases is not None
    assert isinstance(configuration, MDConfig)
    files: list[BiasFile] = [ColvarFile(simulation, run.parts, configuration.colvar_steps, stack)]
    for name, paths in hills_paths(run, biases).items():
        files.append(HillsFile(name, simulation, paths, stack))
    return files
