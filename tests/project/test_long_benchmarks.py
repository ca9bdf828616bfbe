"""The benchmarks of physics and of faults: what they compute, and that they go on exactly."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import ase.md.verlet
import ase.units
import numpy as np
import pytest
import torch
from repository import ROOT, SUPPORT

from mdgraph.analysis.rdf import radial_distribution
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.io.structures import read_system, to_ase
from mdgraph.system import System
from mdgraph.validate import liquids

WATER = ROOT / "potentials" / "water-pbe0" / "start.extxyz"

Printed = Callable[..., str]


class TestDrift:
    def test_errors_of_a_known_slope_are_right(self, script: Callable[[str], ModuleType]) -> None:
        generator = np.random.default_rng(2)
        time = np.linspace(0.0, 1.0, 200)
        found = [
            script("drift").drift(time, 3.0 + 0.7 * time[:, None] + generator.normal(size=(200, 4)))
            for _ in range(300)
        ]
        slopes = np.array([one.slope for one in found])
        assert slopes.mean() == pytest.approx(0.7, abs=0.05)
        spread = slopes.std()
        assert np.mean([one.blocks_error for one in found]) == pytest.approx(spread, rel=0.15)
        squares = np.mean([one.starts_error**2 for one in found])
        assert squares**0.5 == pytest.approx(spread, rel=0.15)
        assert found[0].bound > 0.7

    def test_a_slope_that_differs_between_starts_shows_in_the_error(
        self, script: Callable[[str], ModuleType]
    ) -> None:
        time = np.linspace(0.0, 1.0, 50)
        found = script("drift").drift(time, time[:, None] * np.array([1.0, 2.0, 3.0]))
        assert found.slope == pytest.approx(2.0)
        assert found.starts_error == pytest.approx(1.0 / 3.0**0.5)
        assert found.blocks_error == pytest.approx(0.0, abs=1e-12)

    @pytest.mark.statistical
    def test_sessions_give_what_one_gives(self, printed: Printed, tmp_path: Path) -> None:
        options = ["--device", "cpu", "--starts", 2, "--bath-ps", 0.004, "--every", 4, "--json"]
        state = ["--state", tmp_path / "drift.json"]
        whole = json.loads(printed("drift", *options, "--ps", 0.024))
        assert 200.0 < whole["temperature_K"] < 400.0
        assert whole["bound"] >= abs(whole["slope"]) + 2.0 * whole["starts_error"]
        assert whole["ps"] == pytest.approx(0.024)
        printed("drift", *options, *state, "--ps", 0.01)
        assert json.loads(printed("drift", *options, *state, "--ps", 0.024)) == whole
        with pytest.raises(Exception, match="give these options again"):
            printed("drift", *options, *state, "--ps", 0.03, "--seed", 1)

    def test_rows_come_as_they_are_known(
        self, printed: Printed, script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(script("drift"), "SAVED", 0.0)
        options = ["--device", "cpu", "--starts", 1, "--bath-ps", 0.002, "--every", 4]
        lines = printed("drift", *options, "--ps", 0.008).splitlines()
        assert [line.split()[3] for line in lines[2:]] == ["0.002", "0.004", "0.006", "0.008"] + [
            "0.008"
        ]

    def test_it_stops_in_time(self, printed: Printed, tmp_path: Path) -> None:
        options = ["--device", "cpu", "--starts", 1, "--every", 4, "--state", tmp_path / "a"]
        assert "Still in the bath" in printed("drift", *options, "--minutes", 0)


class TestLiquid:
    @pytest.mark.statistical
    def test_numbers_are_those_of_a_liquid(
        self, printed: Printed, script: Callable[[str], ModuleType], tmp_path: Path
    ) -> None:
        lengths = ["--bath-ps", 0.005, "--ps", 0.02, "--nve-ps", 0.04, "--window-ps", 0.02]
        options = ["--starts", 2, "--blocks", 2, "--every", 5, "--device", "cpu", "--lags", 20]
        frames = tmp_path / "frames.extxyz"
        start = ase.io.read(WATER)
        ase.io.write(frames, [start] * 3)
        picture = tmp_path / "g.png"
        files = ["--frames", frames, "--picture", picture, "--json"]
        found = json.loads(printed("validate", "liquid", *lengths, *options, *files))
        distance, value = np.array(found["distance_A"]), np.array(found["g_OO"])
        assert (value[distance < 2.2] == 0.0).all()
        assert 2.6 < distance[value.argmax()] < 3.1
        shells = 4.0 * np.pi * distance**2 * (distance[1] - distance[0])
        # Within 3.3 A an oxygen has between four and five others.
        near = (value * shells)[distance < 3.3].sum() * 64 / 12.44466**3
        assert near == pytest.approx(4.4, abs=0.6)
        error = np.array(found["g_OO_error"])
        assert (error[value > 0.5] > 0.0).all()
        oxygens = np.flatnonzero(start.numbers == 8)
        known = radial_distribution(
            [(start.positions, start.cell.array)], oxygens, oxygens, maximum=5.0
        )
        assert found["training"] == pytest.approx(known.value)
        assert max(found["training_error"]) < 1e-12
        assert picture.stat().st_size > 10_000
        said = script("validate").liquid_text(found)
        assert "D of 2 runs at constant energy" in said
        apart = np.sqrt(((value - known.value)[(distance > 2.4) & (error > 0.0)] ** 2).mean())
        assert f"RMS difference beyond 2.4 A: {apart:.3f}, " in said

    def test_diffusion_is_that_of_the_same_path_by_ase(self) -> None:
        options = liquids.LiquidOptions(
            bath_ps=0.005,
            ps=0.02,
            nve_ps=0.04,
            window_ps=0.02,
            blocks=2,
            every=5,
            lags=20,
        )
        device = torch.device("cpu")
        start = [read_system(WATER)] * 2
        _, ends = liquids.pair_distributions(start, "water-pbe0", "O-O", options, device)
        constants, kelvin = liquids.diffusion(ends, "water-pbe0", "O", options, device)
        assert ((kelvin > 150.0) & (kelvin < 450.0)).all()
        # ASE averages a few more origins.
        by_ase = [self.ase_diffusion(end, options) for end in ends]
        assert constants == pytest.approx(by_ase, rel=0.1)

    def ase_diffusion(self, system: System, options: liquids.LiquidOptions) -> float:
        every = options.steps(options.window_ps) // options.lags
        atoms = to_ase(system)
        atoms.calc = MDGraphCalculator("water-pbe0", device="cpu", check=False)
        oxygens = atoms.numbers == 8
        places: list[Any] = []

        def look() -> None:
            places.append(atoms.positions[oxygens] - atoms.get_center_of_mass())

        dynamics = ase.md.verlet.VelocityVerlet(atoms, timestep=options.timestep * ase.units.fs)
        dynamics.attach(look, interval=every)
        dynamics.run(options.steps(options.nve_ps, 2 * options.lags))
        path = np.array(places)
        lags = np.arange(min(options.lags, len(path)))
        squares = [((path[k:] - path[: len(path) - k]) ** 2).sum(-1).mean() for k in lags]
        fs = lags * every * options.timestep
        inside = (fs >= options.fit[0] * fs[-1]) & (fs <= options.fit[1] * fs[-1])
        slopes = np.gradient(np.array(squares), fs) / 6.0
        return float(liquids.CM2_PER_S * slopes[inside].mean())

    def test_errors_are_the_larger_of_both(self) -> None:
        blocks = np.array([[1.0, 5.0], [1.0, 5.0]])[..., None]
        mean, error = liquids.mean_and_error(blocks)
        assert mean == pytest.approx(3.0)
        assert error == pytest.approx(2.0)
        _, error = liquids.mean_and_error(blocks.swapaxes(0, 1))
        assert error == pytest.approx(16.0**0.5 / 3.0**0.5 / 2.0)

    def test_training_frames_come_with_the_potential(
        self, script: Callable[[str], ModuleType]
    ) -> None:
        value, error = script("validate").training_distribution(None)
        assert np.isnan(error).all()
        peak, minimum = liquids.first_peak_and_minimum(value)
        assert value[peak] == pytest.approx(2.87, abs=0.01)
        assert 3.2 < liquids.bin_distances()[minimum] < 3.6


class TestCrystal:
    def test_copper_is_that_of_its_card(self, printed: Printed) -> None:
        """As metrics.json has it, too: `crystal` is where its figures come from."""
        metrics = json.loads((ROOT / "potentials/copper-pbe/metrics.json").read_text("utf-8"))
        (figure,) = [
            one["says"] for one in metrics["measured"] if "crystal copper-pbe" in one["command"]
        ]
        known = [float(one) for one in re.findall(r" (\d+(?:\.\d+)?)\b", figure)]
        said = re.findall(r"\d+\.\d+", printed("validate", "crystal", "copper-pbe"))
        constant, *others = map(float, said)
        assert constant == pytest.approx(known[0], abs=1e-3)
        assert others == pytest.approx(known[1:], abs=1.0)


class TestFaults:
    @pytest.mark.slow
    def test_each_is_repaired(self) -> None:
        done = subprocess.run(
            [sys.executable, SUPPORT / "faults.py", "overflow", "kill", "cuda"]
            + ["--steps", "32", "--overflows", "2", "--device", "cpu"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        _, _, overflow, kill, cuda = done.stdout.splitlines()
        assert "same bits" in overflow
        assert kill.split()[1:6] == ["-9", "0", "of", "32", "same"]
        assert "it needs a CUDA device" in cuda

    def test_other_bits_are_found(self, script: Callable[[str], ModuleType]) -> None:
        differing = script("faults").differing
        first: dict[str, Any] = {"x": torch.tensor([1.0, 2.0]), "log": [{"step": "1"}]}
        assert differing(first, {"x": torch.tensor([1.0, 2.0]), "log": [{"step": "1"}]}) == []
        other = {"x": torch.tensor([1.0, 2.0 + 1e-6]), "log": [{"step": "2"}], "more": 1}
        assert sorted(differing(first, other)) == ["log", "more", "x"]
