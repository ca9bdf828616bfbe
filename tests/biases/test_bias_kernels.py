"""The kernels of biases against the tensors that say the same.

Triton's interpreter runs them where there is no CUDA device.
"""

from typing import Any

import numpy as np
import pytest
import torch
from backends import CUDA, device_of

from mdgraph.biases import (
    Angle,
    Bias,
    Combination,
    CoordinationNumber,
    Dihedral,
    Distance,
    HarmonicBias,
    Metadynamics,
    Position,
    WallBias,
)
from mdgraph.biases.applied import AppliedBiases
from mdgraph.state import State
from mdgraph.system import System

DEVICE = device_of("triton")
CELLS = {
    "no cell": (None, False),
    "right angles": (np.diag([7.0, 8.0, 9.0]), True),
    "skewed": (np.array([[7.0, 0.0, 0.0], [3.2, 7.5, 0.0], [-2.9, 3.1, 8.0]]), True),
}
VARIABLES = {
    "d": Distance([0, [1, 2, 3]]),
    "a": Angle([1, 2, 4]),
    "phi": Dihedral([0, 1, 2, 3]),
    "psi": Dihedral([1, 2, [3, 5], 4]),
    "z": Position([0, 4], (1.0, 2.0, 0.5), origin=2),
    "sum": Combination({"phi": 1.0, "psi": -2.0}),
}
BIASES = {
    "spring": HarmonicBias(["phi", "d"], centre=[3.0, 2.5], stiffness=[0.7, 1.1]),
    "windows": HarmonicBias("sum", centre=[[-3.0], [1.0]], stiffness=2.0),
    "one": Metadynamics("phi", sigma=0.4, height=0.1, every=2, bias_factor=6.0, temperature=300.0),
    "shared": Metadynamics(
        "a", sigma=0.2, height=0.1, every=1, minimum=0.0, maximum=3.2, shared=True
    ),
    "two": Metadynamics(
        ["phi", "sum"], sigma=0.5, height=0.1, every=1, bias_factor=6.0, temperature=300.0
    ),
    "three": Metadynamics(
        ["phi", "z", "d"], sigma=1.2, height=0.1, every=1, minimum=[-np.pi, -9.0, 0.0],
        maximum=[np.pi, 9.0, 9.0], points=[13, 36, 20],
    ),
}  # fmt: skip


def states(cell: str) -> list[State]:
    lattice, pbc = CELLS[cell]
    generator = np.random.default_rng(5)
    systems = [
        System(
            numbers=[6, 7, 8, 6, 6, 1][:size] + [1] * (size - 6),
            positions=generator.normal(scale=2.0, size=(size, 3)),
            cell=np.zeros((3, 3)) if lattice is None else lattice,
            pbc=pbc,
        )
        for size in (6, 8)
    ]
    made = []
    for _ in range(2):
        state = State(systems, DEVICE)
        state.forces.copy_(torch.from_numpy(generator.normal(size=(14, 3))))
        state.virial.copy_(torch.from_numpy(generator.normal(size=(2, 3, 3))))
        made.append(state)
    made[1].forces.copy_(made[0].forces)
    made[1].virial.copy_(made[0].virial)
    made[0].systems, made[1].systems = systems, systems
    return made


def applied(state: State, bias: Bias, *, by_kernel: bool) -> AppliedBiases:
    own = AppliedBiases(VARIABLES, [bias], state.systems, state)
    if by_kernel:
        own.use_kernels()
        assert own._kernel is not None
    else:
        own.use_tensors()
    return own


CASES = [("spring", "skewed"), ("shared", "right angles"), ("two", "no cell")]
if CUDA:  # the interpreter takes seconds for each
    CASES += [(bias, cell) for bias in BIASES for cell in CELLS if (bias, cell) not in CASES]


