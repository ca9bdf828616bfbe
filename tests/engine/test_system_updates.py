"""Another seed, charge or cell between two runs: as if the simulation had been made with it."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from ensembles import DYNAMICS, assert_same, bits, graphed, toy
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import (
    LangevinMiddle,
    MeanSquaredDisplacement,
    Simulation,
    VelocityVerlet,
)
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.gpu import launch
from mdgraph.models import Atoms
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.pairs import Pairs
from mdgraph.state import State
from mdgraph.system import System


class ChargedWells(HarmonicWells):
    """Wells whose stiffness grows with the total charge."""

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        super().evaluate_(state, lists)
        factor = 1.0 + state.charge
        state.forces.mul_(factor[state.grouping.index, None])
        state.energy.mul_(factor)


class ChargedArgon(LennardJones):
    uses_charge = True

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> torch.Tensor:
        return super().forward(atoms, pairs) * (1.0 + atoms.charge[atoms.grouping.index])


def liquid(system: System | Sequence[System], **options: object) -> Simulation:
    fixed = {"device": "cpu", "chunk": 5, "temperature": 120.0, "seed": 4, "skin": 0.3}
    return Simulation(
        system,
        ChargedArgon(0.0104, 3.4, 6.0),
        LangevinMiddle(4.0, 120.0),
        **fixed | options,  # type: ignore[arg-type]
    )


def same_forces(run: Simulation, expected: Simulation) -> None:
    for name in ("energy", "forces", "virial"):
        found, wanted = (getattr(one.state, name) for one in (run, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "before"),
    [*((name, 1) for name in DYNAMICS), ("langevin", 37), ("cell rescaling", 37)],
)
def test_a_seed_counts_from_the_next_step_on(name: str, before: int, captures) -> None:
    eager, recorded = toy(DYNAMICS[name]()), graphed(toy(DYNAMICS[name]()))
    other = toy(DYNAMICS[name](), seed=2**40)
    for run in (eager, recorded):
        run.run(before)
    count = len(captures)
    other.resume(eager.snapshot(), eager.degrees_of_freedom)
    for run in (eager, recorded):
        run.set(seed=2**40)
    for run in (eager, recorded, other):
        run.run(before)
    assert_same(eager, recorded)
    assert_same(eager, other)
    assert len(captures) == count


@pytest.mark.parametrize("name", ["langevin", "cell rescaling"])
def test_kernels_use_a_changed_seed_as_torch_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = []
    for by_kernels in (True, False):
        monkeypatch.setattr(launch, "step_kernels_on", lambda _, chosen=by_kernels: chosen)
        run = toy(DYNAMICS[name](), device=device, graph="off")
        run.run(2)
        run.set(seed=2**40)
        run.run(2)
        found.append(run.state.positions)
    torch.testing.assert_close(*found, rtol=0.0, atol=1e-12)


def charged(charge: Sequence[float]) -> Simulation:
    systems = [argon(1, seed).replace(charge=own) for seed, own in enumerate(charge)]
    wells = ChargedWells(torch.tensor(np.concatenate([one.positions for one in systems])), 0.5)
    return Simulation(
        systems, wells, LangevinMiddle(2.0, 300.0), device="cpu", chunk=8, temperature=300.0
    )


def test_captured_steps_read_a_changed_charge(captures) -> None:
    eager, recorded, other = charged([0.0, 0.0]), graphed(charged([0.0, 0.0])), charged([1.0, 3.0])
    for run in (eager, recorded):
        run.run(8)
    other.resume(eager.snapshot(), eager.degrees_of_freedom)
    other.calculation.compute()
    count = len(captures)
    for run in (eager, recorded):
        run.set(charge=[1.0, 3.0])
        same_forces(run, other)
    for run in (eager, recorded, other):
        run.run(8)
    assert_same(eager, recorded)
    assert_same(eager, other)
    assert len(captures) == count


def test_captured_steps_read_a_changed_cell_that_varies(captures) -> None:
    eager, recorded = (toy(DYNAMICS["full cell"]()) for _ in range(2))
    graphed(recorded)
    wanted = np.diag([6.5, 7.0, 6.0]) + 0.3
    for run in (eager, recorded):
        run.run(14)
    count = len(captures)
    for run in (eager, recorded):
        scaled = torch.linalg.solve(run.state.cell[0], run.state.positions[:6], left=False)
        run.set(cell=wanted)
        assert torch.equal(run.state.cell, torch.tensor(wanted).expand(2, 3, 3))
        again = torch.linalg.solve(run.state.cell[0], run.state.positions[:6], left=False)
        torch.testing.assert_close(again, scaled, rtol=0.0, atol=1e-13)
        run.run(14)
    assert len(captures) == count > 0
    assert_same(eager, recorded)


@pytest.mark.parametrize(("factor", "move_atoms"), [(0.95, True), (1.8, True), (1.3, False)])
def test_a_changed_constant_cell_gets_new_lists(factor: float, move_atoms: bool) -> None:
    run = liquid(argon(3))
    run.run(10)
    positions, cell = run.state.positions.clone(), run.state.cell[0] * factor
    run.set(cell=cell, move_atoms=move_atoms)
    expected = positions * factor if move_atoms else positions
    torch.testing.assert_close(run.state.positions, expected, rtol=1e-13, atol=1e-13)
    now = argon(3).replace(positions=run.state.positions.numpy(), cell=cell.numpy())
    fresh = liquid(now)
    same_forces(run, fresh)
    fresh.resume(run.snapshot(), run.degrees_of_freedom)
    for one in (run, fresh):
        one.run(20)
    assert torch.allclose(run.state.positions, fresh.state.positions, atol=1e-6)
    rows = run.calculation.lists[0]
    assert torch.equal(rows.count, fresh.calculation.lists[0].count)


def test_a_resumed_run_has_the_changed_seed_charge_and_cell(tmp_path) -> None:
    whole = liquid(argon(2))
    whole.run(7)
    wider = whole.state.cell[0].numpy() * 1.05
    whole.set(seed=11, charge=1.0, cell=wider)
    whole.run(6)
    save_restart(whole, tmp_path / "restart")
    whole.run(20)
    with pytest.raises(InputError, match="its charge differ"):
        load_restart_(liquid(argon(2)), tmp_path / "restart")
    resumed = liquid(argon(2).replace(charge=1.0, cell=wider))
    load_restart_(resumed, tmp_path / "restart")
    resumed.run(20)
    assert_same(whole, resumed)


def neutral() -> Simulation:
    potential = LennardJones(0.0104, 3.4, 6.0)
    return Simulation(
        argon(2), potential, VelocityVerlet(1.0), device="cpu", observe=[MeanSquaredDisplacement(5)]
    )


@pytest.mark.parametrize(
    ("make", "values", "words"),
    [
        (liquid, {"seed": -1}, "seed is -1; it must be a whole number"),
        (liquid, {"seed": 1.5}, r"seed is 1\.5; it must be a whole number"),
        (liquid, {"charge": [1.0, 2.0]}, "charge is .* one for all systems or for each"),
        (liquid, {"charge": float("nan")}, "charge is nan; it must be a number"),
        (liquid, {"charge": "much"}, "charge is 'much'; it must be a number"),
        (neutral, {"charge": 1.0}, "the potential takes no total charge"),
        (liquid, {"cell": 12.0}, r"cell is 12\.0; give finite numbers, \(3, 3\) of them"),
        (liquid, {"cell": np.ones((3, 3))}, "cell is singular"),
        (liquid, {"cell": 0.1 * np.eye(3)}, "too few for any matter"),
        (lambda s=None: liquid(argon(2), fixed=[0]), {"cell": 12.0 * np.eye(3)}, "Fixed atoms"),
        (neutral, {"cell": 12.0 * np.eye(3)}, "takes for diffusion; keep all positions"),
        (liquid, {"seed": 9, "charge": 1.0, "cell": 12 * np.eye(3), "friction": -1.0}, "friction"),
        (liquid, {"seed": 9, "charge": 1.0, "spin": 2}, "no parameter 'spin'"),
    ],
)
def test_a_refused_change_leaves_the_state(make, values, words: str) -> None:
    run = make() if make is neutral else make(argon(2))
    before = {name: value.clone() for name, value in bits(run).items()}
    with pytest.raises(InputError, match=words):
        run.set(**values)
    for name, value in bits(run).items():
        assert torch.equal(value, before[name]), name
    assert (int(run.state.seed), float(run.state.charge)) == (4 if make is not neutral else 0, 0.0)


def test_a_cell_that_overlaps_images_is_refused_and_undone() -> None:
    places = [[1.0, 1.0, 1.0], [1.5, 2.0, 9.0], [7.0, 6.0, 4.0], [6.0, 2.0, 8.0]]
    sparse = System([18] * 4, places, cell=12.0 * np.eye(3), pbc=True)
    run, plain = liquid(sparse), liquid(sparse)
    onto = [[12.0, 0.0, 0.0], [0.0, 12.0, 0.0], [0.5, 1.0, 8.0]]
    with pytest.raises(InputError, match="Atoms 0 and 1 are at the same place"):
        run.set(cell=onto, move_atoms=False)
    for one in (run, plain):
        one.run(15)
    assert_same(run, plain)
