"""The benchmark that displaces frames judges them by energies of frames so displaced."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

from mdgraph import load
from mdgraph.engine import Calculation
from mdgraph.system import System
from mdgraph.train.displaced import draw, moves


def systems() -> list[System]:
    atoms = [molecule("CH3CH2OH") for _ in range(8)]
    for seed, one in enumerate(atoms):
        one.rattle(0.03, seed=seed)
    return [System(one.numbers, one.positions) for one in atoms]


def energy_and_forces(system: System) -> tuple[float, np.ndarray]:
    calculation = Calculation([system], load("ethanol-pbe"), precision="mixed", device="cpu")
    calculation.compute()
    return calculation.state.energy.item(), calculation.state.forces.numpy().copy()


def test_falls_are_those_of_energies_along_the_move(script: Callable[[str], ModuleType]) -> None:
    """With a depth of 1e6 eV a Morse curve is a parabola: E + min(0, -F.d) + d.H.d/2 is due."""
    options = Namespace(
        potential="ethanol-pbe", device=torch.device("cpu"), seed=4, largest=0.9, depth=1e6
    )
    found = script("displacing").falls(systems(), options)
    drawn = torch.from_numpy(draw(4, 0, 8, 9))
    positions = torch.tensor(np.array([one.positions for one in systems()]))
    moved = moves(drawn, positions, torch.full((8,), 9), 0.9).numpy()
    for system, own, value in zip(systems(), moved, found.tolist(), strict=True):
        (energy, forces), (displaced, _) = (
            energy_and_forces(system.replace(positions=system.positions + part * own))
            for part in (0.0, 1.0)
        )
        part = 0.02 / np.linalg.norm(own, axis=1).max()
        pulls = [
            (energy_and_forces(system.replace(positions=system.positions + x * own))[1] * own).sum()
            for x in (part, -part)
        ]
        due = energy + min(0.0, -(forces * own).sum()) - 0.25 * (pulls[0] - pulls[1]) / part
        assert value == pytest.approx(max(0.0, due - 0.2 - displaced), rel=0.05, abs=0.02)
    assert (found > 0.0).any()


def test_the_shipped_ethanol_rises(
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "ethanol.xyz"
    ase.io.write(path, molecule("CH3CH2OH"))
    words = ["displacing", "ethanol-pbe", str(path), "--frames", "60", "--device", "cpu"]
    shares = []
    for depth in ("0.5", "30"):
        monkeypatch.setattr(sys, "argv", [*words, "--depth", depth, "--json"])
        script("displacing").main()
        told = json.loads(capsys.readouterr().out)
        assert told["frames"] == 60
        assert (told["share"] > 0.0) == (told["worst_eV"] > 0.0)
        shares.append(told["share"])
    assert shares[0] < 0.2  # as a bond that is worth next to nothing does
    assert shares[1] > 0.2  # no bond is worth as much
    monkeypatch.setattr(sys, "argv", words)
    script("displacing").main()
    assert "60 displaced frames: " in capsys.readouterr().out
