"""Mixed systems of openmm-ml with a potential on a GPU, on the platforms of OpenMM."""

from pathlib import Path
from typing import Any

import numpy as np
import openmm
import openmmml
import pytest
from openmm_contexts import context_of, force_field, looked
from openmm_water import topology

pytestmark = pytest.mark.gpu

SUBSET = [0, 1, 2]
DEVICE = "cuda"
ROUNDING = 2e-5
"""Relative, of sums in float32 by OpenMM's platforms and by the potential."""


@pytest.fixture(params=["CUDA", "CPU"])
def platform(request: pytest.FixtureRequest) -> str:
    number = openmm.Platform.getNumPlatforms()
    if request.param not in [openmm.Platform.getPlatform(n).getName() for n in range(number)]:
        pytest.skip(f"this OpenMM has no {request.param} platform")
    return str(request.param)


def mixed(potential: Path, device: str, **options: Any) -> openmm.System:
    top = topology()
    ml = openmmml.MLPotential("mdgraph", modelPath=str(potential))
    return ml.createMixedSystem(
        top, force_field(top), SUBSET, check=False, device=device, **options
    )


def assert_close(
    found: tuple[float, np.ndarray], expected: tuple[float, np.ndarray], scale: float
) -> None:
    assert found[0] == pytest.approx(expected[0], abs=ROUNDING * scale)
    largest = np.abs(expected[1]).max()
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=ROUNDING * largest)


def test_mixed_systems_obey_the_sum_rule(tiny_potential: Path, platform: str) -> None:
    """At 0 the force field, at 1 the mixture, halfway the mean; forces too."""
    context = context_of(mixed(tiny_potential, DEVICE, interpolate=True), platform=platform)
    found = {}
    for share in (0.0, 0.5, 1.0):
        context.setParameter("lambda_interpolate", share)
        found[share] = looked(context)
    plain = looked(context_of(force_field(topology()), platform=platform))
    whole = looked(context_of(mixed(tiny_potential, DEVICE), platform=platform))
    scale = max(abs(plain[0]), abs(whole[0]))
    assert abs(plain[0] - whole[0]) > 100.0 * ROUNDING * scale
    halfway = tuple(0.5 * (one + other) for one, other in zip(plain, whole, strict=True))
    for share, expected in ((0.0, plain), (0.5, halfway), (1.0, whole)):
        assert_close(found[share], expected, scale)


@pytest.mark.parametrize("interpolate", [False, True])
def test_mixed_systems_agree_with_the_reference_platform(
    tiny_potential: Path, platform: str, interpolate: bool
) -> None:
    """There in float64, with the potential on the CPU; then some steps of each."""
    here = context_of(mixed(tiny_potential, DEVICE, interpolate=interpolate), platform=platform)
    there = context_of(mixed(tiny_potential, "cpu", interpolate=interpolate))
    expected = looked(there)
    assert_close(looked(here), expected, abs(expected[0]))
    for one in (here, there):
        one.getIntegrator().step(20)
    energy, forces = looked(here)
    assert np.isfinite(energy)
    assert np.isfinite(forces).all()
    assert energy == pytest.approx(looked(there)[0], rel=1e-4)
