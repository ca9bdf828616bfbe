"""`mdgraph bench`: the table of modes, the parts of a step, the picture."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mdgraph.analysis.plots import speed_figure
from mdgraph.analysis.rdf import smallest_height
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.structures import read_system
from mdgraph.neighbors import NeighborList
from mdgraph.runs import bench
from mdgraph.runs.bench import (
    PARTS,
    ModeError,
    milliseconds,
    modes,
    profile,
    water,
)
from mdgraph.state import State

Command = Callable[..., Any]
CPU = torch.device("cpu")


class Uncaptured:
    """Takes the place of a graph: calls the function again."""

    pool = None

    def __init__(self, function: Callable[[], None], device: Any, calls: int = 1, pool: Any = None):
        self.function, self.calls = function, calls

    def replay(self) -> None:
        for _ in range(self.calls):
            self.function()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the modes of CUDA run on a CPU."""
    for module in ("engine.step_graphs", "runs.bench"):
        monkeypatch.setattr(f"mdgraph.{module}.captured", Uncaptured)


@pytest.fixture
def simulation(tiny_potential: Path, water_file: Path) -> Simulation:
    return Simulation(
        read_system(water_file),
        tiny_potential,
        LangevinMiddle(0.5, 300.0, 1.0),
        device="cpu",
        precision="double",
        check=False,
    )


class TestTable:
    def test_every_mode_has_a_row(
        self, mdgraph_command: Command, tiny_potential: Path, water_file: Path
    ) -> None:
        command = ["bench", tiny_potential, water_file, "--device", "cpu", "--seconds", 0.5]
        done = mdgraph_command(*command, "--json")
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert found["ladder"][0]["name"].startswith("reference")
        assert found["ladder"][-1]["name"] == found["name"]
        assert found["name"].startswith("fused")
        for row in found["ladder"]:
            assert row["reason"] is None
            assert row["ns_per_day"] == pytest.approx(43.2 / row["step_ms"])
            assert row["atom_steps_per_s"] == pytest.approx(6e3 / row["step_ms"])
            assert row["speedup"] == pytest.approx(found["ladder"][0]["step_ms"] / row["step_ms"])
            assert 50e6 < row["peak_memory_bytes"] < 50e9
        gains = [row["gain"] for row in found["ladder"]]
        assert np.prod(gains) == pytest.approx(found["ladder"][-1]["speedup"])
        assert sum(one["share"] for one in found["parts"].values()) == pytest.approx(1.0)
        assert (found["skin_A"], found["steps_per_replay"]) == (0.3, None)
        printed = mdgraph_command(*command).out
        for row in found["ladder"]:
            assert row["name"] in printed
        assert "runs eagerly, with a skin of 0.3 A" in printed

    def test_the_modes_of_cuda_have_rows(
        self,
        graphs: None,
        mdgraph_command: Command,
        tiny_potential: Path,
        water_file: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        on_cuda = modes(torch.device("cuda"))
        monkeypatch.setattr(bench, "modes", lambda device: on_cuda)
        picture = tmp_path / "bars.svg"
        command = ["bench", tiny_potential, water_file, "--device", "cpu", "--seconds", 0.5]
        done = mdgraph_command(*command, "--json", "--picture", picture)
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert [row["reason"] for row in found["ladder"]] == [None] * 4
        assert [row["name"].split(",")[0] for row in found["ladder"]].count("reference") == 2
        assert b"</svg>" in picture.read_bytes()

    def test_without_arguments_water_is_made(self, mdgraph_command: Command) -> None:
        done = mdgraph_command(
            "bench", "--atoms", 12, "--device", "cpu", "--seconds", 0.3, "--json"
        )
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert (found["potential"], found["formula"]) == ("water-pbe0", "H8 O4")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--precision", "double"], "double evaluates the network itself"),
            (["--evaluator", "reference"], "--evaluator reference leaves it out"),
        ],
    )
    def test_a_mode_that_does_not_run_says_why(
        self,
        mdgraph_command: Command,
        tiny_potential: Path,
        water_file: Path,
        options: list[str],
        reason: str,
    ) -> None:
        command = ["bench", tiny_potential, water_file, "--device", "cpu", "--seconds", 0.1]
        printed = mdgraph_command(*command, *options)
        assert printed.status == 0, printed.err
        lines = [line for line in printed.out.splitlines() if line.startswith("fused")]
        assert len(lines) == 1
        assert all(line.endswith(reason) for line in lines)

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("available_memory", lambda device: 1000, "GB are free"),
            ("_SECONDS_PER_BYTE", {"cpu": 1.0}, "give more --seconds"),
        ],
    )
    def test_what_does_not_fit_is_left_out(
        self,
        mdgraph_command: Command,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        value: Any,
        reason: str,
    ) -> None:
        monkeypatch.setattr(bench, name, value)
        command = ["bench", tiny_potential, water_file, "--device", "cpu", "--seconds", 0.1]
        printed = mdgraph_command(*command)
        assert printed.status == 0, printed.err
        (line,) = (one for one in printed.out.splitlines() if one.startswith("reference"))
        assert line.endswith(reason)
        assert "fused, list every step" in printed.out

    def test_memory_that_runs_out_is_said(
        self,
        mdgraph_command: Command,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def refuse(*arguments: Any) -> None:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(AutogradEvaluator, "evaluate_", refuse)
        command = ["bench", tiny_potential, water_file, "--device", "cpu", "--seconds", 0.1]
        printed = mdgraph_command(*command)
        assert printed.status == 0, printed.err
        (line,) = (one for one in printed.out.splitlines() if one.startswith("reference"))
        assert line.endswith("cpu ran out of memory")

    @pytest.mark.parametrize("what", ["CUDA error: device-side assert triggered", "no such thing"])
    def test_a_gpu_that_fails_is_said(
        self,
        mdgraph_command: Command,
        monkeypatch: pytest.MonkeyPatch,
        what: str,
        tmp_path: Path,
    ) -> None:
        def fail(*arguments: Any) -> None:
            raise RuntimeError(f"{what}\nCompile with more flags.")

        monkeypatch.setattr(AutogradEvaluator, "evaluate_", fail)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))
        command = ["bench", "--atoms", 6, "--evaluator", "reference", "--device", "cpu"]
        if "CUDA" not in what:
            with pytest.raises(RuntimeError, match=what):
                mdgraph_command(*command)
            return
        done = mdgraph_command(*command)
        assert done.status == 1
        assert done.err.splitlines()[-1].startswith(f"mdgraph: error: The GPU failed ({what}).")
        assert "--resume" in done.err
        assert "another process" not in done.err
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        assert "It may be another process's doing" in mdgraph_command(*command).err

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--atoms", 10], "not a multiple of that; ask for 9."),
            (["--atoms", 12, "--picture", "bars.bmp"], ".png, .svg, .pdf files"),
            (["--atoms", 12, "--picture", "nowhere/bars.png"], "no folder for the picture"),
            (["water-pbe0", "nowhere.xyz", "--atoms", 3], "give one"),
        ],
    )
    def test_wrong_arguments_end_in_one_sentence(
        self, mdgraph_command: Command, arguments: list[Any], sentence: str
    ) -> None:
        done = mdgraph_command("bench", *arguments)
        assert done.status == 1
        assert sentence in done.err
        assert done.err.count("\n") == 1

    @pytest.mark.gpu
    def test_on_cuda(self, mdgraph_command: Command, tmp_path: Path) -> None:
        picture = tmp_path / "bars.png"
        done = mdgraph_command("bench", "--seconds", 4, "--json", "--picture", picture)
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert len(found["ladder"]) == 4
        assert all(row["reason"] is None for row in found["ladder"])
        assert found["ladder"][3]["step_ms"] < found["ladder"][2]["step_ms"]
        # Each part is timed by itself, so that what else the GPU does may change any share.
        assert all(found["parts"][name]["ms"] > 0.0 for name in PARTS)
        assert picture.stat().st_size > 10_000


