"""Labels of the level itself for molecules with atoms moved, which those that ship learned last.

    python benchmarks/moved_labels.py draw ethanol ethanol.h5 ethanol.json rest.xyz moved.xyz
    python benchmarks/moved_labels.py label moved.xyz moved.extxyz --grid 2
    python benchmarks/moved_labels.py add set.h5 split.json moved.extxyz --copies 8 --weight 2.5

`draw` moves atoms of training frames and of the molecule at rest, and begins with some training
frames as they are. Ethanol: one hydrogen at 0.65 to 1.9 times its bond (2.2 from rest, with the
others at 0.85 to 1.15), two at 0.75 to 1.6, C-C and C-O at 0.78 to 1.6; O-H is drawn 2.5 times as
often as another. Aspirin: sides turned about the bonds of both groups by any angle, angles by up to
32 degrees, bonds at 0.75 to 1.6, where `--potential` has 0.2 to 6 eV above rest.
`turned`, of any molecule: sides turned about two or more bonds at once by any angles, of the
molecule at rest and of training frames, where `--potential` has 0.3 to 4 eV above rest.

`label` writes energies and forces of PBE/def2-SVP by density fitting, closed shells, from PySCF
(`pip install pyscf`), of these frames or of structures that `mdgraph validate --write-structures`
wrote, with `--d3` and D3(BJ) where the data have it; what does not converge is left out. Five
seconds a frame of ethanol, 25 of acetylacetone and 50 of aspirin (--grid 1) on one core.

`add` writes the data set SET-moved.h5 and its split: the frames of SET, such as that of a round of
a distillation, and those that were moved, nine in ten of them for training. Energies are shifted by
the mean difference on the frames that were left as they are, less than 4 meV, and frames more than
10 eV above the lowest are left out.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import ase.io
import numpy as np
import torch
from added_labels import molecule_of, solved, write_split_with
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import covalent_radii
from cases import run_script
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame, Provenance, open_dataset, read_split, write_dataset
from mdgraph.distil.sampling import turn_several
from mdgraph.errors import InputError
from mdgraph.models.d3 import D3Potential, d3_config
from mdgraph.system import System
from mdgraph.validate.molecule_checks import MoleculeProbe
from mdgraph.validate.scans import Molecule, rotated

Array = NDArray[np.float64]

HIGHEST: Final = 10.0
"""eV above the lowest; labels of closed shells mean nothing beyond."""
PUBLISHED: Final = "published"
"""Kind of the frames that were left as they are."""
HELD_OUT: Final = 10
"""One moved frame in so many is not trained on."""


def draw(options: argparse.Namespace) -> None:
    """Writes training frames as they are, then frames with atoms moved."""
    with open_dataset(options.data) as dataset:
        split = read_split(options.split, dataset)
        train = [frame.positions for frame in dataset.frames(split.train)]
        known = list(dataset.frames(split.train[:: len(split.train) // options.published]))
    rest: Any = ase.io.read(options.rest)
    written = []
    for frame in known[: options.published]:
        atoms = Atoms(frame.numbers, frame.positions)
        atoms.info |= {"kind": PUBLISHED, "published_eV": frame.energy}
        written.append(atoms)
    random = np.random.default_rng(options.seed)
    moved = DRAWN[options.molecule]
    for kind, positions in moved(random, rest, train, options):
        atoms = Atoms(rest.numbers, positions)
        atoms.info["kind"] = kind
        written.append(atoms)
    ase.io.write(options.moved, written, format="extxyz")
    print(f"{options.moved}: {len(written)} frames")


# Ethanol: C of CH2, C of CH3, O and six hydrogens

ETHANOL_BONDS: Final = ((0, 3), (0, 4), (1, 5), (1, 6), (1, 7), (2, 8))
O_H: Final = 2.5
NEAREST: Final = 0.58
NEAREST_HYDROGENS: Final = 0.9
"""Of the sum of two covalent radii, and A: no two atoms are nearer."""


def ethanol(
    random: np.random.Generator, rest: Atoms, train: Sequence[Array], options: argparse.Namespace
) -> Iterator[tuple[str, Array]]:
    """Kinds and positions (9, 3), A."""
    shares = np.ones(6)
    shares[-1] = O_H
    shares /= shares.sum()
    for kind in "AAAADDDBBC" * (options.frames // 10):
        while True:
            if kind == "D":
                positions = rest.positions + random.normal(scale=0.03, size=(9, 3))
                far = random.choice(6, p=shares)
                for place, bond in enumerate(ETHANOL_BONDS):
                    wide = random.uniform(0.65, 2.2) if place == far else random.uniform(0.85, 1.15)
                    _stretch(positions, bond, [bond[1]], wide)
            else:
                positions = train[int(random.integers(len(train)))].copy()
                _stretch_thermal(random, positions, kind, shares)
            if _apart(positions, rest):
                break
        yield (
            {"A": "hydrogen", "B": "two hydrogens", "C": "heavy", "D": "from rest"}[kind],
            positions,
        )


def _stretch_thermal(
    random: np.random.Generator, positions: Array, kind: str, shares: Array
) -> None:
    """Stretches bonds of a training frame in place."""
    if kind == "A":
        bond = ETHANOL_BONDS[random.choice(6, p=shares)]
        _stretch(positions, bond, [bond[1]], random.uniform(0.65, 1.9))
    elif kind == "B":
        for place in random.choice(6, 2, replace=False, p=shares):
            bond = ETHANOL_BONDS[place]
            _stretch(positions, bond, [bond[1]], random.uniform(0.75, 1.6))
    else:
        parts = {(0, 1): [1, 5, 6, 7], (0, 2): [2, 8]}
        for bond in (((0, 1),), ((0, 2),), ((0, 1), (0, 2)))[random.integers(3)]:
            _stretch(positions, bond, parts[bond], random.uniform(0.78, 1.6))
        if random.random() < 0.4:
            bond = ETHANOL_BONDS[random.choice(6, p=shares)]
            _stretch(positions, bond, [bond[1]], random.uniform(0.75, 1.6))


def _stretch(positions: Array, bond: tuple[int, int], part: list[int], factor: float) -> None:
    way = positions[bond[1]] - positions[bond[0]]
    positions[part] += (factor - 1.0) * way


def _apart(positions: Array, rest: Atoms) -> bool:
    radii = covalent_radii[rest.numbers]
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)
    both = (rest.numbers[:, None] == 1) & (rest.numbers == 1)
    least = np.where(both, NEAREST_HYDROGENS, NEAREST * (radii[:, None] + radii))
    return bool((distances >= least)[~np.eye(len(rest), dtype=bool)].all())


# Aspirin

TURNED: Final = ((6, 12), (12, 11), (5, 10), (10, 9))
TURNED_SHARES: Final = (0.6, 0.25, 0.1, 0.05)
"""Bonds of the ester and of the acid, and how often sides are turned about each."""
STEPS: Final = (22, -22, 36, 110, 128, -118, -100, 10)
"""Degrees, of turns about the first bond from rest, which come first."""


def aspirin(
    random: np.random.Generator, rest: Atoms, train: Sequence[Array], options: argparse.Namespace
) -> Iterator[tuple[str, Array]]:
    """Kinds and positions (21, 3), A, of energies within limits by the potential of the options."""
    molecule = Molecule(System(rest.numbers, rest.positions))
    probe = MoleculeProbe(options.potential or "aspirin-pbe", torch.device("cpu"))
    lowest = probe.evaluate([molecule.system], "rest")[0].energy
    for degrees in STEPS:
        turned = _turned(molecule, rest.positions, TURNED[0], degrees)
        yield "turned", turned + random.normal(scale=0.01, size=(21, 3))
    for kind in "TTTTSTTTBT" * (options.frames // 10):
        while True:
            at_rest = random.random() < (0.6 if kind == "T" else 0.5)
            if at_rest:
                start = rest.positions + random.normal(scale=0.02, size=(21, 3))
            else:
                start = train[int(random.integers(len(train)))]
            if kind == "T":
                bond = TURNED[random.choice(4, p=TURNED_SHARES)]
                positions = _turned(molecule, start, bond, random.uniform(0, 360))
                low, high = 0.5, 4.5
            elif kind == "B":
                positions, low, high = _bent(random, molecule, start), 0.2, 4.0
            else:
                first, second = molecule.bonds[random.integers(len(molecule.bonds))]
                share = 0.5 * molecule.shares(first, second)[:, None]
                way = start[second] - start[first]
                positions = start + (random.uniform(0.75, 1.6) - 1.0) * share * way
                low, high = 0.2, 6.0
            above = probe.evaluate([System(rest.numbers, positions)], "moved")[0].energy - lowest
            if low < above < high and _apart(positions, rest):
                break
        yield {"T": "turned", "B": "bent", "S": "stretched"}[kind], positions


def _turned(molecule: Molecule, positions: Array, bond: tuple[int, int], degrees: float) -> Array:
    """The smaller side of a bond turned about it."""
    first, second = max(bond, bond[::-1], key=lambda ends: -len(molecule.side(*ends)))
    part, axis = molecule.side(first, second), positions[second] - positions[first]
    return rotated(positions, part, positions[second], axis, degrees)


def _bent(random: np.random.Generator, molecule: Molecule, positions: Array) -> Array:
    """An angle changed by up to 32 degrees."""
    while True:
        middle = int(random.integers(len(positions)))
        if len(molecule.neighbors[middle]) < 2:
            continue
        last, first = (int(atom) for atom in random.permutation(molecule.neighbors[middle])[:2])
        if frozenset((middle, last)) in molecule.bridges:
            arms = [positions[atom] - positions[middle] for atom in (first, last)]
            part, degrees = molecule.side(middle, last), random.uniform(-32.0, 32.0)
            return rotated(positions, part, positions[middle], np.cross(*arms), degrees)


# Any molecule

TURNED_ABOVE: Final = 0.3, 4.0
"""eV above rest."""

MOST_ATTEMPTS: Final = 1000
"""For each frame that is drawn."""


def turned_at_once(
    random: np.random.Generator, rest: Atoms, train: Sequence[Array], options: argparse.Namespace
) -> Iterator[tuple[str, Array]]:
    """Kinds and positions (N, 3), A, of sides turned about two or more bonds at once."""
    probe = MoleculeProbe(options.potential, torch.device("cpu"))
    lowest = probe.evaluate([System(rest.numbers, rest.positions)], "rest")[0].energy
    low, high = TURNED_ABOVE
    left, attempts = options.frames, 0
    while left:
        attempts += 1
        if attempts > MOST_ATTEMPTS * options.frames:
            raise SystemExit("Hardly any turned molecule lies within the energies that are drawn.")
        start = train[int(random.integers(len(train)))]
        if random.random() < 0.5:
            start = rest.positions + random.normal(scale=0.02, size=start.shape)
        copy = turn_several(System(rest.numbers, start), random)
        if copy is not None:
            above = probe.evaluate([copy], "turned")[0].energy - lowest
            if low < above < high:
                left -= 1
                yield "turned at once", copy.positions


DRAWN: Final = {"ethanol": ethanol, "aspirin": aspirin, "turned": turned_at_once}


# Labels


def label(options: argparse.Namespace) -> None:
    """Writes frames one by one; goes on after the last that is written."""
    frames = ase.io.read(options.moved, ":")
    written = ase.io.read(options.labelled, ":") if options.labelled.exists() else []
    done = {atoms.info["place"] for atoms in written}
    if any(atoms.info.get("d3", False) != options.d3 for atoms in written):
        raise InputError(
            f"{options.labelled} does not say of all its labels that they were made "
            f"{'with' if options.d3 else 'without'} --d3; label into another file."
        )
    d3 = D3Potential(d3_config("pbe")) if options.d3 else None
    dispersion = None if d3 is None else MoleculeProbe(d3, torch.device("cpu"))
    first, stride = options.every
    for place, atoms in list(enumerate(frames))[first::stride]:
        if place in done:
            continue
        labels = labels_of(atoms, options.grid)
        if labels is not None:
            energy, forces = labels
            if dispersion is not None:
                [more] = dispersion.evaluate([System(atoms.numbers, atoms.positions)], "a frame")
                energy, forces = energy + more.energy, forces + more.forces
            atoms.info |= {"place": place, "d3": options.d3}
            atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
            ase.io.write(options.labelled, atoms, format="extxyz", append=True)
        print(place, len(frames), "left out" if labels is None else energy, flush=True)


def labels_of(atoms: Atoms, grid: int) -> tuple[float, Array] | None:
    """Energy, eV, and forces (N, 3), eV/A, of PBE/def2-SVP; None if they do not converge."""
    from pyscf import dft

    mol = molecule_of(atoms, "def2-svp")
    coarse = dft.RKS(mol, xc="pbe").density_fit()
    coarse.grids.level, coarse.conv_tol = 0, 1e-5
    coarse.kernel()
    field = dft.RKS(mol, xc="pbe").density_fit()
    field.with_df, field.grids.level, field.conv_tol = coarse.with_df, grid, 1e-7
    return solved(field, dm0=coarse.make_rdm1())


def add(options: argparse.Namespace) -> None:
    """Writes the data set of published and moved frames, and its split."""
    target = options.data.with_name(f"{options.data.stem}-moved.h5")
    frames = [frame for path in options.labelled for frame in ase.io.read(path, ":")]
    if len({frame.info["d3"] for frame in frames if "d3" in frame.info}) > 1:
        raise InputError("Some of these labels have D3(BJ) and some have not; give those of one.")
    same = [frame for frame in frames if frame.info["kind"] == PUBLISHED]
    apart = [frame.info["published_eV"] - frame.get_potential_energy() for frame in same]
    shift = float(np.mean(apart))
    moved = [frame for frame in frames if frame.info["kind"] != PUBLISHED]
    lowest = min(frame.get_potential_energy() for frame in moved)
    kept = [frame for frame in moved if frame.get_potential_energy() - lowest < HIGHEST]
    with open_dataset(options.data) as before:
        split, count = read_split(options.split, before), len(before)
        about = Provenance(
            options.labelled[0].name,
            importer="benchmarks/moved_labels.py",
            level_of_theory=before.sources[0].level_of_theory,
            licence="CC0-1.0",
        )
        parts = [
            (before.frames(np.flatnonzero(before.source == number)), source)
            for number, source in enumerate(before.sources)
        ]
        trained, held_out = _frames(kept, shift, options)
        write_dataset(target, [*parts, (iter([*trained, *held_out]), about)])
    how = "that of the data, and one in ten of those that were moved held out"
    write_split_with(target, split, count, len(trained), how)
    print(
        f"{target}: {count} frames and {len(kept)} that were moved of {len(moved)}, "
        f"{len(held_out)} of them held out; shifted by {1e3 * shift:.2f} meV, which {len(same)} "
        f"frames have within {1e3 * float(np.ptp(apart)):.2f}"
    )


def _frames(
    moved: Sequence[Atoms], shift: float, options: argparse.Namespace
) -> tuple[list[LabelledFrame], list[LabelledFrame]]:
    """Frames to train on, so many copies of each, and those held out."""
    frames = [_frame(atoms, shift, options.weight) for atoms in moved]
    held_out = frames[HELD_OUT - 1 :: HELD_OUT]
    trained = [frame for place, frame in enumerate(frames) if place % HELD_OUT != HELD_OUT - 1]
    return trained * options.copies, held_out


def _frame(atoms: Any, shift: float, weight: float) -> LabelledFrame:
    return LabelledFrame(
        atoms.numbers,
        atoms.positions,
        energy=atoms.get_potential_energy() + shift,
        forces=atoms.get_forces(),
        group=f"moved, {atoms.info['kind']}",
        weight=weight,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Reads the command line and runs a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("draw")
    part.add_argument("molecule", choices=list(DRAWN))
    part.add_argument("data", type=Path)
    part.add_argument("split", type=Path)
    part.add_argument("rest", type=Path)
    part.add_argument("moved", type=Path)
    part.add_argument("--frames", type=int, default=600)
    part.add_argument("--published", type=int, default=6)
    part.add_argument("--potential", help="tells energies; of aspirin it is aspirin-pbe by default")
    part.add_argument("--seed", type=int, default=5)
    part.set_defaults(run=draw)
    part = parts.add_parser("label")
    part.add_argument("moved", type=Path)
    part.add_argument("labelled", type=Path)
    part.add_argument("--grid", type=int, default=2)
    part.add_argument("--d3", action="store_true")
    part.add_argument("--every", type=int, nargs=2, default=(0, 1), metavar=("FIRST", "STRIDE"))
    part.set_defaults(run=label)
    part = parts.add_parser("add")
    part.add_argument("data", type=Path)
    part.add_argument("split", type=Path)
    part.add_argument("labelled", type=Path, nargs="+")
    part.add_argument("--weight", type=float, default=1.0)
    part.add_argument("--copies", type=int, default=1)
    part.set_defaults(run=add)
    options = parser.parse_args(words)
    if getattr(options, "molecule", "aspirin") == "turned" and options.potential is None:
        parser.error("--potential is needed to draw turned molecules: which one tells energies?")
    options.run(options)


if __name__ == "__main__":
    run_script(main)
