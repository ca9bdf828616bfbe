"""A system alone, in any batch and with any number of threads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prepared import ended
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
    batches = [([system] * 2, 1), ([system] * 9, 4), ([*others, system, others[0]], len(others))]
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


PROGRAM = """
import sys
import numpy as np
import torch
from prepared import ended
from random_networks import TENSORNET, TENSORNET2, crystal, network
from mdgraph.engine.calculation import Calculation
torch.set_num_threads(int(sys.argv[1]))
rows = []
for settings in (TENSORNET, TENSORNET2 | {"coulomb": {"cutoff": 5.0}}):
    potential = network(**settings | {"channels": 32})
    for precision, evaluator in (("mixed", "fused"), ("double", "fused"), ("double", "reference")):
        batch = [crystal(6)] * 12
        one = Calculation(batch, potential, precision=precision, evaluator=evaluator, device="cpu")
        one.compute()
        numbers = [one.state.energy.double().flatten(), one.state.forces.double().flatten()]
        rows.append(torch.cat(numbers).numpy())
np.save(sys.argv[2], np.stack(rows))
"""


def test_any_number_of_threads_gives_the_same_bits(processes: Any, tmp_path: Path) -> None:
    rows = []
    for threads in ("1", "2"):
        path = tmp_path / f"{threads}.npy"
        done = ended(processes, ["-c", PROGRAM, threads, path])
        assert done.returncode == 0, done.stderr
        rows.append(np.load(path))
    one, two = (row.reshape(2, 3, -1) for row in rows)
    np.testing.assert_array_equal(one[:, :2], two[:, :2])
    np.testing.assert_allclose(one[:, 2], two[:, 2], rtol=0, atol=1e-11)
