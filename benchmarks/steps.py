"""Times whole steps of molecular dynamics: graphs of several, skins, and builds of the list.

    python benchmarks/steps.py [--atoms 24 ...] [--precision fast] [--term d3bj:pbe0@12] [--json]

Water as in speed.py, with its random weights. Those hold no liquid together, so the atoms fly
freely at 300 K from where they are, which lets lists fall due a little more often than in a
liquid; what the evaluation costs does not depend on that. A CPU has no graphs, and its steps
run eagerly. `--term` times a term alone, in place of the network; its evaluation is
the column `never` less the integrator's part, which `benchmarks/integrators.py` times.

One line a structure and ensemble, milliseconds a step, host included, medians of five
times of 128 steps, from 50,000 atoms on of three times of 32:

K = 1, 4 ...       graphs of as many steps, skin as chosen by measurement, built as needed
skin 0             graphs of 32, and a list built at every step
never, always      graphs of 32 with that skin (0.6 A where 0 was chosen), where lists are never
                   due, and where they always are
first, 10,000      of as many steps by `Simulation.run`, lists never due if there is a skin, for the
                   first time and once more
ratio              of the latter over what the replays take on the GPU alone
"""

import argparse
import gc
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from cases import (
    FreeFlight,
    Table,
    conditions,
    device_argument,
    print_heading,
    print_row,
    random_potential,
    run_script,
    water,
)

from mdgraph.engine import Integrator, LangevinMiddle, Simulation, VelocityVerlet
from mdgraph.engine.autotune import choose_skin, stopwatch
from mdgraph.evaluators import Evaluator
from mdgraph.fused.evaluator import EVALUATORS, chosen_evaluator
from mdgraph.models import term
from mdgraph.precision import PRECISIONS, precision_named

SIZES = {"cuda": [24, 165, 648, 3000, 12288, 24000, 98304], "cpu": [24]}
LENGTHS = (1, 4, 16, 32)
TIMESTEP, STILL = 0.5, 1e-6  # fs
SKIN = 0.6  # A
STEPS = {"cuda": 128, "cpu": 4}  # timed together; a multiple of all lengths
BATCHES = 5
LARGE = 50_000  # atoms; of those as many steps as the longest graph has, in fewer batches
LONG = 10_000
MOST_RUN_LONG = 5000  # atoms
ENSEMBLES: dict[str, Callable[[float], Integrator]] = {
    "NVE": VelocityVerlet,
    "Langevin": lambda timestep: LangevinMiddle(timestep, 300.0, 1.0),
}


class Bench:
    """One structure and ensemble."""

    def __init__(self, evaluator: Evaluator, atoms: int, ensemble: str, options: Any) -> None:
        self.gpu = options.device.type == "cuda"
        large = self.gpu and atoms >= LARGE
        self.steps = LENGTHS[-1] if large else STEPS[options.device.type]
        self.batches = 3 if large else BATCHES
        self.timer = stopwatch(options.device)
        self.about = {"atoms": atoms, "ensemble": ensemble}
        self.run = Simulation(
            water(atoms),
            FreeFlight(evaluator),
            ENSEMBLES[ensemble](TIMESTEP),
            device=options.device,
            precision=options.precision,
            temperature=300.0,
            maximum_temperature=math.inf,
            skin=0.0,
            graph="on" if self.gpu else "auto",
            steps_per_replay=LENGTHS[-1],
            check=False,
        )

    def row(self) -> dict[str, Any]:
        """All times of a line."""
        run = self.run
        row = self.about | {"skin_0": self._step()}
        choose_skin(run, self.timer)
        row["skin_A"] = run.calculation.skin
        for length in LENGTHS if self.gpu else (1,):
            run.step_graphs.longest = length
            row[f"K_{length}"] = self._step()
        run.set(timestep=STILL)
        if self.gpu and self.about["atoms"] <= MOST_RUN_LONG:
            row |= self._long()
        if run.calculation.skin == 0.0:
            run.set_skin(SKIN)
        row["never"] = self._step()
        if self.gpu:
            row["always"] = self._always()
        return row

    def _step(self) -> float:
        """Milliseconds of a step from where the atoms are."""
        run, steps = self.run, self.steps

        def work() -> None:
            run.step_graphs.advance_(run.step, steps)

        with run.unchanged():
            work()
        times = []
        for _ in range(self.batches):
            with run.unchanged():
                times.append(self.timer(work))
        return 1e3 * float(np.median(times)) / steps

    def _always(self) -> float:
        """With lists that allow no atom to move, as long as the cell keeps still."""
        lists = self.run.calculation.lists
        for rows in lists:
            rows._builder._allowed.fill_(-1.0)
        step = self._step()
        for rows in lists:
            rows._builder._allowed.fill_(rows.skin)
        return step

    def _long(self) -> dict[str, float]:
        """A long run, and how much longer it takes than the replays alone."""
        run, rest = self.run, LONG % LENGTHS[-1]
        with run.unchanged():
            run.step_graphs.advance_(run.step, LENGTHS[-1] + rest)  # captures both lengths
        replays = LONG / LENGTHS[-1] * self._replay()
        taken = []
        for _ in range(2):
            with run.unchanged():
                taken.append(1e3 * self.timer(lambda: run.run(LONG)))
        return {"first": taken[0] / LONG, "long": taken[1] / LONG, "ratio": taken[1] / replays}

    def _replay(self) -> float:
        """Milliseconds that a replay of the longest graph keeps the GPU busy."""
        run = self.run
        graph = run.step_graphs._graphs[LENGTHS[-1]]
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(20)]
        with run.unchanged():
            run.integrator.prepare_(run.step)
            for begin, end in events:
                begin.record()
                graph.replay()
                end.record()
            torch.cuda.synchronize()
        return float(np.median([begin.elapsed_time(end) for begin, end in events[5:]]))


TABLE = Table(
    (
        ("atoms", "atoms", ","),
        ("ensemble", "ensemble", ""),
        ("skin A", "skin_A", "g"),
        *((f"K = {length}", f"K_{length}", ".4g") for length in LENGTHS),
        ("skin 0", "skin_0", ".4g"),
        ("never", "never", ".4g"),
        ("always", "always", ".4g"),
        ("first", "first", ".4g"),
        ("10,000", "long", ".4g"),
        ("ratio", "ratio", ".4f"),
    ),
    width=10,
)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    precision = precision_named(options.precision)
    potential = term(options.term)[0] if options.term else random_potential()
    evaluator = chosen_evaluator(potential, precision, options.device, options.evaluator)
    for atoms in options.atoms:
        for ensemble in ENSEMBLES:
            yield Bench(evaluator, atoms, ensemble, options).row()
            gc.collect()
            if options.device.type == "cuda":
                torch.cuda.empty_cache()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="+", help="sizes of water")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--evaluator", default="auto", choices=EVALUATORS)
    parser.add_argument("--term", help="a term to time alone, such as d3bj:pbe0@12")
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true", help="one JSON line a row")
    options = parser.parse_args()
    options.atoms = options.atoms or SIZES[options.device.type]
    return options


def main() -> None:
    """Prints the table."""
    options = arguments()
    common = conditions(options.device, options.precision)
    print_heading(TABLE, common, options.json)
    for row in rows(options):
        print_row(TABLE, row, common, options.json)


if __name__ == "__main__":
    run_script(main)
