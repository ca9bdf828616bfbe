"""The check of the evaluator at a start sees the potential alone, and leaves biased forces."""

from typing import Any

import numpy as np
import pytest
import torch
from toys import LennardJones

from mdgraph.biases import Distance, HarmonicBias
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.system import System


@pytest.mark.parametrize("biased", [True, False])
def test_the_check_sees_no_bias_and_leaves_it(
    monkeypatch: pytest.MonkeyPatch, biased: bool
) -> None:
    seen: list[torch.Tensor] = []

    def check(evaluator: Any, state: Any, lists: Any, precision: Any) -> None:
        seen.append(state.forces.clone())
        evaluator.evaluate_(state, lists)

    monkeypatch.setattr("mdgraph.engine.simulation.self_check", check)
    system = System(np.array([18, 18]), np.array([[0.0, 0.0, 0.0], [2.4, 0.0, 0.0]]))
    run = Simulation(
        system,
        LennardJones(0.01, 2.0, 4.0),
        LangevinMiddle(1.0, 300.0, 1.0),
        device="cpu",
        check=True,
        variables={"d": Distance([0, 1])},
        biases=[HarmonicBias("d", centre=3.4, stiffness=2.0)] if biased else [],
    )
    (alone,) = seen
    pull = 2.0 * biased  # eV/A that pushes the atoms apart
    change = (run.state.forces - alone)[:, 0].tolist()
    assert change == pytest.approx([-pull, pull], abs=1e-4)
    assert float(alone[1, 0]) < 0.5
