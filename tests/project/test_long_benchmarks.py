"""The benchmarks of physics and of faults: what they compute, and that they go on exactly."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from repository import ROOT, SUPPORT

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
