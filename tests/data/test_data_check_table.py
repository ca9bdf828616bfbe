"""What `data check` finds, and what it never refuses: published sets and toys, sound or spoilt."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from copper_frames import BOHR, HARTREE, copper, labelled

from mdgraph.data import LabelledFrame, Provenance, open_dataset, write_dataset
from mdgraph.data.checks import Finding, check_dataset
from mdgraph.data.importing import import_file
from mdgraph.data.keys import Request
from mdgraph.data.splits import Split, random_split, together_split, trajectories

Frames = list[LabelledFrame]

KCAL = 0.0433641042374
PUBLISHED = {
    "Cu": "zuo2020/Cu_train.xyz.gz",
    "Ge": "zuo2020/Ge_train.xyz.gz",
    "Li": "zuo2020/Li_train.xyz.gz",
    "Mo": "zuo2020/Mo_train.xyz.gz",
    "Ni": "zuo2020/Ni_train.xyz.gz",
    "Si": "zuo2020/Si_train.xyz.gz",
    "3bpa": "3bpa/train_300K.xyz",
    "acac": "acac/train_300K.xyz",
    "aspirin": "rmd17_aspirin/train.xyz",
    "ethanol": "rmd17_ethanol/train.xyz",
    "water": "water_pbe0/train.extxyz.gz",
}
ADVICE = ("leave ", "convert ", "split with", "held out together", "see that", "compute ")


def check(path: Path, *files: Frames, split: str = "") -> list[Finding]:
    """Findings about frames, in files 0.xyz, 1.xyz and so on; each says what to do."""
    path.unlink(missing_ok=True)
    write_dataset(path, [(part, Provenance(f"{n}.xyz")) for n, part in enumerate(files)])
    with open_dataset(path) as dataset:
        parts: Split | None = None
        if split == "random":
            parts = random_split(dataset, 0.1, 0, seed=0)
        elif split == "together":
            parts = together_split(dataset, trajectories(dataset), 0.1, seed=0)
        elif split == "last":
            every = np.arange(len(dataset))
            parts = Split(every[:-2], every[-2:], every[:0], split, dataset.sha256())
        findings = check_dataset(dataset, parts)
    assert all(any(word in finding.text for word in ADVICE) for finding in findings)
    return findings


@cache
def imported(path: Path) -> Frames:
    """Frames of a published set, which no test changes in place."""
    return list(import_file(path, Request())[0])


def wrong(findings: list[Finding]) -> str:
    return "\n".join(finding.text for finding in findings if finding.wrong)


ALIKE = ("Li", "Mo", "Ni", "aspirin")
"""Sets of the same makers, by the same method, as others that every run of the tests reads."""


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *(
            pytest.param(name, "random", marks=[pytest.mark.slow] if name in ALIKE else [])
            for name in PUBLISHED
        ),
        ("Ge", "together"),
    ],
)
def test_published_sets_are_sound(
    tmp_path: Path, datasets_folder: Path, name: str, split: str
) -> None:
    frames = imported(datasets_folder / PUBLISHED[name])
    findings = check(tmp_path / "set.h5", frames, split=split)
    assert wrong(findings) == ""
    strains = any("strains along equivalent axes" in finding.text for finding in findings)
    assert strains == (split == "random" and "zuo2020" in PUBLISHED[name])


def scaled(
    frames: Frames, energy: float = 1.0, force: float = 1.0, length: float = 1.0
) -> list[Frames]:
    return [
        [
            replace(
                frame,
                energy=energy * frame.energy,
                forces=force * frame.forces,
                positions=length * frame.positions,
                cell=length * frame.cell,
            )
            for frame in frames
        ]
    ]


def with_one(frames: Frames, change: Callable[[LabelledFrame], LabelledFrame]) -> list[Frames]:
    """Changes the frame with the largest forces but one fifth of them."""
    largest = [float(np.abs(frame.forces).max()) for frame in frames]
    number = int(np.argsort(largest)[len(frames) * 4 // 5])
    return [[*frames[:number], change(frames[number]), *frames[number + 1 :]]]


def one_force(frame: LabelledFrame) -> LabelledFrame:
    assert frame.forces is not None
    forces = frame.forces.copy()
    forces[np.abs(forces).max(1).argmax()] *= 100.0
    return replace(frame, forces=forces)


def on_top(frame: LabelledFrame) -> LabelledFrame:
    positions = frame.positions.copy()
    positions[1] = positions[0] + [0.05, 0.0, 0.0]
    return replace(frame, positions=positions)


def two_origins(frames: Frames) -> list[Frames]:
    shifted = [replace(frame, energy=frame.energy + 0.3 * len(frame)) for frame in frames[1::2]]
    return [frames[0::2], shifted]


def two_units(frames: Frames) -> list[Frames]:
    return [[*frames[0::2], *scaled(frames[1::2], energy=1.0 / HARTREE)[0]]]


MISTAKES: dict[str, tuple[Callable[[Frames], list[Frames]], str]] = {
    "energies in hartree": (lambda frames: scaled(frames, 1.0 / HARTREE), "hartree"),
    "energies in kcal/mol": (lambda frames: scaled(frames, 1.0 / KCAL), "kcal/mol"),
    "gradients": (lambda frames: scaled(frames, force=-1.0), "wrong sign"),
    "forces in hartree/bohr": (lambda frames: scaled(frames, 1.0, BOHR / HARTREE), "hartree/bohr"),
    "forces in kcal/mol/A": (lambda frames: scaled(frames, force=1.0 / KCAL), "kcal/mol"),
    "lengths in bohr": (lambda frames: scaled(frames, length=1.0 / BOHR), "bohr"),
    "lengths in nm": (lambda frames: scaled(frames, length=0.1), "nm"),
    "a force 100 times too large": (lambda frames: with_one(frames, one_force), "A force beyond"),
    "forces of a frame 100 times too large": (
        lambda frames: with_one(frames, lambda frame: scaled([frame], force=100.0)[0][0]),
        "A force beyond",
    ),
    "atoms on top of each other": (lambda frames: with_one(frames, on_top), "too close in 1 frame"),
    "files with two origins": (two_origins, "different reference energies"),
    "two units in one file": (two_units, "two heaps"),
}


@pytest.mark.parametrize("mistake", [*MISTAKES, "copies across a split"])
@pytest.mark.parametrize("name", ["toy", "Cu", "ethanol"])
def test_planted_mistakes_are_found(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, mistake: str
) -> None:
    if name == "toy":
        clusters = copper(80, seed=3, size=0.05)[0::2]
        energies = [atoms.get_potential_energy() - 1000.0 * len(atoms) for atoms in clusters]
        frames = [labelled(atoms, energy=e) for atoms, e in zip(clusters, energies, strict=True)]
    else:
        folder = request.getfixturevalue("datasets_folder")
        frames = imported(folder / PUBLISHED[name])
        frames = frames[::3] if name == "Cu" else frames[:80]
    if mistake == "copies across a split":
        text = wrong(check(tmp_path / "set.h5", [*frames, frames[3], frames[9]], split="last"))
        assert "2 pairs of frames of train and validation are the same" in text
        return
    spoil, word = MISTAKES[mistake]
    assert word in wrong(check(tmp_path / "set.h5", *spoil(frames)))


def crystal(generator: np.random.Generator, size: float, structure: str = "fcc") -> Atoms:
    constant = {"fcc": 3.6, "bcc": 2.87}[structure]
    atoms = bulk("Cu", structure, a=constant, cubic=True).repeat(2)
    atoms.positions += generator.normal(scale=size, size=atoms.positions.shape)
    return atoms


def computed(atoms: Atoms) -> LabelledFrame:
    atoms.calc = EMT()
    forces = atoms.get_forces()
    return labelled(
        atoms,
        energy=atoms.get_potential_energy(),
        forces=forces - forces.mean(0),
        cell=np.array(atoms.cell),
        pbc=atoms.pbc.copy(),
        group="",
    )


@cache
def still(count: int) -> Frames:
    generator = np.random.default_rng(0)
    return [computed(crystal(generator, 0.02)) for _ in range(count)]


def still_slabs() -> Frames:
    generator = np.random.default_rng(0)
    slabs = [fcc111("Al", (2, 2, 3), vacuum=6.0) for _ in range(10)]
    for atoms in slabs:
        atoms.positions += generator.normal(scale=0.03, size=atoms.positions.shape)
    return [computed(atoms) for atoms in slabs]


def melts_among_still_crystals() -> list[Frames]:
    generator = np.random.default_rng(1)
    return [still(50) + [computed(crystal(generator, 0.35)) for _ in range(4)]]


def collisions() -> list[Frames]:
    clusters = copper(60, seed=3, size=0.05)[0::2]
    for atoms in clusters[:2]:
        atoms.positions[1] = atoms.positions[0] + [0.9, 0.0, 0.0]
    return [[computed(atoms) for atoms in clusters]]


def dimers_among_crystals() -> list[Frames]:
    dimers = [Atoms("Cu2", [[0, 0, 0], [length, 0, 0]]) for length in (2.2, 2.6, 3.4)]
    return [still(20) + [computed(atoms) for atoms in dimers]]


def squeezed_crystals() -> list[Frames]:
    frames = still(20).copy()
    for scale in (0.7, 0.75, 0.8):
        atoms = bulk("Cu", cubic=True).repeat(2)
        atoms.set_cell(scale * atoms.cell[:], scale_atoms=True)
        frames.append(computed(atoms))
    return [frames]


def phases_in_files() -> list[Frames]:
    generator = np.random.default_rng(2)
    other = [computed(crystal(generator, 0.02, "bcc").repeat((2, 1, 1))) for _ in range(20)]
    return [still(20), [replace(frame, energy=frame.energy + 0.4 * len(frame)) for frame in other]]


@pytest.mark.parametrize(
    "toy",
    [
        melts_among_still_crystals,
        collisions,
        dimers_among_crystals,
        squeezed_crystals,
        phases_in_files,
    ],
)
def test_usual_kinds_of_frames_are_not_refused(
    tmp_path: Path, toy: Callable[[], list[Frames]]
) -> None:
    files = toy()
    assert wrong(check(tmp_path / "set.h5", *files)) == ""
    assert wrong(check(tmp_path / "set.h5", *files, split="together")) == ""


@pytest.mark.parametrize("vacuum", ["below", "beside"])
def test_slabs_with_other_displacements_are_not_the_same(tmp_path: Path, vacuum: str) -> None:
    """Their histograms are more alike than their positions, as those of crystals are."""
    frames = still_slabs()
    if vacuum == "beside":
        turned = {"positions": [2, 0, 1], "pbc": [2, 0, 1]}
        frames = [
            replace(
                frame,
                **{name: getattr(frame, name)[..., order] for name, order in turned.items()},
                cell=frame.cell[[2, 0, 1]][:, [2, 0, 1]],
                forces=frame.forces[:, [2, 0, 1]],
            )
            for frame in frames
        ]
    findings = check(tmp_path / "set.h5", [*frames, frames[0]])
    (same,) = [finding.text for finding in findings if "the same" in finding.text]
    assert same.startswith("1 pair of frames is the same within 0.01 A an atom (0 and 10)")
