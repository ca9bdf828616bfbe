"""Constants that TorchMD-Net and MatGL round to float32, also where they run in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from random_networks import TENSORNET, evaluated, network

from mdgraph.fused.evaluator import FusedTensorNet, NotFusedError
from mdgraph.models import RadialBasisConfig
from mdgraph.models.ops.features import squared_norms
from mdgraph.models.radial import radial_basis
from mdgraph.system import System

# Of MatGL 4.1.2 for three orders, four zeros and 5 A, before their cast to float64.
BESSEL_NORMS = (
    (0.39738351106643677, 0.7947670221328735, 1.1921504735946655, 1.589534044265747),
    (0.5822814702987671, 0.9853283762931824, 1.385062336921692, 1.7837388515472412),
    (0.7640774250030518, 1.1718571186065674, 1.574365258216858, 1.9748021364212036),
)


def test_norms_of_spherical_bessel_functions_are_those_of_matgl() -> None:
    config = RadialBasisConfig(kind="spherical_bessel", number=12, orders=3)
    basis = radial_basis(config, 0.0, 5.0)
    torch.testing.assert_close(
        basis.get_buffer("norms"), torch.tensor(BESSEL_NORMS, dtype=torch.float64), rtol=0, atol=0
    )


def test_powers_of_the_nuclear_charge_are_float32_rounded_to_nearest() -> None:
    prior = network(**TENSORNET, repulsion=[{"kind": "torchmdnet_prior", "cutoff": 3.0}])
    powers = prior.repulsions[0].get_buffer("powers")
    exact = np.arange(119.0) ** 0.23
    assert torch.equal(powers, torch.from_numpy(exact.astype(np.float32).astype(np.float64)))


@pytest.mark.parametrize("pair", [(27, 79), (16, 17), (18, 33)], ids=str)
def test_repulsion_of_a_pair_is_the_same_in_any_batch(pair: tuple[int, int]) -> None:
    """torch's own powers differ by a bit between few numbers and many."""
    species = (16, 17, 18, 27, 33, 79)
    prior = {"kind": "torchmdnet_prior", "cutoff": 3.0}
    potential = network(**TENSORNET | {"species": species, "repulsion": [prior]})
    dimer = System(pair, [[0.0, 0.0, 0.0], [0.4, 0.3, 0.2]])
    alone = evaluated(potential, dimer)
    many = evaluated(potential, *[dimer] * 40)
    torch.testing.assert_close(many.energy, alone.energy.expand(40), rtol=0, atol=1e-11)


def test_squared_norms_of_scalars_carry_the_rounded_third() -> None:
    exact, rounded = (network(**TENSORNET, rounded_third=value) for value in (False, True))
    features = torch.randn(5, 9, 6, dtype=torch.float64)
    norms = squared_norms(features)
    norms[:, 0] *= 3.0 * float(np.float32(1.0 / 3.0))
    x = exact.network.norm(norms.flatten(1))
    expected = torch.nn.functional.silu(exact.network.linear(x))
    found = rounded.network.invariants(features)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    change = (found - exact.network.invariants(features)).abs().max()
    assert 1e-10 < change < 1e-7


def test_the_rounded_third_vanishes_in_float32() -> None:
    system = System([8, 1, 1], [[0.0, 0.0, 0.0], [0.9, 0.2, 0.0], [-0.3, 0.9, 0.1]])
    exact, rounded = (
        evaluated(network(**TENSORNET, rounded_third=value), system, kind=torch.float32)
        for value in (False, True)
    )
    assert torch.equal(exact.energy, rounded.energy)
    assert torch.equal(exact.forces, rounded.forces)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"activation": "softexp", "activation_parameter": 0.4}, "softexp"),
        ({"dispersion": {"cutoff": 5.0}}, "dispersion"),
        ({"reduction": "mean"}, "mean over atoms"),
        (
            {
                "repulsion": [
                    {"kind": "torchmdnet_network", "cutoff": 3.4, "cutoff_lower": 0.5},
                ]
            },
            "lower cutoff",
        ),
    ],
)
def test_networks_without_a_fused_form_say_why(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotFusedError, match=reason):
        FusedTensorNet(network(**TENSORNET | settings))
