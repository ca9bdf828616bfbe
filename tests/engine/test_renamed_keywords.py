"""Keywords and restart files of 0.1.0: taken, keywords with a FutureWarning."""

import json
from pathlib import Path
from typing import Any

import pytest
from ensembles import assert_same, toy

from mdgraph.engine import (
    FIRE,
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
)
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.io.tensor_files import read_tensors, serialize

OLD = {"relaxation": "tau", "cell_relaxation": "tau_p", "ways": "cell_dof"}


@pytest.mark.parametrize(
    ("integrator", "plain", "named"),
    [
        (StochasticVelocityRescaling, (1.0, 300.0), {"relaxation": 70.0}),
        (NoseHooverChains, (1.0, 300.0), {"relaxation": 70.0}),
        (MartynaTobiasKlein, (1.0, 300.0, 0.0), {"relaxation": 70.0, "cell_relaxation": 700.0}),
        (
            StochasticCellRescaling,
            (1.0, 300.0, 0.0),
            {"relaxation": 70.0, "cell_relaxation": 700.0, "ways": "full"},
        ),
        (FIRE, (), {"ways": "axes"}),
    ],
)
def test_integrators_take_old_keywords_with_a_warning(
    integrator: type[Integrator], plain: tuple[float, ...], named: dict[str, Any]
) -> None:
    with pytest.warns(FutureWarning) as warned:
        old = integrator(*plain, **named)
    assert [str(one.message) for one in warned] == [
        f"{name} is now {OLD[name]}; the old name goes with release 0.3.0." for name in named
    ]
    assert {one.filename for one in warned} == {__file__}
    current = integrator(*plain, **{OLD[name]: value for name, value in named.items()})
    assert old.settings() == current.settings()


def test_both_names_are_refused() -> None:
    with pytest.raises(InputError, match="relaxation is the old name of tau; give tau alone"):
        NoseHooverChains(1.0, 300.0, relaxation=1.0, tau=2.0)


def test_a_simulation_changes_by_old_names_with_a_warning() -> None:
    run = toy(NoseHooverChains(1.0, 300.0))
    with pytest.warns(FutureWarning, match="relaxation is now tau"):
        run.set(relaxation=77.0)
    assert run.integrator.values()["tau"].tolist() == [77.0, 77.0]


def test_a_restart_file_with_old_names_goes_on(tmp_path: Path) -> None:
    def barostat() -> Integrator:
        return StochasticCellRescaling(2.0, 300.0, 1e-3, tau=50.0, tau_p=300.0, compressibility=1.0)

    whole, resumed = toy(barostat()), toy(barostat())
    whole.run(9)
    path = tmp_path / "restart.safetensors"
    save_restart(whole, path)
    tensors, metadata = read_tensors(path, "a restart file")
    record = json.loads(metadata["mdgraph.restart"])
    settings = record["integrator"]
    for old, new in (("relaxation", "tau"), ("cell_relaxation", "tau_p")):
        settings[f"{old}_fs"] = settings.pop(f"{new}_fs")
        tensors[f"integrator.schedule.{old}"] = tensors.pop(f"integrator.schedule.{new}")
    path.write_bytes(serialize(tensors, {"mdgraph.restart": json.dumps(record)}))
    load_restart_(resumed, path)
    for run in (whole, resumed):
        run.run(11)
    assert_same(whole, resumed)


def test_a_restart_file_without_the_heat_of_langevin_dynamics_goes_on(tmp_path: Path) -> None:
    whole, resumed = (toy(LangevinMiddle(2.0, 300.0, 20.0)) for _ in range(2))
    whole.run(9)
    path = tmp_path / "restart.safetensors"
    save_restart(whole, path)
    heat = whole.integrator.tensors()["heat"]
    assert heat.abs().min() > 0.0
    tensors, metadata = read_tensors(path, "a restart file")
    del tensors["integrator.heat"]
    path.write_bytes(serialize(tensors, metadata))
    load_restart_(resumed, path)
    heat.zero_()
    for run in (whole, resumed):
        run.run(11)
    assert_same(whole, resumed)
