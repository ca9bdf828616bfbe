"""What `speed.py` times, and what other programs took for the same on one NVIDIA H200."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from structures import CLUSTERS, random_potential, salt, solution, water

from mdgraph import load
from mdgraph.io.structures import read_system
from mdgraph.models import TensorNetPotential
from mdgraph.system import System

SIZES = {"cuda": [24, 165, 648, 3000, 12288, 24000, 98304], "cpu": [24, 192, 648]}
STAND_IN_SIZES = (24, 165, 2268, 23559)
SALT_CELLS = (2, 4, 8, 11)  # 64, 512, 4096 and 10,648 atoms
MILLION = 1_000_002  # a multiple of three: whole molecules


@dataclass(frozen=True)
class Peer:
    """Another program's time, ms, and peak memory, GB."""

    milliseconds: float | str | None = None
    gigabytes: float | None = None


NO_PEER = Peer()

# TorchMD-Net 3.1.0 with its Warp kernels, torch 2.11+cu130, float32, 2026-11-20: energy and
# forces with its list, no virial; the best of eager, CUDA graph and torch.compile, and of its
# two lists. Memory is that of the graph. See NOTES.md.
TORCHMD_NET = {
    24: Peer(1.37, 0.24),
    165: Peer(2.24, 0.61),
    648: Peer(4.66, 1.8),
    3000: Peer(16.7, 7.4),
    12288: Peer(58.9, 30.0),
    24000: Peer(108.7, 58.0),
    98304: Peer("too large"),  # for 140 GB
}

# MatGL 4.1.2 with its Warp kernels, the same card and day: one call through ASE with list,
# energy, forces and stress.
MATGL = {64: Peer(20.9), 512: Peer(22.1), 4096: Peer(39.6), 10648: Peer(80.8, 7.4)}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    structure: str
    system: System
    peer: Peer = NO_PEER


def groups(options: argparse.Namespace) -> Iterator[tuple[str, TensorNetPotential, list[Case]]]:
    """Potentials, and the structures for each."""
    sizes = [*options.atoms, *([MILLION] if options.million else [])]
    boxes = [
        Case(
            f"water {'cluster' if n in CLUSTERS else 'box'}", water(n), TORCHMD_NET.get(n, NO_PEER)
        )
        for n in sizes
    ]
    if boxes:
        yield "random weights, 2 layers (peer: TorchMD-Net 3.1.0)", random_potential(), boxes
    if options.aceff:
        given = [Case(path.stem, read_system(path)) for path in options.aceff_structures]
        made = [Case("acetamide in water", solution(n)) for n in STAND_IN_SIZES]
        yield f"AceFF, {options.aceff.name}", load(options.aceff), given or made
    if options.matpes:
        crystals = [salt(cells) for cells in SALT_CELLS]
        cases = [Case("rattled NaCl", one, MATGL.get(len(one), NO_PEER)) for one in crystals]
        yield f"MatPES, {options.matpes.name} (peer: MatGL 4.1.2)", load(options.matpes), cases
