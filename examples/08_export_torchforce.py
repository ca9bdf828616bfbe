"""Exports a potential for OpenMM-Torch, and checks the module against the engine.

python examples/08_export_torchforce.py

The file is what `openmmtorch.TorchForce("water.pt")` reads in the one set of releases that
docs/drivers.md names; with OpenMM 8.5 or later take examples 02 or 03. Here the module is
called as TorchForce calls it, with positions and box in nm. The number at the end is how far
its energy lies from the engine's; at 300 K, kT is 2.5 kJ/mol.
"""

import argparse
import warnings
from pathlib import Path

import ase.io
import torch
from ase import units

from mdgraph import load
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.drivers.torchforce import export_torchforce
from mdgraph.io.structures import from_ase

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Exports a potential for TorchForce.")
    parser.add_argument("--potential", default="water-pbe0", help="path or shipped name")
    parser.add_argument("--structure", type=Path, default=WATER, help="any file that ASE reads")
    parser.add_argument("--out", type=Path, default=Path("water.pt"), help="must not exist")
    arguments = parser.parse_args()

    atoms = ase.io.read(arguments.structure)
    # The module holds these atoms in this order, which must be OpenMM's.
    export_torchforce(load(arguments.potential), from_ase(atoms), arguments.out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, of TorchScript itself
        module = torch.jit.load(arguments.out)
    places = [torch.tensor(atoms.positions / 10.0)]
    if atoms.pbc.any():
        places.append(torch.tensor(atoms.cell.array / 10.0))
    exported = float(module(*places))

    atoms.calc = MDGraphCalculator(arguments.potential)
    engine = atoms.get_potential_energy() / (units.kJ / units.mol)
    print(f"module {exported:.3f} kJ/mol, engine {engine:.3f} kJ/mol")
    print(f"difference: {abs(exported - engine):.4f} kJ/mol")


if __name__ == "__main__":
    main()
