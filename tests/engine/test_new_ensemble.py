"""An ensemble that one file outside of the package adds: `examples/09_own_ensemble.py`."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ensembles import KELVIN, assert_same, graphed, toy
from repository import ROOT

from mdgraph.engine import Ramp, StochasticCellRescaling, StochasticVelocityRescaling
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.ensembles import ENSEMBLES, Ensemble, Option, register, unregister
from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration

WORD = "nvt-andersen"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def andersen() -> Iterator[Any]:
    """The integrator of the example, registered while these tests run."""
    path = ROOT / "examples" / "09_own_ensemble.py"
    spec = importlib.util.spec_from_file_location("own_ensemble", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.Andersen
    unregister(WORD)
    assert WORD not in ENSEMBLES
    assert "collision_rate_per_ps" not in MDConfig.model_fields


def test_captures_takes_changes_and_resumes(andersen: Any, captures: Any, tmp_path: Path) -> None:
    eager, recorded = toy(andersen(1.0, KELVIN, 50.0)), graphed(toy(andersen(1.0, KELVIN, 50.0)))
    for run in (eager, recorded):
        run.run(37)
        run.set(collision_rate=80.0, temperature=Ramp(200.0, 400.0, 20))
        run.run(10)
    assert_same(eager, recorded)
    save_restart(eager, tmp_path / "restart.safetensors")
    resumed = toy(andersen(1.0, KELVIN, 50.0))
    load_restart_(resumed, tmp_path / "restart.safetensors")
    for run in (eager, resumed):
        run.run(20)
    assert_same(eager, resumed)


def test_kernels_of_a_base_do_not_stand_in_for_what_a_subclass_changes() -> None:
    class OwnCoupling(StochasticVelocityRescaling):
        def couple_(self, state: Any, now: Any) -> None:
            pass

    class OwnName(StochasticVelocityRescaling):
        pass

    class OwnKernels(StochasticVelocityRescaling):
        def couple_(self, state: Any, now: Any) -> None:
            pass

        def move_by_kernels_(self, state: Any) -> None:
            pass

    assert not OwnCoupling.has_kernels
    assert OwnName.has_kernels
    assert OwnKernels.has_kernels
    assert StochasticCellRescaling.has_kernels


def test_samples_its_temperature(andersen: Any) -> None:
    run = toy(andersen(1.0, 250.0, 500.0), systems=400, chunk=100)
    run.run(50)
    kelvin = run.observables().temperature
    assert abs(kelvin.mean() - 250.0) < 4 * kelvin.std() / len(kelvin) ** 0.5


def test_the_command_line_knows_its_word_and_option(
    andersen: Any, mdgraph_command: Run, tmp_path: Path, tiny_potential: Path, water_file: Path
) -> None:
    text = " ".join(mdgraph_command("md", "--help").out.split())
    assert "npt-mtk or nvt-andersen." in text
    assert "For nvt-andersen: how often an atom collides with the bath (default 1)." in text
    common = [water_file, "--potential", tiny_potential, "--ensemble", WORD, "--timestep-fs", 0.25]
    common += ["--collision-rate-per-ps", 200, "--checkpoint-interval", 6, "--log-interval", 1]
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert mdgraph_command("md", *common, "--steps", 20, "--out", whole).status == 0
    assert mdgraph_command("md", *common, "--steps", 8, "--out", parted).status == 0
    done = mdgraph_command("md", "--resume", "--steps", 20, "--out", parted)
    assert done.status == 0, done.err
    record = json.loads((parted / "run.json").read_text())
    assert record["configuration"]["collision_rate_per_ps"] == 200.0
    assert record["chosen"]["integrator"]["collision_rate_per_ps"] == 200.0
    logs = [read_log(folder / "log.csv") for folder in (whole, parted)]
    for name in ("potential_energy_eV", "temperature_K"):
        np.testing.assert_array_equal(logs[0][name], logs[1][name])
    ends = []
    for folder in (whole, parted):
        with read_trajectory(folder / "end.extxyz") as trajectory:
            ends.append(trajectory[0])
    np.testing.assert_array_equal(ends[0].positions, ends[1].positions)
    np.testing.assert_array_equal(ends[0].velocities, ends[1].velocities)


def test_a_protocol_and_replicas_take_it(
    andersen: Any, mdgraph_command: Run, tmp_path: Path, tiny_potential: Path, water_file: Path
) -> None:
    file, out = tmp_path / "protocol.yaml", tmp_path / "stages"
    file.write_text(
        f"potential: {tiny_potential}\nsteps: 4\ncheck: false\nstages:\n- ensemble: {WORD}\n"
        f"  temperature_K: 100:300\n  collision_rate_per_ps: 9\n- ensemble: nvt-langevin\n"
    )
    done = mdgraph_command("protocol", file, water_file, "--out", out)
    assert done.status == 0, done.err
    record = json.loads((out / f"01-{WORD}" / "run.json").read_text())
    assert record["configuration"]["collision_rate_per_ps"] == 9.0
    ladder = ["--replicas", 2, "--temperatures-K", "200:400", "--exchange", 2, "--steps", 4]
    common = [water_file, "--potential", tiny_potential, "--ensemble", WORD, *ladder]
    done = mdgraph_command("md", *common, "--out", tmp_path / "ladder")
    assert done.status == 0, done.err


def test_what_cannot_be_is_refused_by_name(andersen: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nvt-andersen has no --tau-fs; leave it out, or choose"):
        read_configuration(MDConfig, None, {"ensemble": WORD, "tau_fs": 50.0})
    with pytest.raises(InputError, match=f"npt has no --collision-rate-per-ps; .* choose {WORD}"):
        read_configuration(MDConfig, None, {"ensemble": "npt", "collision_rate_per_ps": 5.0})
    with pytest.raises(InputError, match=r"--collision-rate-per-ps is -1.0; it should be greater"):
        read_configuration(MDConfig, None, {"ensemble": WORD, "collision_rate_per_ps": -1.0})
    with pytest.raises(InputError, match=r"The collision rate is -1.0 1/ps; it must be"):
        andersen(1.0, KELVIN, -1.0)


def test_words_and_options_of_others_are_not_taken(andersen: Any) -> None:
    with pytest.raises(InputError, match="There is an ensemble 'langevin' already"):
        register(Ensemble("mine", andersen, aliases=("langevin",)))
    rate = Option("tau_fs", keyword="tau", default=1.0, help="rate", unit="1/ps")
    with pytest.raises(InputError, match="nvt-bussi has an option tau_fs of another unit or range"):
        register(Ensemble("mine", andersen, options=(rate,)))
    assert "mine" not in ENSEMBLES


def test_runs_of_other_ensembles_go_on_without_it(
    mdgraph_command: Run, tmp_path: Path, tiny_potential: Path, water_file: Path
) -> None:
    register(
        Ensemble("mine", "mine.Mine", options=(Option("rate", "rate", 1.0, help="rate", unit=""),))
    )
    common = [water_file, "--potential", tiny_potential, "--steps", 2, "--out", tmp_path / "run"]
    try:
        assert mdgraph_command("md", *common).status == 0
    finally:
        unregister("mine")
    assert "rate" in json.loads((tmp_path / "run" / "run.json").read_text())["configuration"]
    done = mdgraph_command("md", "--resume", "--steps", 4, "--out", tmp_path / "run")
    assert done.status == 0, done.err
