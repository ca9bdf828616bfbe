"""How two maps of free energy agree, bin by bin, from the lowest value up to some kT.

python compare.py map-metadynamics map-windows
python compare.py map-metadynamics map-unbiased --phi-below 0

Reads `free_energy.csv` of both folders, takes p as normalised over the bins that both know, and
tells the RMS of the difference and how many bins differ by more than two errors of it.
"""

import argparse
from pathlib import Path

import numpy as np

KT = 0.0083144626 * 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Differences of two maps of free energy.")
    parser.add_argument("folders", type=Path, nargs=2, help="of mdgraph free-energy --out")
    parser.add_argument("--phi-below", type=float, default=np.inf, help="rad, bins to compare")
    parser.add_argument("--levels", type=float, nargs="+", default=[4.0, 8.0, 12.0], help="kT")
    arguments = parser.parse_args()

    maps = [
        np.genfromtxt(folder / "free_energy.csv", delimiter=",", names=True)
        for folder in arguments.folders
    ]
    values = np.stack([one["free_energy_kJ_per_mol"] for one in maps])
    errors = np.stack([one["error_kJ_per_mol"] for one in maps])
    known = np.isfinite(values).all(0) & np.isfinite(errors).all(0)
    known &= maps[0]["phi_rad"] < arguments.phi_below
    values += KT * np.log(np.exp(-values[:, known] / KT).sum(1, keepdims=True))
    difference, error = values[0] - values[1], np.hypot(*errors)
    mean = values.mean(0)
    mean -= mean[known].min()
    for level in arguments.levels:
        low = known & (mean < level * KT)
        rms = np.sqrt(np.mean(difference[low] ** 2))
        beyond = np.abs(difference[low]) > 2.0 * error[low]
        scaled = np.sqrt(np.mean((difference[low] / error[low]) ** 2))
        print(
            f"below {level:g} kT: {rms:.2f} kJ/mol, {rms / KT:.2f} kT, in errors {scaled:.2f}; "
            f"{beyond.sum()} of {low.sum()} bins differ by more than two errors"
        )


if __name__ == "__main__":
    main()
