"""A checkpoint of your own: how well does it keep the energy of a molecule?

python examples/04_own_checkpoint.py aceff-1.1.ckpt molecule.xyz --charge 0

Takes what TorchMD-Net and MatGL write, and mdgraph's own files. Relaxes the molecule, warms
it, runs at constant energy, and prints the drift. The picture, energy.png, shows the total
energy: it should wander about a line and not climb.
"""

import argparse

import ase.io
import numpy as np
from ase import units
from ase.build import molecule
from matplotlib.figure import Figure

from mdgraph.drivers.ase import FIRE, Langevin, MDGraphCalculator, VelocityVerlet


def main() -> None:
    parser = argparse.ArgumentParser(description="Energy conservation of a checkpoint.")
    parser.add_argument("checkpoint", help="file or folder of the potential")
    parser.add_argument("structure", nargs="?", help="any file that ASE reads; else ethanol")
    parser.add_argument("--charge", type=float, default=None, help="e, of the whole molecule")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--steps", type=int, default=2000, help="at constant energy, 0.5 fs each")
    arguments = parser.parse_args()

    given = arguments.structure
    atoms = ase.io.read(given) if given else molecule("CH3CH2OH")
    atoms.calc = MDGraphCalculator(arguments.checkpoint, charge=arguments.charge)
    FIRE(atoms).run(fmax=0.02, steps=300)

    # From rest, strongly coupled, so that the molecule is warm within tens of fs.
    bath = {"temperature_K": arguments.temperature, "friction": 1 / (20 * units.fs)}
    Langevin(atoms, 0.5 * units.fs, **bath, seed=1).run(arguments.steps // 4)

    energies = []
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs, trajectory="molecule.traj", loginterval=20)
    dynamics.attach(
        lambda: energies.append((dynamics.get_time() / units.fs, atoms.get_total_energy())),
        interval=5,
    )
    dynamics.run(arguments.steps)

    time, total = np.array(energies).T
    milli = 1e3 * (total - total[0]) / len(atoms)
    slope = np.polyfit(time / 1000, milli, 1)[0]
    print(f"{atoms.symbols}: drift {slope:+.3g} meV an atom and ps, noise {milli.std():.3g} meV")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(time, milli)
    axes.set(xlabel="time, fs", ylabel="total energy an atom, meV", title=str(atoms.symbols))
    figure.savefig("energy.png", dpi=150)


if __name__ == "__main__":
    main()
