"""Thermal expansion of a metal at constant pressure.

python examples/05_metal_npt.py copper-pbe
python examples/05_metal_npt.py TensorNet-MatPES-PBE-v2025.1-PES --element W

Finds the lattice constant at rest, then its mean at a temperature and no pressure, and
prints the expansion. The picture, lattice.png, shows whether the mean has settled.
"""

import argparse

import numpy as np
from ase import units
from ase.build import bulk
from ase.filters import FrechetCellFilter
from matplotlib.figure import Figure

from mdgraph.drivers.ase import FIRE, Langevin, MDGraphCalculator, StochasticCellRescaling


def main() -> None:
    parser = argparse.ArgumentParser(description="Thermal expansion of a cubic metal.")
    parser.add_argument("potential", help="shipped name, file or folder")
    parser.add_argument("--element", default="Cu", help="a cubic metal")
    parser.add_argument("--cells", type=int, default=4, help="cubic cells along each axis")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--steps", type=int, default=5000, help="at constant pressure, 2 fs each")
    arguments = parser.parse_args()

    atoms = bulk(arguments.element, cubic=True)
    calculator = MDGraphCalculator(arguments.potential)
    atoms.calc = calculator
    # One cell suffices for the perfect lattice, which keeps its shape.
    FIRE(FrechetCellFilter(atoms, hydrostatic_strain=True), smax=1e-5).run(fmax=0.001, steps=200)
    at_rest = atoms.cell.lengths()[0]

    atoms = atoms.repeat(arguments.cells)
    atoms.calc = calculator
    # A crystal at rest needs noise to begin to move.
    warm = {"temperature_K": arguments.temperature, "friction": 1 / (100 * units.fs)}
    Langevin(atoms, 2 * units.fs, **warm, seed=1).run(arguments.steps // 10)
    dynamics = StochasticCellRescaling(
        atoms,
        timestep=2 * units.fs,
        temperature_K=arguments.temperature,
        pressure_au=0.0,
        taut=100 * units.fs,
        taup=500 * units.fs,
        # Of copper. Another value changes how fast the volume moves, not where it goes.
        compressibility_au=1 / (140 * units.GPa),
        seed=1,
    )
    lattice = []

    def record() -> None:
        constant = atoms.cell.lengths()[0] / arguments.cells
        lattice.append((dynamics.get_time() / units.fs, constant))

    dynamics.attach(record, interval=10)
    dynamics.run(arguments.steps)

    time, constants = np.array(lattice).T
    mean = constants[len(constants) // 5 :].mean()  # the first fifth is left to settle
    linear = (mean / at_rest - 1.0) / arguments.temperature
    print(f"{arguments.element}: {at_rest:.4f} A at rest, {mean:.4f} A at")
    print(
        f"{arguments.temperature:g} K; linear expansion {1e6 * linear:.1f} x 10^-6 1/K on average"
    )
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(time / 1000, constants)
    axes.axhline(mean, linestyle="--", color="grey")
    axes.set(xlabel="time, ps", ylabel="lattice constant, A", title=arguments.element)
    figure.savefig("lattice.png", dpi=150)


if __name__ == "__main__":
    main()
