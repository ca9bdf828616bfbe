"""What two time steps do to mean energy and pressure, from pairs of runs that begin alike.

    python benchmarks/energy_pairs.py LARGE SMALL --steps 1 1.25x4 --start FILE --out FILE

LARGE and SMALL are potentials by name or path; the first of --steps, plain ones, is the reference.
Langevin dynamics with the steps of the reference, for --equilibrate-ps from --start, give places
and velocities from which all rows go on with their own steps. The energy of a liquid wanders for
tens of picoseconds with its structure, which runs from one place share for the first few, while
bonds and librations take their new means within one over the friction. So the difference of pairs
is known far better than that of two long runs. It is told from --first ps on, and of both halves of
that, as what follows structures would still grow.

U is the potential energy. Limit: 1 % of half of kT a degree of freedom. The pressure is that of the
virial, and of kT for the kinetic energy; times a --compressibility it is what a barostat's mean
volume would change by, with a limit of 1 %. Structure parts more slowly and bonds forget faster
with a higher --friction, on which no mean depends. Errors are two standard errors over pairs. A row
is written to FILE.json with its seed when it is done; --join takes such files and pools all their
seeds.
"""

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from cases import conditions, run_script
from multiple_time_steps import Array, Steps, Verdict, hardware
from replica_frames import moving
from slow_observables import Bench, check, only_pairs, parser_of, print_table, steps_of

from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.errors import SimulationError
from mdgraph.system import System
from mdgraph.units import BAR, BOLTZMANN

LIMIT: Final = 1.0
"""Percent."""

VARIANCE: Final = 10.0
"""Percent, of the volume's."""

COMPRESSIBILITY: Final = 4.5e-5
"""1/bar, of water."""


@dataclass
class Energies:
    """A Reporter of potential energies, eV, and traces of the virial, eV, of S equal systems."""

    interval: int
    values: list[Array] = field(default_factory=list)
    traces: list[Array] = field(default_factory=list)

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        if simulation.step:
            state = simulation.state
            self.values.append(state.energy.double().cpu().numpy())
            traces = state.virial.double().diagonal(dim1=-2, dim2=-1).sum(-1)
            self.traces.append(traces.cpu().numpy())


class EnergyBench(Bench):
    """The runs of one structure."""

    begun: list[System] | None = None

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.start = [
            one.replace(positions=options.lengths * one.positions, cell=options.lengths * one.cell)
            for one in self.start
        ]

    def more_about(self) -> dict[str, Any]:
        """See Bench."""
        options = self.options
        return {
            "friction_per_ps": options.friction,
            "equilibrate_ps": options.equilibrate_ps,
            "lengths": options.lengths,
        }

    def texts(self) -> list[str]:
        """See Bench."""
        steps: list[str] = self.options.steps
        return steps

    def made(self, steps: Steps) -> dict[str, Any] | None:
        """Energies, eV, and pressures, bar, (ps, replicas) of each picosecond.

        None if time was too short.
        """
        options, began = self.options, time.perf_counter()
        energies = Energies(self.every(steps))
        try:
            if self.begun is None:
                reference = steps_of(options.steps[0])
                bath = self.simulation(self.start, self.bath(reference), reference)
                self.advance(bath, self.count(options.equilibrate_ps, reference))
                self.begun = moving(bath)
            simulation = self.simulation(self.begun, self.bath(steps), steps)
            simulation.reporters.append(energies)
            spacing = 1e-3 * self.every(steps) * steps.timestep
            self.advance(simulation, self.count(options.ps + 0.5 * spacing, steps))
        except SimulationError as error:
            return {"failed": str(error)}
        whole = int(len(energies.values) * spacing + 1e-6)
        if whole < options.ps:
            print(f"No time was left for {steps.text()} fs.", flush=True)
            return None
        edges = np.round(np.arange(whole + 1) / spacing).astype(int)
        spans = list(itertools.pairwise(edges))
        values = np.array(energies.values)
        degrees = float(simulation.degrees_of_freedom[0])
        ideal = degrees * BOLTZMANN * options.temperature
        unit = 3.0 * BAR * float(np.abs(np.linalg.det(self.start[0].cell)))
        pressures = (ideal + np.array(energies.traces)) / unit if unit else None
        seconds = time.perf_counter() - began
        print(f"{steps.text()} fs: {whole} ps in {seconds:.0f} s", flush=True)
        return {
            "conditions": conditions(options.device, options.precision),
            "atoms": len(self.start[0]),
            "degrees": degrees,
            "U": [values[a:b].mean(0).tolist() for a, b in spans],
            "P": [pressures[a:b].mean(0).tolist() for a, b in spans] if unit else None,
            "seconds": seconds,
        }

    def bath(self, steps: Steps) -> LangevinMiddle:
        return LangevinMiddle(steps.timestep, self.options.temperature, self.options.friction)


def tables_of(
    records: Sequence[Mapping[str, Any]], first: int, compressibility: float = COMPRESSIBILITY
) -> str:
    """The table of each length of the cells, and with two the variance of the volume."""
    lengths = sorted({float(record["about"].get("lengths", 1.0)) for record in records})
    parts = [
        [one for one in records if float(one["about"].get("lengths", 1.0)) == length]
        for length in lengths
    ]
    texts = [table_of(part, first, compressibility) for part in parts]
    if len(lengths) == 2:
        texts.append("\n".join(variances_of(*map(rows_of, parts), first)))
    return "\n".join(texts)


