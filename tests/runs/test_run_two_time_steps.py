"""`mdgraph md --inner-potential`: whole outer steps, the large potential in all files, resuming."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished
from run_folders import content

from mdgraph.checkpoints import load, save
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.memory import run_memory
from mdgraph.runs import md, summary
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.md import resume, resume_or_start, start
from mdgraph.runs.potential import read_potential
from mdgraph.runs.protocol import read_protocol, run_protocol

Make = Callable[..., MDConfig]


@pytest.fixture(scope="session")
def small_potential(tiny_potential: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny potential with weaker forces, as a file."""
    potential = load(tiny_potential)
    potential.scale.fill_(27.0)
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    save(potential, path)
    return path


@pytest.fixture
def configured(
    tmp_path: Path,
    tiny_potential: Path,
    small_potential: Path,
    water_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    monkeypatch.setattr(md, "draw_picture", lambda *arguments: None)

    def make(**changes: Any) -> MDConfig:
        options = {
            "structure": str(water_file),
            "potential": str(tiny_potential),
            "inner_potential": str(small_potential),
            "inner_steps": 4,
            "out": str(tmp_path / "run"),
            "device": "cpu",
            "evaluator": "reference",
            "timestep_fs": 0.25,
            "steps": 24,
            "trajectory_interval": 4,
            "log_interval": 8,
            "checkpoint_interval": 8,
        }
        return MDConfig(**(options | changes))

    return make


def options_of(**changes: Any) -> MDConfig:
    return read_configuration(MDConfig, None, {"inner_potential": "small"} | changes)


def test_defaults_are_rounded_to_whole_outer_steps() -> None:
    plain = options_of(inner_steps=8, observe="averages,msd:40")
    assert (plain.total_steps, plain.steps_together, plain.outer_step_fs) == (504, 8, 4.0)
    assert plain.intervals == (16, 16, 1000)
    assert plain.observe == "averages:16,msd:40"
    assert options_of(time_ps=1.0, inner_steps=16).total_steps == 2000
    # 13,333.3 steps of 0.75 fs, of which 833 outer steps are the nearest.
    assert options_of(time_ps=10.0, timestep_fs=0.75, inner_steps=16).total_steps == 833 * 16
    assert options_of(log_interval_ps=0.1, inner_steps=32).intervals.log == 192


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 4),
        ({"timestep_fs": 1.0}, 2),
        ({"timestep_fs": 0.25}, 8),
        ({"timestep_fs": 1.5, "hydrogen_mass_amu": 3.024}, 2),
        ({"timestep_fs": 0.75, "hydrogen_mass_amu": 3.024}, 4),
        ({"timestep_fs": 3.0}, 2),
        ({"timestep_fs": 0.01}, 32),
    ],
)
def test_the_outer_step_is_2_fs_or_3_with_heavy_hydrogens(
    options: dict[str, Any], steps: int
) -> None:
    assert options_of(**options).inner_steps == steps


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 1001}, "steps is 1001 steps, .* every 8 steps .*; give 1000 or 1008"),
        ({"log_interval": 5}, "--log-interval is 5 steps, .*; give 8"),
        ({"trajectory_interval": 12}, "--trajectory-interval is 12 .*; give 8 or 16"),
        ({"checkpoint_interval": 100}, "give 96 or 104"),
        ({"uncertainty_interval": 100}, "--uncertainty-interval is 100 "),
        ({"remove_momentum": 10}, "--remove-momentum is 10 "),
        ({"chunk": 10}, "chunk is 10 "),
        ({"observe": "rdf:20"}, "observe rdf is 20 steps, .*; give 16 or 24"),
        ({"time_ps": 0.001}, "less than half an outer step of 4 fs"),
        ({"log_interval_ps": 0.001}, "0.25 outer steps of 4 fs"),
        ({"inner_steps": 5}, "--inner-steps is 5; it should be 2, 3, 4, 6, 8, 12, 16, 24 or 32"),
        (
            {"replicas": 2, "temperatures_K": "300,320", "exchange": 20},
            "exchange is 20 steps, .*; give 16 or 24",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_the_nearest(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        options_of(**({"inner_steps": 8} | options))


def test_inner_steps_need_an_inner_potential() -> None:
    with pytest.raises(InputError, match="name it by --inner-potential"):
        read_configuration(MDConfig, None, {"inner_steps": 4})


def test_files_hold_the_large_potential(configured: Make, tmp_path: Path) -> None:
    configuration = configured()
    start(configuration)
    log = read_log(tmp_path / "run" / "log.csv")
    assert log["step"].tolist() == [0, 8, 16, 24]
    assert set(log["outer_step_fs"]) == {1.0}
    with read_trajectory(tmp_path / "run" / "trajectory.h5md") as trajectory:
        systems, frames = [trajectory.system(n) for n in range(len(trajectory))], [*trajectory]
    assert [frame.step for frame in frames] == [*range(0, 25, 4)]
    for system, frame in zip(systems, frames, strict=True):
        large = Calculation([system], configuration.potential, device="cpu", evaluator="reference")
        large.compute()
        np.testing.assert_allclose(frame.forces, large.state.forces, atol=1e-5)
        assert frame.energy == pytest.approx(float(large.state.energy[0]), abs=1e-5)


def test_the_run_says_what_acts_when(configured: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        start(configured(timestep_fs=1.5))
    said = "acts every 1.5 fs, and tiny every 4 steps, an outer step of 6 fs"
    assert said in caplog.text
    assert "atoms of 1.01 amu vibrate fast enough to gain energy" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"potential": "water-pbe0-small", "inner_potential": "water-pbe0"}, "are exchanged"),
        ({"potential": "water-pbe0", "inner_potential": "water-pbe0"}, "the potential itself"),
        ({"potential": "water-pbe0", "inner_potential": "water-pbe0", "terms": ["zbl@1.5"]}, ""),
    ],
)
def test_an_inner_potential_that_saves_nothing_is_told(
    configured: Make, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    configuration = configured(timestep_fs=0.5, **changes)
    with caplog.at_level(logging.WARNING, logger="mdgraph"):
        summary.log_two_time_steps(configuration, read_potential(configuration))
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


@pytest.mark.parametrize(
    "options",
    [
        {"observe": "averages:4,msd:4,vacf:4"},
        {"ensemble": "npt", "pressure_bar": 1000.0, "observe": "averages:4"},
        {"ensemble": "npt-mtk", "pressure_bar": 1000.0},
    ],
)
def test_resumed_runs_have_the_bits_of_whole_ones(
    options: dict[str, Any], configured: Make, tmp_path: Path
) -> None:
    whole = configured(out=str(tmp_path / "whole"), **options)
    parts = configured(steps=16, **options)
    start(whole)
    start(parts)
    resume(tmp_path / "run", {"steps": 24})
    assert content(parts) == content(whole)


def test_the_record_names_the_inner_potential(
    configured: Make, tmp_path: Path, small_potential: Path, tiny_potential: Path
) -> None:
    start(configured(steps=8))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    inner = record["potential"]["inner"]
    assert inner["reference"] == record["configuration"]["inner_potential"] == str(small_potential)
    assert inner["sha256"] != record["potential"]["sha256"]
    with pytest.raises(InputError, match=r"The inner potential .*tiny.* is not the one"):
        resume(tmp_path / "run", {"inner_potential": str(tiny_potential)})
    with pytest.raises(InputError, match=r"steps is 18 steps, .*; give 16 or 20"):
        resume(tmp_path / "run", {"steps": 18})
    with pytest.raises(InputError, match="was begun with inner_steps 4, now it is 2"):
        resume_or_start(configured(steps=8, inner_steps=2))
    assert resume_or_start(configured(steps=16)).steps == 16
    assert resume(tmp_path / "run", extend_ps=0.0025).steps == 24  # 2.5 fs are two outer steps


def test_a_plain_run_takes_no_inner_potential_later(
    configured: Make, tmp_path: Path, small_potential: Path
) -> None:
    start(configured(inner_potential=None, inner_steps=None, steps=8))
    assert "inner" not in json.loads((tmp_path / "run" / "run.json").read_text())["potential"]
    assert "outer_step_fs" not in read_log(tmp_path / "run" / "log.csv")
    with pytest.raises(InputError, match="has no inner potential; leave --inner-potential out"):
        resume(tmp_path / "run", {"inner_potential": str(small_potential), "steps": 96})


def test_committees_speak_of_the_large_potential(
    configured: Make, tmp_path: Path, small_potential: Path, tiny_potential: Path
) -> None:
    """The spread is that of the members, whatever drives the steps."""
    configuration = configured(
        committee=(str(tiny_potential), str(small_potential)), uncertainty_interval=8
    )
    start(configuration)
    table = read_log(tmp_path / "run" / "uncertainty.csv")
    with read_trajectory(tmp_path / "run" / "trajectory.h5md") as trajectory:
        system = trajectory.system(2)
    found = []
    for path in (tiny_potential, small_potential):
        at = Calculation([system], path, device="cpu", evaluator="reference")
        at.compute()
        found.append(at.state.forces.numpy().copy())
    spread = np.sqrt(np.var(found, axis=0, ddof=1).sum(1)).max()
    assert table["largest_force_std_eV_per_A"][0] == pytest.approx(spread, rel=1e-3)


def test_an_element_that_the_small_potential_lacks_is_named(
    configured: Make, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="The inner potential: The potential does not know H, O"):
        start(configured(inner_potential="copper-pbe"))
    assert not (tmp_path / "run").exists()


def test_memory_of_both_is_counted(configured: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    works = []
    monkeypatch.setattr(
        summary, "run_memory", lambda work, **how: (works.append(work), run_memory(work, **how))[1]
    )
    start(configured(steps=0))
    assert [float(work.potential.scale) for work in works] == [30.0, 27.0]


def test_replicas_exchange_at_outer_steps(configured: Make, tmp_path: Path) -> None:
    start(configured(replicas=2, temperatures_K="300,330", exchange=8, steps=32))
    table = read_log(tmp_path / "run" / "exchanges.csv")
    assert table["step"].tolist() == [0, 8, 16, 24, 32]


def test_stages_of_a_protocol_have_two_time_steps(
    tmp_path: Path, configured: Make, water_file: Path
) -> None:
    known = configured()
    path = tmp_path / "stages.yaml"
    path.write_text(
        f"potential: {known.potential}\ninner_potential: {known.inner_potential}\n"
        "inner_steps: 4\ndevice: cpu\nevaluator: reference\ntimestep_fs: 0.25\n"
        "stages:\n- run: minimise\n  steps: 5\n- ensemble: nvt-bussi\n  steps: 8\n"
        "- ensemble: nve\n  steps: 16\n  inner_steps: 8\n"
    )
    stages = read_protocol(path, str(water_file), tmp_path / "protocol")
    outcome = run_protocol(stages, tmp_path / "protocol")
    assert outcome is not None
    assert outcome.steps == 16
    log = read_log(tmp_path / "protocol" / "03-nve" / "log.csv")
    assert set(log["outer_step_fs"]) == {2.0}


def test_the_command_line_takes_them(
    mdgraph_command: Callable[..., Finished], configured: Make, tmp_path: Path
) -> None:
    known = configured()
    shared = ["md", *(known.structure or ()), "--potential", known.potential, "--device", "cpu"]
    shared += ["--inner-potential", known.inner_potential, "--timestep-fs", 0.25]
    shared += ["--out", tmp_path / "run"]
    done = mdgraph_command(*shared, "--steps", 20)
    assert done.status == 1
    assert "steps is 20 steps, and the potential acts every 8 steps" in done.err
    done = mdgraph_command(*shared, "--steps", 32)
    assert done.status == 0, done.err
    assert "an outer step of 2 fs" in done.err
    configuration = json.loads((tmp_path / "run" / "run.json").read_text())["configuration"]
    assert (configuration["inner_steps"], configuration["evaluator"]) == (8, "fused")
