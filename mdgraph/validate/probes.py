"""Energies between and beyond frames: bonds pulled apart, atoms moved, a hydrogen transferred.

A potential that fits frames of dynamics may have wrong energies between them, and hot dynamics
reaches such places. No reference energies are needed to see it: a bond takes some eV to break, and
a stiff direction leads uphill.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from ase import Atoms
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.errors import InputError
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.train.losses import displacements, draw, misses

HYDROGEN: Final = 1

DEEP: Final = 0.3
"""eV, a drop along a stretched bond that counts: at 600 K a trap of that depth holds for
picoseconds."""

Evaluate = Callable[[Sequence[System], str], list[EvaluationResult]]
"""Returns the results of structures in their order; errors call the structures by the name."""


def evaluate_with(potential: Any, device: torch.device, precision: str = "mixed") -> Evaluate:
    """A function that evaluates structures in batches.

    Args:
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
        precision: see `mdgraph.precision`.
    """
    rounding = precision_named(precision)
    batches = Batches(as_evaluator(potential, rounding, device, "auto"), device, rounding)

    def results(systems: Sequence[System], name: str) -> list[EvaluationResult]:
        by_place = dict(batches.evaluate(systems, [name] * len(systems)))
        return [by_place[place] for place in range(len(systems))]

    return results


def bonds_to_hydrogen(system: System, element: int) -> list[tuple[int, int]]:
    """Hydrogens whose nearest heavy atom is of an element, with that atom; ignores the cell."""
    bonds = []
    heavy = np.flatnonzero(system.numbers != HYDROGEN)
    for hydrogen in np.flatnonzero(system.numbers == HYDROGEN):
        distance = np.linalg.norm(system.positions[hydrogen] - system.positions[heavy], axis=1)
        nearest = heavy[distance.argmin()]
        if system.numbers[nearest] == element:
            bonds.append((int(hydrogen), int(nearest)))
    return bonds


def stretched_copies(system: System, lengths: NDArray[np.float64], element: int) -> list[System]:
    """Copies in which one such bond at a time has each of the lengths (A)."""
    copies = []
    for hydrogen, heavy in bonds_to_hydrogen(system, element):
        bond = system.positions[hydrogen] - system.positions[heavy]
        for length in lengths:
            positions = system.positions.copy()
            positions[hydrogen] = system.positions[heavy] + length * bond / np.linalg.norm(bond)
            copies.append(system.replace(positions=positions))
    return copies


def bond_curves(
    systems: Sequence[System], lengths: NDArray[np.float64], element: int, evaluate: Evaluate
) -> NDArray[np.float64]:
    """(bonds, lengths) eV above the lowest point of each bond, for all structures in turn."""
    copies = [copy for system in systems for copy in stretched_copies(system, lengths, element)]
    energies = np.array([result.energy for result in evaluate(copies, "stretched")])
    rows = energies.reshape(-1, len(lengths))
    return np.asarray(rows - rows.min(axis=1, keepdims=True))


def falls(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """(bonds, lengths) eV below the highest energy between the lowest point and each length."""
    after = np.arange(curves.shape[1]) >= curves.argmin(axis=1)[:, None]
    highest = np.maximum.accumulate(np.where(after, curves, 0.0), axis=1)
    return np.where(after, highest - curves, 0.0)


def perturbation_misses(
    systems: Sequence[System],
    evaluate: Evaluate,
    *,
    seed: int,
    max_displacement: float,
    well_depth: float,
) -> tuple[Tensor, Tensor]:
    """(M,) float64 eV twice: by how much randomly perturbed frames lie too low, and too high.

    They are perturbed and judged as by the loss of a training (`mdgraph.train.losses`), but with
    neighbor lists of their own.

    Args:
        systems: M frames of two atoms or more.
        evaluate: see `evaluate_with`.
        seed: of the displacements.
        max_displacement: A, of an atom.
        well_depth: eV, of the Morse curves between which energies should lie.
    """
    most = max(map(len, systems))
    positions, forces = torch.zeros(2, len(systems), most, 3, dtype=torch.float64)
    rest = evaluate(systems, "frame")
    for place, (system, result) in enumerate(zip(systems, rest, strict=True)):
        positions[place, : len(system)] = torch.tensor(system.positions)
        forces[place, : len(system)] = torch.tensor(np.array(result.forces))

    def energy_of(displacement: Tensor) -> Tensor:
        copies = [
            system.replace(positions=system.positions + own[: len(system)].numpy())
            for system, own in zip(systems, displacement, strict=True)
        ]
        return _energies(evaluate(copies, "displaced"))

    atoms = torch.tensor([len(system) for system in systems])
    numbers = torch.from_numpy(draw(seed, 0, len(systems), most))
    displacement = displacements(numbers, positions, atoms, max_displacement)
    return misses(energy_of, _energies(rest), forces, displacement, well_depth)


def _energies(results: Sequence[EvaluationResult]) -> Tensor:
    """(M,) eV."""
    return torch.tensor([result.energy for result in results], dtype=torch.float64)


@dataclass(frozen=True)
class TransferBand:
    """Energies along the path of a hydrogen from one oxygen to the other.

    Attributes:
        difference: eV, the last end above the first.
        barrier: eV, the highest image above the first end.
        converged: whether forces on the band fell below 0.02 eV/A.
    """

    difference: float
    barrier: float
    converged: bool


def transfer_band(molecule: Atoms, potential: str, images: int) -> TransferBand:
    """Climbing nudged elastic band (DOI 10.1063/1.1329672), in double precision on a CPU.

    Both ends are relaxed first; the second one has the hydrogen on the other oxygen.

    Args:
        molecule: with two oxygens and a hydrogen between them, in vacuum.
        potential: path or shipped name.
        images: between the two ends.

    Raises:
        InputError: the molecule has not two oxygens.
    """
    calculator = MDGraphCalculator(potential, device="cpu", precision="double")
    start = Atoms(molecule.numbers, molecule.positions, calculator=calculator)
    BFGS(start, logfile=None).run(fmax=0.005, steps=300)
    end = _with_hydrogen_on_other_oxygen(start)
    end.calc = calculator
    BFGS(end, logfile=None).run(fmax=0.005, steps=300)
    path = [start, *(start.copy() for _ in range(images)), end]
    for image in path:
        image.calc = calculator
    band = NEB(path, climb=True, method="improvedtangent", allow_shared_calculator=True)
    band.interpolate("idpp")
    converged = FIRE(band, logfile=None).run(fmax=0.02, steps=300)
    energies = np.array([image.get_potential_energy() for image in path])
    difference, barrier = energies[-1] - energies[0], energies.max() - energies[0]
    return TransferBand(float(difference), float(barrier), bool(converged))


def _with_hydrogen_on_other_oxygen(atoms: Atoms) -> Atoms:
    """The molecule with the hydrogen between two oxygens mirrored onto the farther one."""
    hydrogens, oxygens = (np.flatnonzero(atoms.numbers == number) for number in (HYDROGEN, 8))
    if len(oxygens) != 2:
        raise InputError("The molecule has not two oxygens; give one that has.")
    distances = np.array([atoms.get_distances(hydrogen, oxygens) for hydrogen in hydrogens])
    hydrogen = hydrogens[distances.sum(axis=1).argmin()]
    near, far = oxygens[np.argsort(atoms.get_distances(hydrogen, oxygens))]
    after = atoms.copy()
    along = atoms.positions[near] - atoms.positions[far]
    length = atoms.get_distance(hydrogen, near)
    towards = atoms.positions[hydrogen] - atoms.positions[near]
    axis = along / np.linalg.norm(along)
    mirror = towards - 2 * (towards @ axis) * axis
    after.positions[hydrogen] = atoms.positions[far] + mirror * length / np.linalg.norm(mirror)
    return after
