"""The probe that displaces frames judges them by energies of frames so displaced."""

import json
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

from mdgraph import load
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.system import System
from mdgraph.train.losses import displacements, draw
from mdgraph.validate.probes import evaluate_with, perturbation_misses


def systems() -> list[System]:
    atoms = [molecule("CH3CH2OH") for _ in range(8)]
    for seed, one in enumerate(atoms):
        one.rattle(0.03, seed=seed)
    return [System(one.numbers, one.positions) for one in atoms]


def energy_and_forces(system: System) -> tuple[float, np.ndarray]:
    calculation = Calculation([system], load("ethanol-pbe"), precision="mixed", device="cpu")
    calculation.compute()
    return calculation.state.energy.item(), calculation.state.forces.numpy().copy()


def test_misses_are_those_of_energies_along_the_move() -> None:
    """With a depth of 1e10 eV both Morse curves are a parabola, E + d.H.d/2, which opens upward."""
    evaluate = evaluate_with("ethanol-pbe", torch.device("cpu"))
    found = perturbation_misses(systems(), evaluate, seed=7, max_displacement=0.9, well_depth=1e10)
    drawn = torch.from_numpy(draw(7, 0, 8, 9))
    positions = torch.tensor(np.array([one.positions for one in systems()]))
    moved = displacements(drawn, positions, torch.full((8,), 9), 0.9).numpy()
    for system, own, low, high in zip(systems(), moved, *found, strict=True):
        part = 0.1 / np.linalg.norm(own, axis=1).max()
        (energy, forces), *others = (
            energy_and_forces(system.replace(positions=system.positions + x * own))
            for x in (0.0, 1.0, part, -part)
        )
        displaced, up, down = (one for one, _ in others)
        rise = displaced - energy - max(0.0, (0.5 * (up + down) - energy) / part**2)
        linear = -(forces * own).sum()
        expected = max(0.0, min(0.0, linear) - 0.2 - rise), max(0.0, rise - max(0.0, linear) - 0.2)
        assert (low.item(), high.item()) == pytest.approx(expected, abs=0.01)
    assert all((one > 0.0).any() for one in found)


def test_shares_depend_on_what_a_bond_is_worth(
    printed: Callable[..., str], ethanol_file: Path
) -> None:
    words = [
        "validate",
        "displacing",
        "ethanol-pbe",
        ethanol_file,
        "--frames",
        60,
        "--device",
        "cpu",
    ]
    found = []
    for depth in ("0.01", "1e4"):
        told = json.loads(printed(*words, "--well-depth", depth, "--json"))
        assert told["frames"] == 60
        found.append(told)
    worthless, stiff = found
    assert worthless["high"]["share"] == 0.0
    assert worthless["low"]["share"] < stiff["low"]["share"]
    assert stiff["low"]["share"] + stiff["high"]["share"] > 0.5  # all but the shortest moves
    assert "Of 60 displaced frames lie too\nlow " in printed(*words)


def test_few_moves_of_the_shipped_ethanol_leave_the_corridor(
    printed: Callable[..., str], ethanol_file: Path
) -> None:
    """One in four did of a training on frames at rest alone; no corridor held this student."""
    words = ["--frames", 300, "--device", "cpu", "--json"]
    told = json.loads(printed("validate", "displacing", "ethanol-pbe", ethanol_file, *words))
    assert told["low"]["share"] + told["high"]["share"] < 0.06


@pytest.mark.parametrize("option", ["--frames", "--max-displacement", "--well-depth"])
def test_nothing_is_displaced_by_nothing(
    printed: Callable[..., str], ethanol_file: Path, option: str
) -> None:
    with pytest.raises(InputError, match=f"{option} is 0; it should be greater than 0"):
        printed("validate", "displacing", "ethanol-pbe", ethanol_file, option, 0)


def test_single_atoms_are_refused(printed: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "atoms.xyz"
    ase.io.write(path, molecule("H"))
    with pytest.raises(InputError, match="holds single atoms alone; give larger structures"):
        printed("validate", "displacing", "ethanol-pbe", path)
