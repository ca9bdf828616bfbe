"""The script about hot bonds: oscillators that hold, and those that a wall or impulses lose."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mdgraph.io.structures import read_system

pytestmark = pytest.mark.usefixtures("checked_once")

WIDTH, DEPTH, REST = 2.2, 4.5, 0.97
"""1/A, eV and A of a Morse bond of 43.6 eV/A^2."""


@pytest.fixture
def module() -> ModuleType:
    return import_module("hot_bonds")


def morse(lengths: np.ndarray) -> np.ndarray:
    decay = np.exp(-WIDTH * (lengths - REST))
    return np.asarray(-2.0 * WIDTH * DEPTH * decay * (1.0 - decay))


def test_bonds_that_both_potentials_know_hold(module: ModuleType) -> None:
    forces = np.repeat(morse(module.LENGTHS)[None], 3, 0)
    rest = module.Curve(forces).rest()
    np.testing.assert_allclose(rest, REST, atol=0.003)
    for text in ("0.5", "1.75", "1.4x3"):
        shares = module.run_away(forces, forces, np.full(3, 2.414), module.steps_of(text))
        assert shares.shape == module.ENERGIES.shape
        assert not shares.any(), text


def test_what_a_small_potential_lacks_far_from_rest_loses_hot_bonds(module: ModuleType) -> None:
    """Cold ones do not come there."""
    small = np.repeat(morse(module.LENGTHS)[None], 3, 0)
    far = module.LENGTHS < 0.86
    wall = small + np.where(far, 120.0 * (0.86 - module.LENGTHS), 0.0)
    shares = module.run_away(wall, small, np.full(3, 2.414), module.steps_of("1.4x3"))
    assert not shares[module.ENERGIES <= 0.3].any()
    assert shares[-1] > 0.2
    plain = module.run_away(wall, small, np.full(3, 2.414), module.steps_of("0.5"))
    assert not plain[module.ENERGIES <= 0.8].any()


def test_energies_are_those_of_the_columns(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without friction a bond of a wall at its turning point is lost from that energy on."""
    forces = morse(module.LENGTHS)[None]
    turning = 1.21
    energy = DEPTH * (1.0 - np.exp(-WIDTH * (turning - REST))) ** 2
    monkeypatch.setattr(module, "ENERGIES", energy * np.array([0.85, 1.15]))
    fallen = np.where(turning < module.LENGTHS, 30.0, forces)
    shares = module.run_away(
        fallen, fallen, np.array([2.414]), module.steps_of("0.1"), friction=0.0
    )
    assert shares.tolist() == [0.0, 1.0]


def test_tables_are_printed(
    printed: Callable[..., str],
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "hot.md"
    text = printed(
        *("hot_bonds", tiny_potential, tiny_potential, "--structures", water_file),
        *("--steps", 1, "0.5x2", "--apart", 4, "--device", "cpu", "--out", out),
    )
    assert text == out.read_text() + "\n"
    bonds = int((read_system(water_file).numbers == 1).sum())
    assert text.startswith(f"{bonds} bonds.")
    assert "| less that of the small one | +0.00 ± 0.00 |" in text
    assert "| 0.5 x 2 | 1 |" in text
    system = read_system(water_file)
    copies, groups, masses = module.moved([system], 4, 3.024)
    hydrogens, directions = groups[1].hydrogens, groups[1].directions
    first = copies[len(module.LENGTHS)]
    apart = first.positions[hydrogens] - system.positions[hydrogens]
    np.testing.assert_allclose(np.abs((apart * directions).sum(1)), np.linalg.norm(apart, axis=1))
    assert len(masses) == bonds
    assert masses == pytest.approx(3.024 * 11.967 / 14.991, rel=1e-3)