@pytest.mark.parametrize(("bias", "cell"), CASES)
def test_kernels_do_what_tensors_do(bias: str, cell: str) -> None:
    own, other = states(cell)
    kernel = applied(own, BIASES[bias], by_kernel=True)
    tensors = applied(other, BIASES[bias], by_kernel=False)
    generator = torch.Generator().manual_seed(3)
    for step in range(1, 4 if CUDA else 3):
        moves = 0.05 * torch.randn(14, 3, generator=generator, dtype=torch.float64)
        pulls = []
        for one, state in ((kernel, own), (tensors, other)):
            state.positions.add_(moves.to(state.device))
            state.step.fill_(step)
            pulls.append(one.add_(state))
            one.end_step_(step)
        torch.testing.assert_close(*pulls, rtol=1e-10, atol=1e-10)
        for name in ("forces", "energies", "energy", "virial"):
            got, expected = getattr(own, name), getattr(other, name)
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        for name, tensor in kernel.tensors().items():
            torch.testing.assert_close(tensor, tensors.tensors()[name], rtol=1e-10, atol=1e-10)
    assert float(pulls[0].abs().max()) > 1e-3


def test_leaving_a_grid_is_noticed() -> None:
    own, _ = states("no cell")
    kernel = applied(
        own,
        Metadynamics("d", sigma=0.1, height=0.1, every=1, minimum=0.0, maximum=5.0),
        by_kernel=True,
    )
    kernel.add_(own)
    assert not bool(kernel.outside())
    own.positions[0] += 30.0
    kernel.add_(own)
    assert bool(kernel.outside())


@pytest.mark.parametrize(
    ("variables", "biases"),
    [
        (VARIABLES, [BIASES["spring"], BIASES["one"]]),
        (VARIABLES, [WallBias("d", upper=3.0)]),
        ({"n": CoordinationNumber([[0], [1, 2]], r0=2.0)}, [HarmonicBias("n", centre=1.0)]),
        (VARIABLES, []),
    ],
)
def test_what_kernels_have_not_is_left_to_tensors(variables: Any, biases: Any) -> None:
    state, _ = states("no cell")
    own = AppliedBiases(variables, biases, state.systems, state)
    own.use_kernels()
    assert own._kernel is None


@pytest.mark.parametrize("by_kernel", [True, False])
def test_hills_of_walkers_on_other_ranks_are_added_between_steps(by_kernel: bool) -> None:
    state, _ = states("no cell")
    bias = Metadynamics(
        ["a", "phi"], sigma=0.8, height=0.1, every=2, minimum=[0.0, -np.pi], maximum=[4.0, np.pi],
        bias_factor=5.0, temperature=[300.0] * 2, shared=True,
    )  # fmt: skip
    whole = AppliedBiases(VARIABLES, [bias], state.systems, state)
    ranked = State(state.systems[:1], DEVICE)
    part = AppliedBiases(VARIABLES, [bias.of_systems(range(1), 2)], state.systems[:1], ranked)
    for one in (whole, part):
        one.use_kernels() if by_kernel else one.use_tensors()
    own, other = whole.bound[0], part.bound[0]
    for step in range(1, 5):
        state.positions += 0.1
        state.positions[::3] -= 0.2
        state.step.fill_(step)
        ranked.step.fill_(step)
        whole.add_(state)
        values, energies = own.own(whole.values).T.clone(), own.energy.clone()
        whole.end_step_(step)
        before = other.values.clone()
        part.end_step_(step)
        assert torch.equal(other.values, before)
        part.add_hills_("metadynamics", values, energies)
        assert torch.equal(other.values, own.values)
        assert torch.equal(other.records, own.records)
    assert float(energies.abs().max()) > 0.1
    assert own.records[1:3].all()


def test_hills_on_variables_of_groups() -> None:
    variables = {"n": CoordinationNumber([[0], [1, 2]], r0=2.0)}
    hills = Metadynamics("n", sigma=0.2, height=0.1, every=1, minimum=-0.5, maximum=2.5)
    ends = []
    for state, by_kernel in zip(states("no cell"), (True, False), strict=True):
        own = AppliedBiases(variables, [hills], state.systems, state)
        own.use_kernels() if by_kernel else own.use_tensors()
        for step in (1, 2):
            state.positions[0] += 0.1
            state.step.fill_(step)
            own.add_(state)
            own.end_step_(step)
        assert not bool(own.outside())
        state.positions[0] += 0.1
        own.add_(state)
        ends.append((own.energies.clone(), state.forces.clone(), own.bound[0].records.clone()))
    assert float(ends[0][0].abs().max()) > 0.01
    for got, expected in zip(*ends, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
