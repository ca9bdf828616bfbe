"""Sound structures of every kind: what a self-check must never refuse."""

import os
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any, Final

import ase.io
import numpy as np
from ase import Atoms
from ase.build import bulk, molecule, surface
from ase.collections import g2
from ase.data import chemical_symbols
from ase.spacegroup import crystal

from mdgraph.io.structures import from_ase, read_system
from mdgraph.models import TensorNetPotential
from mdgraph.system import System

ROOT: Final = Path(__file__).resolve().parents[2]
SHARED: Final = Path(os.environ.get("MDGRAPH_SHARED", ROOT.parent / "shared"))
"""Data sets, structures and reference potentials."""

RATTLES: Final = (0.01, 0.05, 0.1, 0.2)
"""A, standard deviation of each coordinate."""

DISTANCES: Final = (0.7, 0.8, 0.9, 1.1, 1.4, 1.8, 2.2, 2.6, 3.0, 3.5, 4.0, 4.5, 4.99, 5.5, 6.0)
"""A, of the two atoms of a dimer."""

_ELEMENTS: Final = (
    *("H", "He", "Li", "C", "N", "O", "F", "Na", "Mg", "Si", "P", "S", "Cl", "Ca", "Ti", "Fe"),
    *("Cu", "Zn", "Br", "I", "W", "Au", "U"),
)
"""Of dimers and lone atoms, where a potential knows many."""

_FCC: Final = {"Cu": 3.61, "Al": 4.05, "Ni": 3.52, "Ag": 4.09, "Au": 4.08, "Pt": 3.92, "Pd": 3.89}
_SOFT_FCC: Final = {"Ca": 5.58, "Pb": 4.95, "Ar": 5.26}
_BCC: Final = {"Fe": 2.87, "W": 3.16, "Na": 4.23, "Li": 3.49, "Mo": 3.15, "K": 5.23, "Cr": 2.88}
_HCP: Final = {"Mg": (3.21, 5.21), "Ti": (2.95, 4.68), "Zn": (2.66, 4.95), "Co": (2.51, 4.07)}
_DIAMOND: Final = {"C": 3.567, "Si": 5.43, "Ge": 5.66}
_ROCKSALT: Final = {"NaCl": 5.64, "MgO": 4.21, "LiF": 4.03, "KBr": 6.6, "CaO": 4.81, "TiN": 4.24}
_ZINCBLENDE: Final = {"GaAs": 5.65, "SiC": 4.36, "ZnS": 5.41, "InP": 5.87}
_WURTZITE: Final = {"ZnO": (3.25, 5.2), "GaN": (3.19, 5.19), "AlN": (3.11, 4.98)}
_CESIUM_CHLORIDE: Final = {"CsCl": 4.12, "NiAl": 2.89, "CuZn": 2.95}
_FLUORITE: Final = {"CaF2": 5.46, "CeO2": 5.41}
_PEROVSKITE: Final = {"SrTiO": 3.905, "BaTiO": 4.0}


@cache
def crystals() -> dict[str, tuple[Atoms, Atoms]]:
    """Primitive and conventional cells of elements and compounds, by name."""
    made: dict[str, tuple[Atoms, Atoms]] = {}
    cubic = (
        ("fcc", _FCC | _SOFT_FCC),
        ("bcc", _BCC),
        ("diamond", _DIAMOND),
        ("rocksalt", _ROCKSALT),
        ("zincblende", _ZINCBLENDE),
        ("cesiumchloride", _CESIUM_CHLORIDE),
        ("fluorite", _FLUORITE),
    )
    for kind, lengths in cubic:
        for name, a in lengths.items():
            own = bulk(name, kind, a=a)
            made[f"{name} {kind}"] = own, bulk(name, kind, a=a, cubic=True)
    for kind, pairs in (("hcp", _HCP), ("wurtzite", _WURTZITE)):
        for name, (a, c) in pairs.items():
            own = bulk(name, kind, a=a, c=c)
            made[f"{name} {kind}"] = own, own
    sites = [(0, 0, 0), (0.5, 0.5, 0.5), (0.5, 0.5, 0)]
    for name, a in _PEROVSKITE.items():
        own = crystal([name[:2], "Ti", "O"], sites, spacegroup=221, cellpar=[a, a, a, 90, 90, 90])
        made[f"{name}3 perovskite"] = own, own
    return made


