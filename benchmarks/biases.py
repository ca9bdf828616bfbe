"""Times what biases add to a step: microseconds, beside what their tensors without kernels add.

    python benchmarks/biases.py [--atoms 24 648 3000] [--replicas 1] [--device cuda]

Steps of velocity Verlet of the atoms of water, without any forces but those of the bias; the cell
is periodic with right angles. What is shown is the time of a step less that of one without biases,
each from graphs of 32 steps, the median of five means over many replays. Hills are added every 500
steps; "every step" adds one in each.
"""

import argparse

import numpy as np
import torch
from cases import Table, conditions, device_argument, print_heading, print_row, run_script, water
from integrators import Nothing, microseconds, steps

from mdgraph.biases import (
    Bias,
    CollectiveVariable,
    Dihedral,
    Distance,
    HarmonicBias,
    Metadynamics,
)
from mdgraph.engine import Calculation, VelocityVerlet
from mdgraph.system import System

VARIABLES = {
    "phi": Dihedral([0, 1, 2, 3]),
    "psi": Dihedral([1, 2, 3, 4]),
    "d": Distance([0, 5]),
}
WELL_TEMPERED = {"height": 0.01, "bias_factor": 10.0, "temperature": 300.0}
THREE = {"sigma": 0.5, "minimum": [-np.pi, -np.pi, 0.0], "maximum": [np.pi, np.pi, 20.0]}
CASES: dict[str, tuple[list[str], Bias]] = {
    "spring": (["phi"], HarmonicBias("phi", centre=1.0, stiffness=1.0)),
    "one dihedral": (["phi"], Metadynamics("phi", sigma=0.3, **WELL_TEMPERED)),
    "two": (["phi", "psi"], Metadynamics(["phi", "psi"], sigma=0.3, **WELL_TEMPERED)),
    "three": (
        ["phi", "psi", "d"],
        Metadynamics(["phi", "psi", "d"], points=[26, 26, 81], **THREE, **WELL_TEMPERED),
    ),
    "two, every step": (
        ["phi", "psi"],
        Metadynamics(["phi", "psi"], sigma=0.3, every=1, **WELL_TEMPERED),
    ),
}
TABLE = Table(
    (
        ("atoms", "atoms", ""),
        ("bias", "bias", ""),
        ("us", "microseconds", ".2f"),
        ("tensors us", "tensors", ".1f"),
    ),
    width=16,
)


def growth(
    systems: list[System],
    variables: dict[str, CollectiveVariable],
    bias: Bias | None,
    device: torch.device,
    *,
    by_kernel: bool,
) -> float:
    """Microseconds of a step."""
    biases = [] if bias is None else [bias]
    calculation = Calculation(
        systems,
        Nothing(),
        device=device,
        variables=variables or None,
        biases=biases,
        cell_varies=False,
    )
    calculation.state.degrees.fill_(3.0)
    step, applied = steps(VelocityVerlet(0.5), calculation.state), calculation.biases
    if applied is not None and not by_kernel:
        applied.use_tensors()
    # Captured steps look at the counter on the device; others know their number.
    number = None if device.type == "cuda" else 1

    def both() -> None:
        step()
        if applied is not None:
            applied.add_(calculation.state)
            applied.end_step_(number)

    return microseconds(both, device, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="+", default=[24, 648, 3000])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    common = conditions(options.device, "mixed")
    print_heading(TABLE, common, options.json)
    for atoms in options.atoms:
        box = water(atoms).replace(cell=100.0 * np.eye(3), pbc=np.full(3, True), velocities=None)
        systems = [box] * options.replicas
        plain = growth(systems, {}, None, options.device, by_kernel=False)
        for name, (names, bias) in CASES.items():
            variables = {one: VARIABLES[one] for one in names}
            row = {"atoms": atoms * options.replicas, "bias": name}
            if options.device.type == "cuda":
                took = growth(systems, variables, bias, options.device, by_kernel=True)
                row["microseconds"] = took - plain
            took = growth(systems, variables, bias, options.device, by_kernel=False)
            row["tensors"] = took - plain
            print_row(TABLE, row, common, options.json)


if __name__ == "__main__":
    run_script(main)
