"""Windows of two torsions of alanine dipeptide: options of their run, and a start for each.

python windows.py filling

Takes for each window the frame of a metadynamics run that is nearest to its centre, as a spring
that pulls a molecule over a barrier heats it. Writes windows.yaml and starts.extxyz.
"""

import argparse
import itertools
from pathlib import Path

import ase.io
import numpy as np

from mdgraph.io.structures import read_systems, to_ase

TORSIONS = {"phi": [4, 6, 8, 14], "psi": [6, 8, 14, 16]}
OPTIONS = """\
# mdgraph md starts.extxyz --every-frame --config windows.yaml --out windows
potential: {potential}
replicas: {replicas}
temperature_K: 300
timestep_fs: 2
hydrogen_mass_amu: 3
friction_per_ps: 5
time_ps: {time_ps:g}
variables:
  phi: {{kind: dihedral, atoms: {phi}}}
  psi: {{kind: dihedral, atoms: {psi}}}
biases:
- kind: harmonic
  name: umbrella
  variables: [phi, psi]
  stiffness_eV: {stiffness}
  centre:
{centres}
colvar_interval: 250
trajectory_interval: {steps}
log_interval: {log}
save: positions
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Umbrella windows of two torsions.")
    parser.add_argument("run", type=Path, help="folder of the metadynamics run")
    parser.add_argument("--potential", default="aceff-1.1.ckpt")
    parser.add_argument("--windows", type=int, nargs=2, default=[24, 18], help="of phi and psi")
    # Where the free energy bends down by more than a spring holds, a window would have two halves.
    parser.add_argument("--stiffness", type=float, nargs=2, default=[1.6, 0.8], help="eV/rad^2")
    parser.add_argument("--time-ps", type=float, default=300.0)
    arguments = parser.parse_args()

    frames = [
        to_ase(system)
        for path in sorted(arguments.run.glob("**/trajectory.h5md"))
        for system in read_systems(path)
    ]
    angles = np.array([[one.get_dihedral(*atoms) for atoms in TORSIONS.values()] for one in frames])
    axes = [
        [round(-180 + 360 / count * number, 3) for number in range(count)]
        for count in arguments.windows
    ]
    starts, far = [], 0.0
    centres = list(itertools.product(*axes))
    for centre in centres:
        turns = np.linalg.norm((angles - centre + 180) % 360 - 180, axis=1)
        starts.append(frames[int(turns.argmin())])
        far = max(far, float(turns.min()))
    for start in starts:
        start.set_velocities(np.zeros((len(start), 3)))  # new ones are drawn
    ase.io.write("starts.extxyz", starts)
    steps = round(500 * arguments.time_ps)
    text = OPTIONS.format(
        potential=arguments.potential,
        replicas=len(centres),
        time_ps=arguments.time_ps,
        **TORSIONS,
        stiffness=arguments.stiffness,
        centres="\n".join(f"  - [{phi:g}deg, {psi:g}deg]" for phi, psi in centres),
        steps=steps,
        log=min(5000, steps),
    )
    Path("windows.yaml").write_text(text, encoding="utf-8")
    print(f"{len(centres)} windows; the farthest start is {far:.0f} degrees from its centre")


if __name__ == "__main__":
    main()
