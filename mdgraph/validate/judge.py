"""GFN2-xTB, an independent method, as judge of energies of molecules."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import evenly_spaced
from mdgraph.data.keys import ENERGY, LENGTH
from mdgraph.errors import InputError
from mdgraph.system import System
from mdgraph.validate.verdicts import Check, Verdict

Judge = Callable[[Sequence[System]], NDArray[np.float64]]
"""Returns energies (M,) eV of molecules; NaN where it has none."""

JUDGE_NAME: Final = "GFN2-xTB"

JUDGE_ERROR: Final = 0.15
JUDGE_SHARE: Final = 0.5
"""A judge may miss labels by the larger of 0.15 eV RMS and half of their spread: beyond, it could
not tell a hole of 0.3 eV from its own errors. It misses those of 3BPA at 300 K by 0.05 eV."""

Wall = tuple[float, float, float]
"""eV or eV an atom, and a share of the judge's energy, by whose larger one an energy may differ
from it, and the energy of the judge up to which that counts."""

JUDGED_FRAMES: Final = 10
"""Labelled frames on which the judge itself is checked."""


def far_from(
    judged: NDArray[np.float64], energies: NDArray[np.float64], wall: Wall
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which energies (M,) are far from the judge's, and by how much; NaN of it is far from none."""
    least, share, up_to = wall
    with np.errstate(invalid="ignore"):
        apart = np.where(judged < up_to, np.abs(energies - judged), 0.0)
        return apart > np.maximum(least, share * np.abs(judged)), apart


def farthest_of(
    far: NDArray[np.bool_],
    apart: NDArray[np.float64],
    energies: NDArray[np.float64],
    judged: NDArray[np.float64],
) -> tuple[int, str]:
    """Place of the farthest among those that are far, and its side of the judge in a word."""
    place = int(np.argmax(np.where(far, apart, 0.0)))
    return place, "above" if energies[place] > judged[place] else "below"


def gfn2() -> Judge:
    """GFN2-xTB (DOI 10.1021/acs.jctc.8b01176) by tblite, of closed shells where charges allow.

    A structure that is periodic, has an element heavier than radon, or whose charges do not
    converge has no energy.

    Raises:
        InputError: tblite is not installed.
    """
    try:
        from tblite.interface import Calculator
    except ImportError as error:
        raise InputError(
            "The judge gfn2 needs the package tblite; install it by pip install "
            "'mdgraph[validate]', or give --judge none."
        ) from error

    def energy(system: System) -> float:
        if system.pbc.any() or system.numbers.max() > 86:
            return np.nan
        charge = system.charge or 0.0
        electrons = int(system.numbers.sum() - round(charge))
        try:
            calculator = Calculator(
                "GFN2-xTB", system.numbers, system.positions / LENGTH["bohr"], charge, electrons % 2
            )
            calculator.set("verbosity", 0)
            return float(calculator.singlepoint().get("energy")) * ENERGY["hartree"]
        except RuntimeError:
            return np.nan

    def energies(systems: Sequence[System]) -> NDArray[np.float64]:
        workers = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
        with ThreadPoolExecutor(workers, initializer=_use_one_thread) as pool:
            return np.array(list(pool.map(energy, systems)))

    return energies


def _use_one_thread() -> None:
    """Of OpenMP in the calling thread: structures run side by side, and threads would wait."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(1)


def judge_check(
    systems: Sequence[System], labels: NDArray[np.float64], judge: Judge
) -> Check | None:
    """How well a judge knows the labels of molecules; a look if too badly to judge.

    Energies are compared within each composition, less their means.

    Args:
        systems: labelled molecules, of which up to 10 are looked at, evenly spaced.
        labels: (M,) eV.
        judge: see `Judge`.

    Returns:
        None where no composition has two labelled frames.
    """
    if not systems:
        return None
    chosen = np.array(evenly_spaced(range(len(systems)), JUDGED_FRAMES))
    energies = judge([systems[place] for place in chosen])
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, place in enumerate(chosen):
        if np.isfinite(energies[row]) and np.isfinite(labels[place]):
            groups.setdefault(tuple(sorted(systems[place].numbers.tolist())), []).append(row)
    both = [(labels[chosen[rows]], energies[rows]) for rows in groups.values() if len(rows) > 1]
    if not both:
        return None
    error, spread = (
        float(np.sqrt(np.mean(np.concatenate([values - values.mean() for values in parts]) ** 2)))
        for parts in ([label - other for label, other in both], [label for label, _ in both])
    )
    numbers = {"frames": sum(len(label) for label, _ in both), "rmse_eV": round(error, 4)}
    text = f"{JUDGE_NAME} misses the labels by {1e3 * error:.0f} meV, which spread by "
    text += f"{1e3 * spread:.0f} meV"
    name = f"judge {JUDGE_NAME}"
    if error > max(JUDGE_ERROR, JUDGE_SHARE * spread):
        return Check(name, Verdict.LOOK, f"{text}; it judges nothing here.", numbers)
    return Check(name, Verdict.OK, f"{text}.", numbers)
