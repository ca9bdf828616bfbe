"""Who is warned that rounded forces do not conserve energy."""

import logging
from typing import Any

import pytest
import torch
from random_networks import TENSORNET, molecule, network

from mdgraph.engine import (
    FIRE,
    Integrator,
    LangevinMiddle,
    NoseHooverChains,
    Simulation,
    VelocityVerlet,
)
from mdgraph.fused.evaluator import FusedTensorNet

PLACE = "cuda" if torch.cuda.is_available() else "cpu"  # there, Triton's interpreter runs
POTENTIAL = network(**TENSORNET | {"layers": 0})


@pytest.mark.parametrize(
    ("integrator", "precision", "warned"),
    [
        (VelocityVerlet(0.1), "fast", True),
        (VelocityVerlet(0.1), "mixed", False),
        (LangevinMiddle(0.1, 300.0), "fast", False),
        (NoseHooverChains(0.1, 300.0), "fast", False),
        (FIRE(), "fast", False),
    ],
    ids=["fast without a bath", "mixed", "noise", "a bath that conserves", "downhill"],
)
def test_fast_at_constant_energy_is_warned_of(
    integrator: Integrator, precision: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = FusedTensorNet(POTENTIAL, precision, PLACE, "triton")
    expected = (
        "Precision fast rounds forces, which are then not the exact derivative of an energy, so "
        "the total energy drifts at constant energy; choose mixed."
    )
    steps = int(warned)  # a warning comes once
    found = warnings(caplog, given, integrator, precision, steps, device=PLACE)
    assert found == [expected] * warned


@pytest.mark.parametrize("evaluator", ["reference", "fused"])
def test_fast_that_computes_as_mixed_is_not(
    evaluator: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"device": "cpu", "evaluator": evaluator}
    assert warnings(caplog, POTENTIAL, VelocityVerlet(0.1), "fast", **options) == []


def warnings(
    caplog: pytest.LogCaptureFixture,
    potential: Any,
    integrator: Integrator,
    precision: str,
    steps: int = 1,
    **options: str,
) -> list[str]:
    with caplog.at_level(logging.INFO, "mdgraph"):
        run = Simulation(
            molecule(2), potential, integrator, precision=precision, check=False, **options
        )
        run.run(steps)
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
