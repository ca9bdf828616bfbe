"""A system alone, in any batch and with any number of threads."""

import pytest
import torch
from random_networks import TENSORNET, TENSORNET2, crystal, molecule, network

from mdgraph.engine.calculation import Calculation
from mdgraph.models import TensorNetPotential
from mdgraph.system import System

PRIOR = {"kind": "torchmdnet_prior", "cutoff": 3.0}
POTENTIALS = {
    "TensorNet": TENSORNET | {"channels": 16, "repulsion": [PRIOR]},
    "TensorNet2": TENSORNET2 | {"channels": 16, "coulomb": {"cutoff": 5.0}},
}
NEAR = {True: [crystal(n, seed=n) for n in (2, 4, 7)], False: [molecule(n, seed=n) for n in (3, 5)]}


@pytest.fixture(scope="module", params=POTENTIALS.values(), ids=POTENTIALS)
def potential(request: pytest.FixtureRequest) -> TensorNetPotential:
    return network(**request.param)


def found(
    potential: TensorNetPotential, batch: list[System], place: int, precision: str, evaluator: str
) -> tuple[float, torch.Tensor]:
    """Energy and forces of one system of a batch."""
    one = Calculation(batch, potential, precision=precision, evaluator=evaluator, device="cpu")
    one.compute()
    sizes = one.state.grouping.sizes
    return one.state.energy[place].item(), one.state.forces.split(sizes)[place].double()


@pytest.mark.parametrize("system", [molecule(7), crystal(6)], ids=["molecule", "crystal"])
@pytest.mark.parametrize(
    ("precision", "evaluator"),
    [("mixed", "fused"), ("double", "fused"), ("double", "reference")],
)
def test_a_system_has_the_same_bits_alone_and_in_a_batch(
    potential: TensorNetPotential, system: System, precision: str, evaluator: str
) -> None:
    others = NEAR[bool(system.pbc.any())]
    batches = [([system] * 2, 1), ([*others, system, others[0]], len(others))]
    if evaluator == "fused":
        batches.append(([system] * 9, 4))
    energy, forces = found(potential, [system], 0, precision, evaluator)
    for batch, place in batches:
        other_energy, other_forces = found(potential, batch, place, precision, evaluator)
        if evaluator == "fused":
            assert other_energy == energy
            assert torch.equal(other_forces, forces)
        else:
            # torch's products and functions choose their instructions by shape.
            assert abs(other_energy - energy) < 1e-12 * len(system)
            torch.testing.assert_close(other_forces, forces, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("precision", "evaluator"),
    [("mixed", "fused"), ("double", "fused"), ("double", "reference")],
)
def test_any_number_of_threads_gives_the_same_bits(
    potential: TensorNetPotential, precision: str, evaluator: str
) -> None:
    batch, found = [crystal(6)] * (12 if evaluator == "fused" else 4), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        one = Calculation(batch, potential, precision=precision, evaluator=evaluator, device="cpu")
        one.compute()
        found.append(torch.cat([one.state.energy, one.state.forces.double().flatten()]))
    bound = 0.0 if evaluator == "fused" else 1e-11
    torch.testing.assert_close(*found, rtol=0.0, atol=bound)