def crystal_cases() -> Iterator[tuple[str, Atoms]]:
    """Each crystal perfect, rattled, strained and as a slab."""
    for number, (name, (own, conventional)) in enumerate(crystals().items()):
        yield f"{name} perfect", own
        rng = np.random.default_rng(number)
        large = own.repeat(2 if len(own) <= 2 else (2, 1, 1))
        for size in RATTLES:
            yield f"{name} rattled {size}", rattled(large, size, number)
        strain = rng.uniform(-0.05, 0.05, (3, 3))
        strained = own.copy()
        strained.set_cell(own.cell[:] @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
        yield f"{name} strained", strained
        slab = surface(conventional, (0, 0, 1) if "hcp" in name else (1, 1, 1), 2, vacuum=8.0)
        slab.pbc = [True, True, False]
        yield f"{name} slab", slab


def rattled(atoms: Atoms, size: float, seed: int) -> Atoms:
    moved = atoms.copy()
    moved.positions += np.random.default_rng(seed).normal(scale=size, size=(len(atoms), 3))
    return moved


def dimers(potential: TensorNetPotential) -> Iterator[tuple[str, Atoms]]:
    """Two atoms at many distances, and one alone."""
    known = _few_elements(potential)
    for name in known:
        yield f"{name} alone", Atoms(name)
    pairs = list(combinations_with_replacement(known, 2))
    chosen = np.random.default_rng(0).permutation(len(pairs))[:30]
    for distance, place in product(DISTANCES, sorted(chosen)):
        one, other = pairs[place]
        yield (
            f"{one}-{other} at {distance} A",
            Atoms([one, other], [[0, 0, 0], [0.6 * distance, 0.0, 0.8 * distance]]),
        )


def _few_elements(potential: TensorNetPotential) -> list[str]:
    known = [chemical_symbols[number] for number in potential.species]
    return known if len(known) <= 7 else [name for name in _ELEMENTS if name in known]


def molecules() -> Iterator[tuple[str, Atoms]]:
    """Those of the G2 set, and a peptide."""
    yield "Ac-Ala3-NHMe", peptide(3)
    for name in g2.names:
        yield name, molecule(name)


def peptide(residues: int) -> Atoms:
    """Acetyl, so many alanines and N-methyl, with standard lengths and angles."""
    symbols: list[str] = []
    places: list[np.ndarray[Any, Any]] = []
    names: dict[str, int] = {}

    def put(symbol: str, name: str, a: str, b: str, c: str, *geometry: float) -> None:
        refs = [places[names[one]] for one in (a, b, c)]
        names[name] = len(places)
        symbols.append(symbol)
        places.append(_placed(*refs, *geometry))

    for symbol, name, place in (
        ("C", "CH3", [0.0, 0.0, 0.0]),
        ("C", "C", [1.52, 0.0, 0.0]),
        ("O", "O", [2.15, 1.05, 0.0]),
    ):
        names[name] = len(places)
        symbols.append(symbol)
        places.append(np.array(place))
    for k in range(3):
        put("H", f"H{k}", "CH3", "C", "O", 1.09, 110.0, 60.0 + 120.0 * k)
    before = "CH3"
    for _ in range(residues):
        put("N", "N", "C", before, "O", 1.34, 116.0, 180.0)
        put("H", "HN", "N", "C", "O", 1.01, 119.0, 180.0)
        put("C", "CA", "N", "C", "O", 1.46, 122.0, 0.0)
        put("C", "C2", "CA", "N", "C", 1.53, 110.0, -80.0)
        put("C", "CB", "CA", "N", "C2", 1.53, 110.0, 122.0)
        put("H", "HA", "CA", "N", "C2", 1.09, 109.0, -119.0)
        for k in range(3):
            put("H", f"HB{k}", "CB", "CA", "N", 1.09, 110.0, 60.0 + 120.0 * k)
        put("O", "O", "C2", "CA", "N", 1.23, 120.5, -60.0)
        names["C"], before = names["C2"], "CA"
    put("N", "N", "C", before, "O", 1.34, 116.0, 180.0)
    put("H", "HN", "N", "C", "O", 1.01, 119.0, 180.0)
    put("C", "CM", "N", "C", "O", 1.45, 122.0, 0.0)
    for k in range(3):
        put("H", f"HM{k}", "CM", "N", "C", 1.09, 110.0, 60.0 + 120.0 * k)
    return Atoms(symbols, places)


def _placed(a: Any, b: Any, c: Any, length: float, angle: float, torsion: float) -> Any:
    """A point bonded to a, at an angle to b and a torsion to c."""
    axis = (a - b) / np.linalg.norm(a - b)
    normal = np.cross(b - c, axis)
    normal /= np.linalg.norm(normal)
    theta, phi = np.radians([angle, torsion])
    along = np.array([-np.cos(theta), np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi)])
    return a + length * (along @ np.array([axis, np.cross(normal, axis), normal]))


def trained_frames(name: str) -> Iterator[tuple[str, Atoms]]:
    """Frames of a public set, first those of the test."""
    for part in ("test", "train"):
        path = SHARED / "datasets/zuo2020" / f"{name}_{part}.xyz.gz"
        if path.is_file():
            for number, atoms in enumerate(ase.io.read(path, ":")):
                yield f"{name}_{part} {number}", atoms


def files() -> Iterator[tuple[str, System]]:
    """Structure files as users have them, the small ones first."""
    found = [(path.stem, read_system(path)) for path in sorted(SHARED.glob("structures/*.pdb"))]
    yield from sorted(found, key=lambda one: len(one[1]))


def knows(potential: TensorNetPotential, system: System) -> bool:
    """Whether it can compute the structure."""
    if potential.coulomb is not None and np.isinf(potential.coulomb.cutoff) and system.pbc.any():
        return False
    return set(system.numbers.tolist()) <= set(potential.species)


def structures(group: str, potential: TensorNetPotential) -> Iterator[tuple[str, System]]:
    """The structures of a group that a potential knows."""
    groups: dict[str, Any] = {
        "copper frames": lambda: trained_frames("Cu"),
        "silicon frames": lambda: trained_frames("Si"),
        "crystals": crystal_cases,
        "molecules": molecules,
        "dimers": lambda: dimers(potential),
        "files": files,
    }
    for name, one in groups[group]():
        system = from_ase(one) if isinstance(one, Atoms) else one
        if knows(potential, system):
            yield name, system
