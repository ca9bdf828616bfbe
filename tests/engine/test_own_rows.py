"""Triton's kernels on the own atoms of a rank: beside torch."""

import pytest
import torch
from numpy.typing import NDArray

from mdgraph.decomposition.own_rows import BLOCK, MarginStart
from mdgraph.decomposition.row_operations import TorchRows
from mdgraph.fused.backend import NetworkResult
from mdgraph.gpu.launch import HAS_TRITON
from mdgraph.neighbors.geometry import complete_cell, inverse
from mdgraph.state import State
from mdgraph.system import System

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")

if HAS_TRITON:
    from mdgraph.decomposition.own_kernels import KernelRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ATOMS, ROWS, OWN = 400, 5 * BLOCK, 150


def system(dtype: torch.dtype, pbc: tuple[bool, bool, bool], seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    cell = torch.eye(3) * 12.0 + torch.rand(3, 3, generator=generator)
    places = torch.rand(ATOMS, 3, generator=generator) * 30.0 - 9.0
    numbers: NDArray = torch.full((ATOMS,), 8).numpy()
    one = System(numbers, places.double().numpy(), cell.double().numpy(), pbc)
    return State([one], DEVICE, dtype)


def own_atoms() -> tuple[torch.Tensor, torch.Tensor]:
    """Atoms (ROWS,) and which rows are used (ROWS,): the first again behind those."""
    atoms = torch.randperm(ATOMS, generator=torch.Generator().manual_seed(1))[:OWN].sort().values
    atoms = torch.cat([atoms, atoms[:1].expand(ROWS - OWN)])
    return atoms.to(DEVICE), (torch.arange(ROWS) < OWN).to(DEVICE)


def random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(DEVICE)


def result_of(rows: int, dtype: torch.dtype, generator: torch.Generator) -> NetworkResult:
    return NetworkResult(
        constant=random(generator, rows),
        energies=random(generator, rows),
        forces=random(generator, rows, 3).to(dtype),
        virials=random(generator, 9, rows),
    )


def both() -> list[TorchRows | KernelRows]:
    return [TorchRows(), KernelRows()]


@pytest.mark.parametrize("cell_varies", [False, True])
@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, True)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_positions_of_own_atoms_and_the_margin_that_they_need(
    dtype: torch.dtype, pbc: tuple[bool, bool, bool], cell_varies: bool
) -> None:
    atoms, used = own_atoms()
    found = []
    for rows in both():
        state = system(dtype, pbc, 0)
        start = MarginStart(
            state, ROWS, 5.5, (True, False, True), cell_varies=cell_varies,
            programs=rows.programs(ROWS),
        )  # fmt: skip
        own = state.positions[atoms].clone()
        completed = complete_cell(state.cell.double(), state.pbc)
        places = state.positions.double() @ inverse(completed)[0]
        start.begin_(atoms, places, completed, inverse(completed))
        seen = []
        for step in range(3):
            moved = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(step)) - 0.5
            own += (2 - step) * moved.to(own)
            own[used.logical_not()] += 40.0
            if cell_varies:
                state.cell *= 1.01
            rows.put_(own, atoms, used, state, start)
            seen.append(float(start.needed.amax()))
        assert seen[0] > 1.0
        found.append((state.positions, torch.tensor(seen)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    assert torch.equal(found[1][0][atoms], found[0][0][atoms])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_messages_hold_rows_and_flags(dtype: torch.dtype) -> None:
    source = random(torch.Generator().manual_seed(0), ROWS, 3).to(dtype)
    entries = torch.cat([torch.arange(0, 300, 2), torch.tensor([-1, -2]), torch.arange(1, 90, 3),
                         torch.tensor([-1, -2])]).to(DEVICE)  # fmt: skip
    written = torch.cat([torch.arange(150), torch.tensor([-1, -2]), 200 + torch.arange(30),
                         torch.tensor([-1, -2])]).to(DEVICE)  # fmt: skip
    for flags in ([0, 1], [1, 0]):
        found = []
        for rows in both():
            sent = torch.tensor(
                [[flag, 7, 7, 7] for flag in flags], dtype=torch.int32, device=DEVICE
            )
            met, target = sent.new_zeros(2, 4), source * 0.0
            met[0, 0] = 1
            message = source.new_empty(len(entries), 3)
            rows.pack_(source, entries, sent, message)
            rows.unpack_(message, written, target, met)
            own = target.new_empty(150, 3)
            rows.gather_(source, entries[:150], own)
            assert torch.equal(own, target[:150])
            found.append((target, met))
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
        target, met = found[1]
        assert torch.equal(target[:150], source[:300:2])
        assert torch.equal(target[200:230], source[1:90:3])
        assert met[:, 0].tolist() == [1, flags[1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_results_of_own_atoms_and_their_sums(dtype: torch.dtype) -> None:
    atoms, used = own_atoms()
    generator, local = torch.Generator().manual_seed(3), 190
    place = torch.randint(0, local, (ATOMS,), generator=generator).int().to(DEVICE)
    result, constant = result_of(local, dtype, generator), random(generator, ATOMS)
    found = []
    for rows in both():
        state = system(dtype, (True, True, True), 0)
        rows.take_(atoms, used, place, result, constant, state)
        found.append((state.forces, state.energies, state.energy, state.virial))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert found[1][2].abs() > 1.0


def test_sums_do_not_depend_on_room() -> None:
    """To the bit, as chunks are repeated in larger buffers."""
    atoms, used = own_atoms()
    generator = torch.Generator().manual_seed(3)
    place = torch.arange(ATOMS, device=DEVICE).int()
    result, constant = result_of(ATOMS, torch.float64, generator), random(generator, ATOMS)
    found = []
    for more in (0, 150 * BLOCK):
        state = system(torch.float64, (True, True, True), 0)
        wide = torch.cat([atoms, atoms[:1].expand(more)]), torch.cat([used, used.new_zeros(more)])
        KernelRows().take_(*wide, place, result, constant, state)
        found.append((state.energy, state.virial))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