def rows_of(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs of each row, of the seeds that all rows have."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for record in map(only_pairs, records):
        for text, seeds in record["rows"].items():
            rows.setdefault(text, []).extend(seeds.values())
    return rows


def variances_of(
    small: Mapping[str, Sequence[Mapping[str, Any]]],
    large: Mapping[str, Sequence[Mapping[str, Any]]],
    first: int,
) -> list[str]:
    """The lines of a table, of rows in two volumes.

    None where a run failed or has no pressure, or where the rows of both are not the same.
    """
    if small.keys() != large.keys() or not all((*small.values(), *large.values())):
        return []
    runs = [run for part in (small, large) for own in part.values() for run in own]
    if any(run.get("P") is None for run in runs):
        return []
    pressures = [
        {
            text: np.concatenate([run["P"] for run in own], 1)[first:].mean(0)
            for text, own in part.items()
        }
        for part in (small, large)
    ]
    reference, *others = pressures[0]
    falls = pressures[0][reference].mean() - pressures[1][reference].mean()
    lines = ["| step, fs | outer, fs | variance of the volume, % |", "|" + " --- |" * 3]
    for text in others:
        steps = steps_of(text)
        changes = [with_error(part[text] - part[reference]) for part in pressures]
        difference = 100.0 * (changes[1][0] - changes[0][0]) / falls
        error = 100.0 * float(np.hypot(changes[0][1], changes[1][1])) / abs(falls)
        verdict = Verdict(difference, error, VARIANCE).text("+.1f")
        lines.append(f"| {steps.text()} | {steps.outer:g} | {verdict} |")
    return [*lines, ""]


def table_of(
    records: Sequence[Mapping[str, Any]], first: int, compressibility: float = COMPRESSIBILITY
) -> str:
    """All rows of records with equal conditions, as differences to the first row."""
    about = records[0]["about"]
    rows = rows_of(records)
    failed = [text for text, runs in rows.items() if any("failed" in run for run in runs)]
    done = {text: runs for text, runs in rows.items() if runs and text not in failed}
    lines = [f"{text} fs fails." for text in failed]
    if len(done) > 1:
        lines = [
            *differences(done, first, about["temperature_K"]),
            "",
            *pressures_of(done, first, compressibility),
            *lines,
        ]
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    where = hardware([run["conditions"] for runs in done.values() for run in runs])
    return "\n".join([f"{told}. {where}.", "", *lines, ""])


def differences(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], first: int, kelvin: float
) -> list[str]:
    """The lines of a table, of which the first row is the reference."""
    values = {text: np.concatenate([run["U"] for run in runs], 1) for text, runs in rows.items()}
    reference, *others = values
    one = rows[reference][0]
    whole = len(values[reference])
    middle = (first + whole) // 2
    parts = [(first, whole), (first, middle), (middle, whole)]
    titles = [f"{begin} to {end} ps, %" for begin, end in parts]
    titles = ["step, fs", "outer, fs", "pairs", "meV an atom", *titles]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    unit = 100.0 / (0.5 * BOLTZMANN * kelvin * one["degrees"])
    for text in others:
        change, steps = values[text] - values[reference], steps_of(text)
        means = [change[begin:end].mean(0) for begin, end in parts]
        errors = [with_error(mean)[1] for mean in means]
        own = 1e3 / one["atoms"]
        cells = [steps.text(), f"{steps.outer:g}", f"{len(means[0])}"]
        cells.append(f"{own * means[0].mean():+.2f} ± {own * errors[0]:.2f}")
        cells += [
            Verdict(unit * float(mean.mean()), unit * error, LIMIT).text("+.2f")
            for mean, error in zip(means, errors, strict=True)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    alone = (
        values[reference][first:].mean(0).std(ddof=1)
        * unit
        * (2.0 / values[reference].shape[1]) ** 0.5
    )
    lines += ["", f"Without pairs two errors would be {2.0 * alone:.2f} %."]
    return lines


def with_error(values: Array) -> tuple[float, float]:
    """Mean and two standard errors."""
    return float(values.mean()), 2.0 * float(values.std(ddof=1)) / len(values) ** 0.5


def pressures_of(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], first: int, compressibility: float
) -> list[str]:
    """The lines of a table of pressures; none where a run has none."""
    if any(run.get("P") is None for runs in rows.values() for run in runs):
        return []
    values = {
        text: np.concatenate([run["P"] for run in runs], 1)[first:].mean(0)
        for text, runs in rows.items()
    }
    reference, *others = values
    lines = [
        "| step, fs | outer, fs | pressure, bar | difference, bar | of the volume, % |",
        "|" + " --- |" * 5,
    ]
    for text in (reference, *others):
        own, change, steps = values[text], values[text] - values[reference], steps_of(text)
        cells = [steps.text(), f"{steps.outer:g}", "{:.0f} ± {:.0f}".format(*with_error(own))]
        if text == reference:
            cells += ["", "reference"]
        else:
            difference, error = with_error(change)
            unit = 100.0 * compressibility
            verdict = Verdict(unit * difference, unit * error, LIMIT)
            cells += [f"{difference:+.0f} ± {error:.0f}", verdict.text("+.2f")]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__.splitlines()[0])
    parser.set_defaults(ps=8.0)
    parser.add_argument("--first", type=int, default=1, help="ps that are left out")
    parser.add_argument(
        "--compressibility", type=float, default=COMPRESSIBILITY, help="1/bar, of volumes"
    )
    parser.add_argument("--lengths", type=float, default=1.0, help="factor of those of --start")
    options = parser.parse_args()
    check(parser, options)
    if options.ps < options.first + 2:
        parser.error("two halves of a picosecond or more need --ps of --first and 2")
    return options


def main() -> None:
    """Makes the rows that are missing, and prints the table."""
    options = arguments()
    print_table(
        EnergyBench,
        options,
        lambda records: tables_of(records, options.first, options.compressibility),
    )


if __name__ == "__main__":
    run_script(main)