class TestModes:
    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_all_take_the_same_steps(
        self, graphs: None, simulation: Simulation, device: str
    ) -> None:
        with simulation.unchanged():
            simulation.run(9)
            expected = simulation.state.positions.clone()
        for mode in modes(torch.device(device)):
            with simulation.unchanged():
                mode.prepare(simulation)(9)
                assert simulation.step == 9, mode.name
                moved = simulation.state.positions
                torch.testing.assert_close(moved, expected, rtol=0.0, atol=1e-10, msg=mode.name)

    def test_a_failed_capture_is_said(
        self, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("engine.step_graphs", "runs.bench"):
            monkeypatch.setattr(f"mdgraph.{module}.captured", lambda *_, **options: None)
        refused = 0
        for mode in modes(torch.device("cuda")):
            if "in a graph" in mode.name:
                with simulation.unchanged(), pytest.raises(ModeError, match="no CUDA graph"):
                    mode.prepare(simulation)
                refused += 1
        assert refused == 1


class Slow:
    """An evaluator without forces that takes its time."""

    cutoffs = (3.0,)
    seconds = 0.02

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        time.sleep(self.seconds)
        for tensor in (state.forces, state.energies, state.energy, state.virial):
            tensor.zero_()


@pytest.mark.parametrize("graphed", [False, True])
def test_parts_of_a_step_are_told_apart(
    graphs: None, water_file: Path, monkeypatch: pytest.MonkeyPatch, graphed: bool
) -> None:
    simulation = Simulation(
        read_system(water_file), Slow(), LangevinMiddle(0.5, 300.0, 1.0), device="cpu"
    )
    simulation.step_graphs.graphed = graphed
    monkeypatch.setattr(bench, "_IN_A_GRAPH", 2)
    before = simulation.state.positions.clone()
    rebuild = NeighborList.rebuild_

    def slow_build(*arguments: Any) -> None:
        time.sleep(0.03)
        rebuild(*arguments)

    monkeypatch.setattr(NeighborList, "rebuild_", slow_build)
    found = profile(simulation, 3.0, 0.4)
    assert found["model"] == pytest.approx(20.0, abs=8.0)
    assert found["neighbor list"] == pytest.approx(10.0, abs=6.0)
    assert found["integrator"] < 8.0
    assert torch.equal(simulation.state.positions, before)


def test_times_are_of_one_call() -> None:
    calls = []

    def repeated(count: int) -> None:
        calls.append(count)
        time.sleep(0.01 * count)

    found = milliseconds(repeated, CPU, 0.5, whole=4)
    assert found == pytest.approx(10.0, rel=0.3)
    assert all(count % 4 == 0 for count in calls[2:])


_LOOK_AT_MEMORY = """
import torch
from mdgraph.runs.bench import begin_peak, peak_memory
device = torch.device("cpu")
for _ in range(5):
    begin_peak(device)
    before = peak_memory(device)
    block = torch.ones(50_000_000)
    del block
    after = peak_memory(device)
    begin_peak(device)
    print(before, after, peak_memory(device))
"""


def test_memory_is_that_of_the_moment() -> None:
    # A system that reclaims idle pages may take some of a process between two looks, and most of
    # one that is as large as that of all tests; so this one is small, and looks again.
    words = [sys.executable, "-c", _LOOK_AT_MEMORY]
    looks = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(looks) == 5
    assert any(
        after - before > 190e6 and after - again > 100e6
        for before, after, again in (map(int, look.split()) for look in looks)
    ), looks


def test_water_is_a_liquid() -> None:
    box = water(192)
    molecules = box.positions.reshape(-1, 3, 3)
    bonds = np.linalg.norm(molecules[:, 1:] - molecules[:, :1], axis=-1)
    assert bonds == pytest.approx(0.957, abs=1e-3)
    assert box.volume / 64 == pytest.approx(29.9)
    assert smallest_height(box.cell) == pytest.approx(12.4, abs=0.1)
    with pytest.raises(InputError, match="three atoms"):
        water(100)


def _found(steps: Sequence[float | None]) -> dict[str, Any]:
    names = [mode.title("fused") for mode in modes(torch.device("cuda"))]
    rows: list[dict[str, Any]] = []
    for name, step in zip(names, steps, strict=False):
        row: dict[str, Any] = {"name": name, "reason": None, "step_ms": step}
        if step is None:
            row = {"name": name, "reason": "it needs about 150.3 GB, and 139.1 GB are free"}
        else:
            row |= {"ns_per_day": 43.2 / step, "speedup": (steps[0] or steps[2] or 0.0) / step}
        rows.append(row)
    parts = {"model": 0.7, "neighbor list": 0.2, "integrator": 0.06, "rest": 0.04}
    return {
        "ladder": rows,
        "parts": {name: {"ms": 12345.6 * one, "share": one} for name, one in parts.items()},
        "precision": "mixed",
        "timestep_fs": 0.5,
    }


def _overlapping(figure: Figure) -> list[str]:
    """Pairs of words of a figure that lie on each other, and words that leave it."""
    figure.draw_without_rendering()
    (ladder, parts), (_, subtitle) = figure.axes, figure.texts
    drawn = [*ladder.texts, *parts.texts, *ladder.get_yticklabels(), *parts.get_yticklabels()]
    drawn += [subtitle, ladder.xaxis.label, parts.xaxis.label, *parts.get_legend().get_texts()]
    for axes in figure.axes:
        low, high = axes.get_xlim()
        ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        drawn += [label for place, label in ticks if low <= place <= high]
    boxes = [(one.get_text(), one.get_window_extent()) for one in drawn]
    wrong = [
        f"{first} | {second}"
        for (first, box), (second, other) in itertools.combinations(boxes, 2)
        if box.overlaps(other)
    ]
    outer = figure.bbox
    return wrong + [
        text
        for text, box in boxes
        if box.x0 < outer.x0 or box.x1 > outer.x1 or box.y0 < outer.y0 or box.y1 > outer.y1
    ]


@pytest.mark.parametrize(
    "steps",
    [
        (23.1, 17.9, 2.31, 0.33),
        (None, None, 123.4, 98.0),
        (51234.5, 812.3, 800.1),
        (1.0, 1.0, 1.0),
    ],
)
def test_words_of_the_picture_do_not_overlap(steps: Sequence[float | None], tmp_path: Path) -> None:
    figure = speed_figure(_found(steps), "water-pbe0, H65536 O32768 (98,304 atoms), NVIDIA H200")
    assert _overlapping(figure) == []
    figure.savefig(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 10_000
