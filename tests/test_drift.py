"""Who is warned that rounded forces do not conserve energy."""

import logging

import pytest
from random_networks import TENSORNET, molecule, network

from mdgraph.engine import (
    FIRE,
    Integrator,
    LangevinMiddle,
    NoseHooverChains,
    Simulation,
    VelocityVerlet,
)


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
    with caplog.at_level(logging.INFO, "mdgraph"):
        run = Simulation(
            molecule(4),
            network(**TENSORNET | {"layers": 0}),
            integrator,
            device="cpu",
            precision=precision,
            evaluator="reference",
        )
        run.run(2)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    expected = (
        "Precision fast lets kernels round forces, which are then not the exact derivative of "
        "an energy, so the total energy drifts at constant energy; choose mixed."
    )
    assert warnings == [expected] * warned
