"""The script about stiffness that small potentials lack: known shares, and a known oscillator."""

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from repository import ROOT

from mdgraph import load

WATER = ROOT / "potentials" / "water-pbe0" / "start.extxyz"

pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.fixture
def module() -> ModuleType:
    return import_module("bond_stiffness")


def test_scaled_potentials_lack_what_they_were_scaled_by(
    printed: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "scaled.safetensors"
    text = printed(
        *("bond_stiffness", "water-pbe0-small", "water-pbe0-small", "--structures", WATER),
        *("--steps", "1.4x3", "2.1x2", "--times", 1.01, "--out", out, "--device", "cpu"),
        *("--apart", 4),
    )
    lines = text.splitlines()
    assert lines[0].startswith("128 bonds of ")
    assert len({line.count("|") for line in lines[1:]}) == 1
    same, scaled = ([cell.strip() for cell in line.split("|")[2:-1]] for line in lines[3:])
    assert [cell.strip("+-") for cell in same] == ["0.00 ± 0.00", "0.00", "0.00", "0.00"]
    assert float(scaled[0].split()[0]) == pytest.approx(-1.0, abs=0.011)
    assert -0.75 < float(scaled[2]) < -0.55
    assert float(load(out).scale) == pytest.approx(1.01 * float(load("water-pbe0-small").scale))


def test_errors_of_an_oscillator_are_those_of_its_dynamics(module: ModuleType) -> None:
    """None of one force, second order of the outer step where it is short, and as sampled."""
    steps = module.steps_of("1.4x3")
    assert module.configurational_error(0.4, 0.0, steps, 5.0) == pytest.approx(0.0, abs=1e-9)
    slow = module.configurational_error(0.02, 0.01, steps, 5.0)
    assert slow == pytest.approx(8.0 / 9.0 * (0.02 * 4.2) ** 2 / 6.0 * 0.01, rel=0.02)
    omega, share, friction = 0.4, 0.2, 200.0
    rng = np.random.default_rng(1)
    place, velocity = rng.normal(size=(2, 20000)) / np.array([[omega], [1.0]])
    decay = math.exp(-1e-3 * friction * steps.timestep)
    squares = []
    for step in range(900):
        impulses = 3.0 if step % 3 == 0 else 0.0
        velocity -= steps.timestep * omega**2 * (1.0 - share + share * impulses) * place
        place += 0.5 * steps.timestep * velocity
        velocity = decay * velocity + math.sqrt(1.0 - decay**2) * rng.normal(size=len(place))
        place += 0.5 * steps.timestep * velocity
        if step % 3 == 2 and step > 60:
            squares.append(omega**2 * float((place**2).mean()))
    found = module.configurational_error(omega, share, steps, friction)
    assert abs(found) > 0.05
    assert np.mean(squares) - 1.0 == pytest.approx(found, abs=0.004)
