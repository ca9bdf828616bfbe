"""Lists that rest, and states and lists whose buffers lie in memory of the host."""

import pytest
import torch
from ase.build import bulk

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.host_tensors import on_host, zeros_on_host
from mdgraph.io.structures import from_ase
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROWS = ("index", "image", "reverse", "count", "wrap", "order")


def crystal(device: str, dtype: torch.dtype = torch.float64) -> State:
    atoms = bulk("Cu", "fcc", 3.64, cubic=True) * (6, 3, 3)
    atoms.rattle(0.1, seed=0)
    return State([from_ase(atoms)], device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leaves_device", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_a_list_that_rests_is_built_again_when_it_is_read(
    device: str, leaves_device: bool, limited: bool
) -> None:
    """To the same rows, from its reference or from one that was written meanwhile."""
    state = crystal(device)
    item = NeighborList(state, 3.0, 0.4)
    if limited:
        grid = BrickGrid((2, 1, 1))
        item.limit_(grid.brick(0, grid.planes(state.positions, state.cell, state.pbc)))
    builds, status = int(item.rebuilds), item.status()
    before = {name: getattr(item, name).clone() for name in ROWS}
    item.rest_(leaves_device=leaves_device)
    item.rest_(leaves_device=leaves_device)
    assert item.rests
    assert item.status() == status
    assert not bool(item.overflowed())
    assert item.rests
    for name in ROWS:
        assert torch.equal(getattr(item, name), before[name])
    assert not item.rests
    assert int(item.rebuilds) == builds
    item.rest_(leaves_device=leaves_device)
    moved = state.positions + 0.2 * torch.randn_like(state.positions)
    item.rebuild_(moved, state.cell)
    assert item.rests
    assert int(item.rebuilds) == builds + 1
    other = NeighborList(state, 3.0, 0.4, item.capacity, brick=item.brick)
    other.rebuild_(moved, state.cell)
    for name in ("count", "wrap", "order"):
        assert torch.equal(getattr(item, name), getattr(other, name))
    with pytest.raises(AttributeError):
        _ = item.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_state_that_leaves_the_device_is_as_before(device: str, dtype: torch.dtype) -> None:
    """Results lie side by side, which are read in one copy."""
    state, same = (crystal(device, dtype) for _ in range(2))
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    state.leave_device_()
    assert state.on_host
    for name, value in vars(same).items():
        if isinstance(value, torch.Tensor):
            found = getattr(state, name)
            assert torch.equal(found, value)
            assert (found.device, found.dtype) == (value.device, value.dtype)
    for value in (state.energy, state.energies, state.virial):
        value.add_(1.0)
    assert float(state.results[0].sum()) == float(len(state.energies) + 10)
    state.forces.add_(1.0)
    assert float(state.results[-1].max()) == 1.0
    assert state.zeros_like(state.forces).dtype == dtype
    assert torch.equal(state.grouping.sum(state.forces), state.forces.sum(0, keepdim=True))
    if device == "cuda":
        assert torch.cuda.memory_allocated() < before


@pytest.mark.gpu
def test_tensors_in_host_memory_take_none_of_a_gpu() -> None:
    """Kernels read and write them, and they outlive what they were made of."""
    device = torch.device("cuda")
    values = torch.randn(1000, 3, device=device)
    before = torch.cuda.memory_allocated()
    there = [on_host(values.to(dtype)) for dtype in (torch.float64, torch.int64, torch.bool)]
    zeros = zeros_on_host(5, dtype=torch.int32, device=device)
    assert torch.cuda.memory_allocated() == before
    assert torch.equal(there[0], values.double())
    rows = torch.randperm(1000, device=device)
    there[0].index_copy_(0, rows, values.double())
    assert torch.equal(there[0][rows], values.double())
    assert torch.equal(there[0].cpu(), there[0].clone().cpu())
    assert zeros.tolist() == [0] * 5
