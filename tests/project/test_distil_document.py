"""The recipes that distil published potentials are followed, with few frames and steps."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from followed_pages import follow
from repository import ROOT

from mdgraph import load
from mdgraph.runs import validation

PAGE = ROOT / "docs" / "distil.md"


def solvated() -> Atoms:
    """Methanol and seven molecules of water in a cube of 7 A, none of which touch."""
    corners = 3.5 * np.array(list(np.ndindex(2, 2, 2)))
    parts = [molecule("CH3OH"), *(molecule("H2O") for _ in range(7))]
    for part, corner in zip(parts, corners, strict=True):
        part.translate(corner - part.positions.mean(0))
    atoms = parts[0]
    for part in parts[1:]:
        atoms += part
    atoms.set_cell([7.0] * 3)
    atoms.pbc = True
    return atoms


@pytest.mark.usefixtures("without_report", "checked_once")
def test_the_recipes_are_followed(
    tmp_path: Path,
    reference_folder: Path,
    mdgraph_command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = validation.all_checks
    monkeypatch.setattr(
        validation, "all_checks", lambda *_, **given: islice(checks(*_, **given), 1)
    )
    monkeypatch.chdir(tmp_path)
    for name in ("torchmdnet/aceff-1.1.ckpt", "matgl/TensorNet-MatPES-PBE-v2025.1-PES"):
        path = reference_folder / name
        (tmp_path / path.name).symlink_to(path)
    ase.io.write("solvated.pdb", solvated())
    ase.io.write("crystal.extxyz", bulk("NaCl", "rocksalt", a=5.64, cubic=True))
    shorter = {
        "[300, 350, 450]": "[300]",
        "[100, 300, 900]": "[300]",
        "trajectories: 4": "trajectories: 2",
        "frames: 400\n  interval: 50": "frames: 4\n  interval: 2",
        "frames: 400\n  interval: 60": "frames: 8\n  interval: 6",
        "earlier_steps: 6000\nsteps: 24000": "rounds: 1\nsteps: 2\nvalidations: 1\ndevice: cpu",
        "round-2": "round-1",
        "--time-ps 10": "--steps 8 --no-check --log-interval 8 --device cpu",
    }
    follow(PAGE, tmp_path, mdgraph_command, shorter, failing="validate")
    assert load("ligand-small").species == (1, 6, 8)
    assert load("crystal-small").species == (11, 17)
    for run in ("ligand", "crystal"):
        assert (tmp_path / run / "log.csv").is_file()
