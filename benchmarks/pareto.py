"""Speed against error of potentials for one system: numbers as JSON, and a picture.

    python benchmarks/pareto.py water-pbe0 water-pbe0-small --frames water.h5 \\
        --split potentials/water-pbe0/split.json --atoms 3072 24000 --device cuda --out pareto

Potentials are named or lie at paths; further ones are given beside these. Speed is that of Langevin
steps as `mdgraph md` takes them and `mdgraph bench` times them, in atom-steps/s, from the start
structure of the first potential (or --structure), repeated to each number of --atoms as evenly as
it goes: 3,072 atoms are 2 x 2 x 4 copies of the 192 of water. The error is that of forces on the
frames of a data set (`mdgraph data convert`), RMS over components; "apart" is the RMS of the
difference from the forces of the first potential there, which is what two time steps of the pair
leave to impulses.
Writes OUT.json and OUT.png.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import Table, conditions, device_argument, repeated, run_script
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mdgraph import load
from mdgraph.analysis.style import COLOURS, GREY, blank_figure, dress
from mdgraph.checkpoints import shipped_potentials
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.data import LabelledFrame
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import as_evaluator
from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically
from mdgraph.io.structures import read_system
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.runs.bench import milliseconds, modes
from mdgraph.runs.validation import read_frames, read_held_out
from mdgraph.system import System

FRICTION = 1.0
"""1/ps."""

TABLE = Table((("", "potential", ""), ("atoms", "atoms", ","), ("atom-steps/s", "rate", ".3g"),
               ("ns/day", "ns_per_day", ".3g"), ("dF, meV/A", "error", ".3g"),
               ("apart, meV/A", "apart", ".3g")), 14, 28)  # fmt: skip


def copies(atoms: int, unit: int) -> tuple[int, int, int]:
    """Copies along the axes that make so many atoms, as even as they can be.

    Raises:
        InputError: no number of copies does.
    """
    if atoms < unit or atoms % unit:
        near = unit * max(1, round(atoms / unit))
        raise InputError(
            f"The structure has {unit} atoms, and {atoms} is no multiple; take {near}."
        )
    count = atoms // unit
    every = [
        (a, b, count // (a * b))
        for a in range(1, count + 1)
        if count % a == 0
        for b in range(a, count // a + 1)
        if count // a % b == 0 and count // (a * b) >= b
    ]
    return min(every, key=sum)


def forces_of(path: str, frames: Sequence[LabelledFrame], options: argparse.Namespace) -> Any:
    """(3 x atoms of all frames,) eV/A."""
    precision = precision_named(options.precision)
    evaluator = as_evaluator(load(path), precision, options.device, "auto")
    systems = [System(one.numbers, one.positions, cell=one.cell, pbc=one.pbc) for one in frames]
    names = ["frame"] * len(frames)
    results = Batches(evaluator, options.device, precision).evaluate(systems, names)
    forces = {place: np.asarray(result.forces, dtype=np.float64) for place, result in results}
    return np.concatenate([forces[place].ravel() for place in range(len(frames))])


def rms(values: NDArray[np.float64]) -> float:
    """meV/A of eV/A."""
    return 1e3 * float(np.sqrt(np.square(values).mean()))


def step_ms(path: str, system: System, options: argparse.Namespace) -> float:
    """Time of a step in the mode of `mdgraph md`."""
    simulation = Simulation(
        system,
        path,
        LangevinMiddle(options.timestep_fs, options.temperature, FRICTION),
        device=options.device,
        precision=options.precision,
        check=False,
    )
    repeat = modes(options.device)[-1].prepare(simulation)
    return milliseconds(repeat, options.device, options.seconds, simulation.chunk)


def picture(result: dict[str, Any]) -> Figure:
    """Errors to the right, speeds upwards."""
    about = result["conditions"]
    subtitle = f"{about['hardware']}, {about['precision']}, {about['date']}"
    figure = blank_figure(6.4, 4.6, "Speed against error", subtitle)
    axes = figure.add_subplot()
    dress(axes)
    rows = result["rows"]
    for colour, atoms in zip(COLOURS, dict.fromkeys(row["atoms"] for row in rows), strict=False):
        own = sorted((row["error"], row["rate"]) for row in rows if row["atoms"] == atoms)
        axes.plot(
            *zip(*own, strict=True), "o-", color=colour, linewidth=1.0, label=f"{atoms:,} atoms"
        )
    for name in dict.fromkeys(row["potential"] for row in rows):
        error, rate = max((row["error"], row["rate"]) for row in rows if row["potential"] == name)
        axes.annotate(
            name, (error, rate), (0, 9), textcoords="offset points", ha="center", color=GREY
        )
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xlim(0.0, 1.25 * max(row["error"] for row in rows))
    axes.set_xlabel(f"force error on {result['frames']}, RMS, meV/Å")
    axes.set_ylabel("atom-steps a second")
    axes.legend(frameon=False, loc="lower right")
    return figure


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potentials", nargs="+", metavar="POTENTIAL")
    parser.add_argument("--frames", type=Path, required=True, help="a data set (.h5)")
    parser.add_argument("--split", type=Path, help="of --frames: those held out alone")
    parser.add_argument("--structure", type=Path, help="else the start of the first potential")
    parser.add_argument("--atoms", type=int, nargs="+", required=True)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="mixed")
    parser.add_argument("--timestep-fs", type=float, default=0.5)
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number")
    parser.add_argument("--out", type=Path, required=True, help="without .json and .png")
    options = parser.parse_args()
    if options.frames.suffix != ".h5":
        parser.error("--frames is a data set; mdgraph data convert makes one of other files")
    shipped = shipped_potentials().get(options.potentials[0])
    if options.structure is None:
        if shipped is None:
            parser.error(f"{options.potentials[0]} does not ship, so give --structure")
        options.structure = shipped / "start.extxyz"
    return options


def main() -> None:
    """Measures all, and writes both files."""
    options = arguments()
    unit = read_system(options.structure)
    systems = [repeated(unit, copies(atoms, len(unit))) for atoms in options.atoms]
    if options.split is None:
        frames, part = read_frames(options.frames, {}), ""
    else:
        frames, part = read_held_out(options.frames, options.split)
    labels = np.concatenate([np.asarray(frame.forces).ravel() for frame in frames])
    result: dict[str, Any] = {
        "conditions": conditions(options.device, options.precision),
        "timestep_fs": options.timestep_fs,
        "frames": f"{len(frames)} frames of {options.frames.name}",
        "part": part,
        "force_rms": rms(labels),
        "rows": [],
    }
    print(", ".join(f"{name} {value}" for name, value in result["conditions"].items()))
    print(TABLE.titles())
    first = None
    for path in options.potentials:
        forces = forces_of(path, frames, options)
        first = forces if first is None else first
        for system in systems:
            step = step_ms(path, system, options)
            row = {
                "potential": Path(path).name,
                "sha256": potential_sha256(path),
                "atoms": len(system),
                "step_ms": step,
                "rate": 1e3 * len(system) / step,
                "ns_per_day": options.timestep_fs * 86.4 / step,
                "error": rms(forces - labels),
                "apart": rms(forces - first),
            }
            result["rows"].append(row)
            print(TABLE.text(row), flush=True)
    text = json.dumps(result, indent=1) + "\n"
    target = options.out.with_name
    write_atomically(target(f"{options.out.name}.json"), text)
    write_atomically(target(f"{options.out.name}.png"), picture(result).savefig)


if __name__ == "__main__":
    run_script(main)
