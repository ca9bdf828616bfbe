"""The atoms that a rank has: those near its brick, and no buffer of the size of the system."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from prepared import prepared_ranks

from mdgraph.decomposition import region as regions
from mdgraph.decomposition.bricks import BrickGrid, wrapped_in
from mdgraph.decomposition.exchange import LocalExchange
from mdgraph.decomposition.region import Region
from mdgraph.io.structures import from_ase
from mdgraph.state import State

ROOT = Path(__file__).resolve().parents[2]


class Side(LocalExchange):
    """Rank 0, which keeps what it shares, or another rank, which gets that."""

    alone = False

    def __init__(self, messages: list[torch.Tensor], *, leads: bool) -> None:
        super().__init__(2)
        self.messages, self.leads = messages, leads
        self.numbers: Sequence[int] = (0,) if leads else (1,)

    def share_(self, values: torch.Tensor) -> Callable[[], None]:
        if self.leads:
            self.messages.append(values.clone())
        else:
            values.copy_(self.messages.pop(0))
        return lambda: None


@pytest.mark.parametrize("piece", [7, 1000])
def test_a_region_has_the_atoms_near_its_brick_and_grows(
    monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """In any pieces: in order, then others in the places that are left; more than fit are told."""
    monkeypatch.setattr(regions, "PIECE", piece)
    atoms = bulk("Cu", "fcc", 3.64, cubic=True) * (20, 1, 1)
    atoms.positions += np.random.default_rng(1).uniform(-20.0, 20.0, atoms.positions.shape)
    atoms.numbers[::3] = 8
    whole, grid, messages = from_ase(atoms), BrickGrid((4, 1, 1)), list[torch.Tensor]()
    start = State([whole])
    planes = grid.planes(start.positions, start.cell, start.pbc)
    brick, reach = grid.brick(1, planes), 4.0
    first = Region.of(start, Side(messages, leads=True))
    assert Region.of(start, first._exchange) is first

    def is_near(places: torch.Tensor) -> torch.Tensor:
        wrapped, _, inverted = wrapped_in(places, start.cell, start.pbc)
        return brick.is_near(wrapped, inverted, start.pbc, reach)

    near = is_near(start.positions)
    device = torch.device("cpu")
    state, region = Region.near(
        whole, torch.float64, device, near.numpy(), Side(messages, leads=False)
    )
    more = torch.rand(len(whole), 2, generator=torch.Generator().manual_seed(0))
    moved = start.positions.clone()

    def share() -> list[torch.Tensor]:
        places = [start.positions, moved]
        first.share_(start.numbers, places, [], [more], brick, reach)
        cells, others = [start.cell, start.cell], [state.positions.new_zeros(1, 2).float()]
        return region.share_(state.numbers, [state.positions] * 2, cells, others, brick, reach)

    for _ in range(2):
        chosen = (is_near(start.positions) | is_near(moved)).nonzero().flatten()
        found = share()
        if bool(region.outgrown()):
            assert len(chosen) > len(region.atoms)
            assert region.agree_()
            found = share()
        assert not bool(region.outgrown())
        assert len(chosen) < len(region.atoms) < len(whole)
        assert torch.equal(region.atoms[: len(chosen)], chosen)
        assert len(region.atoms.unique()) == len(region.atoms)  # no place is empty
        for value, one in zip([*found, state.positions, state.numbers],
                              [start.positions, moved, more, start.positions, start.numbers],
                              strict=True):  # fmt: skip
            assert torch.equal(value, one[region.atoms])
        assert torch.equal(state.elements[state.kinds], state.numbers)
        values = torch.zeros(len(region.atoms), dtype=torch.float64)
        first.share_rows_(torch.arange(len(whole), dtype=torch.float64))
        region.share_rows_(values)
        assert torch.equal(values, region.atoms.double())
        assert not messages
        moved[:, 0] += 20.0  # many more that count
    assert region.generation == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_coordinates_have_the_same_bits_among_any_atoms(dtype: torch.dtype) -> None:
    """Else ranks, which have different ones, would not agree about who owns an atom."""
    generator = torch.Generator().manual_seed(0)
    cell = (torch.eye(3) * 11.0 + torch.rand(3, 3, generator=generator)).to(dtype)[None]
    places = (torch.randn(1003, 3, generator=generator) * 30.0).to(dtype)
    pbc = torch.tensor([[True, False, True]])
    found = wrapped_in(places, cell, pbc)[0]
    for count in (1, 2, 5, 17, 64, 333):
        assert torch.equal(wrapped_in(places[-count:], cell, pbc)[0], found[-count:])
    assert found[:, [0, 2]].min() >= 0.0
    assert found[:, [0, 2]].max() <= 1.0


MEMORY = """
import gc, json, sys
import torch
from domain_speed import device_tensors, tensor_bytes
from mdgraph.decomposition import evaluator as evaluators
from mdgraph.decomposition.references import SystemReference
from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.engine.own_steps import OwnSteps
from mdgraph.io.structures import read_system
out, domains, atoms = sys.argv[1:]
evaluators.MARGIN = 1.0
before, make, take = [], SystemReference.region, OwnSteps._advance_
def region(*arguments):  # the potential is there already, and on rank 0 the system
    found = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    whole = {one.untyped_storage().data_ptr() for one in found if int(atoms) in one.shape}
    sizes = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}
    before.append(sum(size for place, size in sizes.items() if place not in whole))
    return make(*arguments)
def advance(self, *arguments):
    take(self, *arguments)
    domain = self._divided()[0].domains[0]
    rows = len(self._region.atoms), domain.capacity.rows
    whole = [one.shape for one in device_tensors(self) if int(atoms) in one.shape]
    found = {"bytes": tensor_bytes(self) - before[0], "rows": rows, "whole": whole}
    json.dump(found, open(f"{out}/memory{domain.number}.json", "w"))
SystemReference.region, OwnSteps._advance_ = region, advance
run = Simulation(read_system(f"{out}/start.extxyz"), "copper-pbe", VelocityVerlet(1.0), seed=1,
    device="cpu", temperature=300.0, domains=domains, check=None)
run.run(2)
"""


def test_memory_of_ranks_falls_with_their_number(processes: Any, tmp_path: Path) -> None:
    """All tensors of a rank, in bytes, of which nothing has the size of the system.

    But what rank 0 has of all atoms on its host.
    """
    atoms = bulk("Cu", "fcc", 3.64, cubic=True) * (61, 2, 2)
    atoms.write(tmp_path / "start.extxyz")
    (tmp_path / "memory.py").write_text(MEMORY, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    env, pipe, found = os.environ | {"PYTHONPATH": paths}, subprocess.PIPE, {}
    for count in (2, 4):
        words = ["memory.py", tmp_path, f"{count}x1x1", len(atoms)]
        ranks = prepared_ranks(processes, words, count, env=env, cwd=tmp_path, stderr=pipe)
        said = "".join(rank.communicate()[1] for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0] * count, said
        for rank in range(count):
            text = (tmp_path / f"memory{rank}.json").read_text(encoding="utf-8")
            found[count, rank] = json.loads(text)
            assert found[count, rank]["whole"] == []
    for rank in (0, 1):
        (region, rows), (smaller, fewer) = (found[count, rank]["rows"] for count in (2, 4))
        assert smaller < region < len(atoms)
        # Half a megabyte are weights of the network.
        ratio = (found[4, rank]["bytes"] - 5e5) / (found[2, rank]["bytes"] - 5e5)
        assert ratio < 1.1 * max(smaller / region, fewer / rows), found
