"""How potentials differ at the frequencies of bonds: known wells, and steps that gain energy."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import HarmonicWells

from mdgraph.checkpoints import load, save
from mdgraph.engine import Simulation, VelocityVerlet, resonance
from mdgraph.engine.resonance import LOWEST, force_difference, samples_of
from mdgraph.errors import InputError
from mdgraph.runs import summary
from mdgraph.runs.config import MDConfig
from mdgraph.runs.md import start
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BOLTZMANN, SPEED_OF_LIGHT

ATOMS = 60
BOND = 3300.0
"""1/cm, of the hydrogens; a period takes 10.1 fs. Oxygens vibrate four times more slowly."""


def stiffness(wavenumber: float, mass: float = 1.008) -> float:
    """eV/A^2 of the well in which an atom vibrates so."""
    return mass * (2.0 * np.pi * SPEED_OF_LIGHT * wavenumber) ** 2 / ACCELERATION


def wells(share: float = 0.0) -> tuple[System, HarmonicWells]:
    """Hydrogens at BOND and as many oxygens of equal stiffness; `share` is taken off."""
    numbers = np.repeat([1, 8], ATOMS // 2)
    places = np.full((ATOMS, 3), 0.0)
    places[:, 0] = 50.0 * np.arange(ATOMS)
    own = HarmonicWells(torch.tensor(places), (1.0 - share) * stiffness(BOND))
    return System(numbers, places), own


def measured(share: float, timestep: float = 0.5) -> Any:
    system, large = wells()
    return force_difference(
        system, large, wells(share)[1], timestep, device="cpu", precision="double", seed=3
    )


def test_a_difference_of_known_wells_is_found() -> None:
    difference = measured(0.1)
    assert difference.elements == ("H", "O")
    # Atoms that start at the bottom with kT have kT / 2 in the well, on average over time.
    expected = 0.1 * np.sqrt(1.5 * BOLTZMANN * 300.0 * stiffness(BOND))
    assert difference.rms()[0] == pytest.approx(expected, rel=0.15)
    assert difference.shares()[0] == pytest.approx(0.1, rel=1e-9)
    # The small potential moves the atoms.
    assert difference.highest()[0] == pytest.approx(0.9**0.5 * BOND, abs=130.0)
    half = 0.5 / (SPEED_OF_LIGHT * BOND)
    assert difference.longest_steps()[0] == pytest.approx(0.9 * half / 0.9**0.5, rel=0.05)


def test_slow_atoms_have_nothing_there() -> None:
    """Oxygens vibrate at 830 /cm, where the difference is as large as on hydrogens."""
    measurement = measured(0.1)
    slow, power = measurement.wavenumber < LOWEST, measurement.difference[1]
    assert power[slow].sum() > 1e3 * power[~slow].sum()
    assert measurement.rms()[1] < 0.03 * measurement.rms()[0]


def test_power_is_that_of_the_force() -> None:
    for share in (0.1, 0.2):
        measurement = measured(share)
        np.testing.assert_allclose(measurement.difference, share**2 * measurement.large, rtol=1e-9)


def energy_after(outer: float, share: float) -> float:
    """Mean energy of hydrogens after 80 outer steps, over that of the start."""
    system, large = wells()
    system, large = system.select(range(30)), HarmonicWells(large.centres[:30], large.stiffness)
    small = HarmonicWells(large.centres, (1.0 - share) * large.stiffness)
    run = Simulation(
        system,
        large,
        VelocityVerlet(outer / 16),
        device="cpu",
        precision="double",
        temperature=300.0,
        maximum_temperature=1e30,
        inner_potential=small,
        inner_steps=16,
    )
    first = float(run.observables().conserved_energy[0])
    run.run(80 * 16)
    return float(run.observables().conserved_energy[0]) / first


def test_outer_steps_from_the_limit_on_gain_energy() -> None:
    share = 0.1
    half = 0.5 / (SPEED_OF_LIGHT * BOND)
    for outer, gains in ((0.87 * half, False), (0.95 * half, True)):
        assert (energy_after(outer, share) > 100.0) == gains


def test_the_sentence_says_who_resonates() -> None:
    difference = measured(0.1)
    resonates, text = difference.text(6.0)
    assert resonates
    assert "differ on H by" in text
    assert "(10 % of those there)" in text
    assert "this one is 6 fs; take fewer inner_steps or a shorter time step." in text
    resonates, text = difference.text(3.0)
    assert not resonates
    assert text.endswith("this one is 3 fs.")
    resonates, text = measured(0.0).text(6.0)
    assert not resonates
    assert "do not differ by 0.1 %" in text


def test_elements_are_those_that_both_know() -> None:
    with pytest.raises(InputError, match="does not know"):
        force_difference(wells()[0], wells()[1], "copper-pbe", 0.5, device="cpu")


@pytest.mark.parametrize(
    ("share", "outer", "told"),
    [
        (0.6, 4.0, True),
        (0.1, 4.0, False),
        (0.1, 4.5, True),  # impulses on most bonds resonate from 4.8 fs on
        (0.1, 6.0, True),
        (0.0005, 6.0, False),
    ],
)
def test_a_fast_difference_is_told_and_a_sound_pair_is_not(
    share: float, outer: float, told: bool
) -> None:
    assert measured(share).text(outer)[0] == told


@pytest.fixture
def options_of_run(
    tiny_potential: Path, water_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setattr(summary, "worth_measuring", lambda steps, timestep: steps >= 4)
    potential = load(tiny_potential)
    potential.scale.fill_(27.0)
    save(potential, tmp_path / "small.safetensors")
    return {
        "structure": str(water_file),
        "potential": str(tiny_potential),
        "inner_potential": str(tmp_path / "small.safetensors"),
        "inner_steps": 4,
        "steps": 16,
        "device": "cpu",
        "evaluator": "reference",
        "timestep_fs": 0.25,
        "out": str(tmp_path / "run"),
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, True), ({"check": False}, False), ({"steps": 8}, False), ({"inner_steps": 2}, True)],
)
def test_long_runs_say_it(
    options: dict[str, Any],
    says: bool,
    options_of_run: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resonance, "samples_of", lambda timestep: (16, 1))
    with caplog.at_level(logging.INFO):
        start(MDConfig(**(options_of_run | options)))
    assert ("Above 2,000 /cm the forces of the two potentials" in caplog.text) == says


@pytest.mark.parametrize(("share", "level"), [(0.9, logging.WARNING), (0.1, logging.INFO)])
def test_resonance_is_a_warning(
    share: float,
    level: int,
    options_of_run: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "force_difference", lambda *given, **names: measured(share))
    with caplog.at_level(logging.INFO):
        start(MDConfig(**options_of_run))
    levels = [one.levelno for one in caplog.records if "Above 2,000 /cm" in one.message]
    assert levels == [level]


def test_samples_cover_two_hundred_fs() -> None:
    samples = [samples_of(timestep) for timestep in (0.25, 0.5, 0.8, 1.5, 10.0)]
    assert samples == [(100, 8), (100, 4), (125, 2), (134, 1), (32, 1)]
