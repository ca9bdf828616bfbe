"""Structure and diffusion of the shipped water, with error bars, against its training frames.

    python benchmarks/liquid.py [--starts 5] [--ps 100] [--frames train.extxyz.gz] [--picture FILE]

All starts advance as one batch, each with velocities and a bath of its own (stochastic
velocity rescaling). After the warm-up g_OO is counted on the device, up to the cutoff of the
potential, in blocks; its standard error is the larger of those from the scatter of all
blocks and from that of the starts. Training frames come from `metrics.json` of the potential,
without errors, or from --frames, where the scatter of groups of frames makes them: too small
ones, as frames that follow each other in time count as independent.

Then the bath goes, and the oxygens' mean squared displacement is recorded at constant energy,
one run a start: D is a sixth of its slope between two lags, in a box of this size (no
correction). With --ase ASE's velocity Verlet runs from the same starts, with mdgraph as its
calculator.

With --state what is known is kept in a file, after g_OO, after the runs at constant energy and
after each run of ASE, and a command that was stopped goes on after the last of them. Give the
same options each time; --ase may come later.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cases import device_argument, hardware, run_script
from diffusion import ase_diffusion, diffusion
from distributions import distances, mean_and_error, simulated, trained
from kept_parts import Parts
from liquid_text import draw, text
from shipped_water import POTENTIAL, box

from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.precision import PRECISIONS


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Everything measured."""
    parts = Parts(options)
    training, training_error = trained(options)
    found = parts.get("g_OO", lambda: simulated(options))
    value, error = mean_and_error(np.array(found["blocks"]))
    ends = [
        box(options).replace(positions=positions, velocities=velocities)
        for positions, velocities in zip(found["positions"], found["velocities"], strict=True)
    ]
    free = parts.get("constant energy", lambda: diffusion(ends, options))
    by_ase = []
    if options.ase:
        calculator = MDGraphCalculator(
            POTENTIAL, device=str(options.device), precision=options.precision, check=False
        )
        for number, end in enumerate(ends):
            run = partial(ase_diffusion, end, calculator, options)
            by_ase.append(parts.get(f"ASE {number}", run))
    return {
        "hardware": hardware(options.device),
        "precision": options.precision,
        "atoms": len(ends[0]),
        "starts": options.starts,
        "blocks": options.blocks,
        "ps": options.ps,
        "temperature_K": options.temperature,
        "distance_A": distances().tolist(),
        "g_OO": value.tolist(),
        "g_OO_error": error.tolist(),
        "training": training.tolist(),
        "training_error": training_error.tolist(),
        "diffusion_1e-5_cm2_per_s": free["diffusion"],
        "nve_temperature_K": free["kelvin"],
        "ase_diffusion_1e-5_cm2_per_s": by_ase,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--repeat", type=int, nargs=3, default=[1, 1, 1], help="of 64 molecules")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--bath-ps", type=float, default=10.0, help="of warm-up")
    parser.add_argument("--ps", type=float, default=100.0, help="of each start, for g_OO")
    parser.add_argument("--blocks", type=int, default=10, help="of each start")
    parser.add_argument("--every", type=int, default=20, help="steps from one sample to the next")
    parser.add_argument("--nve-ps", type=float, default=50.0, help="of each start, for D")
    parser.add_argument("--window-ps", type=float, default=10.0, help="longest lag")
    parser.add_argument("--lags", type=int, default=100, help="up to it")
    parser.add_argument("--fit", type=float, nargs=2, default=[0.2, 0.9], help="shares of it")
    parser.add_argument("--frames", type=Path, help="training frames, else metrics.json")
    parser.add_argument("--ase", action="store_true", help="diffusion by ASE too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--state", type=Path, help="where it goes on")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = arguments()
    found = report(options)
    if options.picture is not None:
        draw(found, options.picture)
    print(json.dumps(found) if options.json else text(found))


if __name__ == "__main__":
    run_script(main)
