"""Drift of the energy at constant energy, from several starts of a box of water.

    python benchmarks/drift.py [--precision mixed] [--ps 1000] [--state FILE] [--minutes 9] ...

All starts advance as one batch of the shipped potential, each from velocities and a bath of
its own (stochastic velocity rescaling at 300 K); then the bath goes, and what is sampled is
the conserved energy, averaged on the device over every step of an interval. The slope of
such means over time, by least squares, is printed over kT and the degrees of freedom.

Two standard errors stand beside it: of the mean over the starts, from their scatter, and of
the fit, from the residuals of blocks of means. The bound is |slope| + 2 SE with the larger.

With --state a run goes on where the command before stopped, or was killed, to the same bits,
so that a nanosecond can be gathered in sessions of some minutes; the files are FILE, and
FILE.bath or after the bath FILE.free, written every half minute, and a row of what is known by
then is printed. Give the same options each time; --ps may grow.

`double` evaluates the network itself, unless --evaluator fused asks for its tables in float64.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from command_line import device_argument, run_script
from conditions import hardware
from gathering import Gathering
from table import Table

from mdgraph.fused.choice import EVALUATORS
from mdgraph.precision import PRECISIONS

TABLE = Table(
    (
        ("precision", "precision", ""),
        ("atoms", "atoms", ","),
        ("starts", "starts", ""),
        ("ps each", "ps", ".4g"),
        ("dt fs", "timestep_fs", "g"),
        ("T K", "temperature_K", ".1f"),
        ("slope", "slope", ".2e"),
        ("SE starts", "starts_error", ".1e"),
        ("SE blocks", "blocks_error", ".1e"),
        ("|slope|+2SE", "bound", ".1e"),
    ),
    width=13,
)
"""The last four in kT/ns a degree of freedom."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--evaluator", default="auto", choices=EVALUATORS)
    parser.add_argument("--ps", type=float, default=1000.0, help="of each start")
    parser.add_argument("--bath-ps", type=float, default=10.0, help="before, with a bath")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--repeat", type=int, nargs=3, default=[1, 1, 1], help="of 64 molecules")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--every", type=int, default=1000, help="steps averaged in a sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then it stops")
    parser.add_argument("--state", type=Path, help="where it goes on")
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints rows of the table, the last one of all that was gathered."""
    options = arguments()

    def show(row: dict[str, Any]) -> None:
        print(json.dumps(row) if options.json else TABLE.text(row), flush=True)

    gathering = Gathering(options, show)
    if not options.json:
        print(f"{hardware(options.device)}; slopes in kT/ns a degree of freedom, kT of the bath")
        print(TABLE.titles(), flush=True)
    done = gathering.run()
    if gathering.simulation is None:
        print("Still in the bath; give the same command again.")
        return
    gathering.show()
    if not (done or options.json):
        print("Not at the end yet; give the same command again.")


if __name__ == "__main__":
    run_script(main)
