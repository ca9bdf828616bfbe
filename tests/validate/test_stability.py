"""The probe of stability sees what breaks, and counts what does not."""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from repository import ROOT
from scipy.signal import lfilter

from mdgraph.engine import Simulation
from mdgraph.io.structures import from_ase, read_systems
from mdgraph.system import System
from mdgraph.validate import stability
from mdgraph.validate.bonds import BondGraph, NeighborGraph, shortest_distances
from mdgraph.validate.stability import (
    StabilityMonitor,
    StabilityOptions,
    StabilityResult,
    Start,
    largest_deviation,
    temperature_deviations,
)

CPU = torch.device("cpu")


def pair(shift: float = 0.0, cell: float = 0.0) -> System:
    """Two water molecules 2.8 A apart; a hydrogen of the first one drawn away by `shift` A."""
    waters = [molecule("H2O"), molecule("H2O")]
    waters[1].positions += [2.8, 0.0, 0.0]
    atoms = waters[0] + waters[1]
    arm = atoms.positions[1] - atoms.positions[0]
    atoms.positions[1] += shift * arm / np.linalg.norm(arm)
    if cell:
        atoms.positions %= cell
    return System(atoms.numbers, atoms.positions, cell * np.eye(3), np.full(3, bool(cell)))


def look(watch: Any, systems: list[System], time: float, kelvin: float = 300.0) -> None:
    """A look at a simulation that stands where the systems say, at a time in fs."""
    watch.report(simulation(systems, time, kelvin))


def simulation(systems: list[System], time: float = 0.0, kelvin: float = 300.0) -> SimpleNamespace:
    positions = torch.tensor(np.concatenate([one.positions for one in systems]))
    state = SimpleNamespace(
        positions=positions, grouping=SimpleNamespace(systems=len(systems)), device=CPU
    )
    seen = SimpleNamespace(temperature=torch.full((len(systems),), kelvin))
    return SimpleNamespace(state=state, time=time, observables=lambda: seen)


def watching(tmp_path: Path, *, transfer: bool = False) -> Any:
    """Of two starts of the pair, with the pair for the training frames."""
    path = tmp_path / "frames.xyz"
    start = pair()
    ase.io.write(path, Atoms(start.numbers, start.positions))
    shortest = shortest_distances(read_systems(path))
    bonds = BondGraph(start, shortest, CPU, transfer)
    return StabilityMonitor(bonds, simulation([start] * 2), 1, 0.0)


def test_a_broken_bond_is_recorded_at_its_time(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    look(watch, [pair(), pair(0.1)], 100.0)
    look(watch, [pair(), pair(0.6)], 200.0)
    look(watch, [pair(0.4), pair()], 300.0)
    look(watch, [pair(), pair(0.4)], 400.0)
    assert [one.failures for one in watch.starts] == [{}, {}], "a stretched bond came back"
    look(watch, [pair(), pair(0.6)], 500.0)
    look(watch, [pair(), pair(0.6)], 600.0)
    assert [one.failures for one in watch.starts] == [{}, {"bonds": 0.5}]


def test_a_bond_across_the_cell_is_not_broken() -> None:
    bonds = BondGraph(pair(cell=9.0), np.ones((119, 119)), CPU)
    free = BondGraph(pair(), np.ones((119, 119)), CPU)
    places = [torch.tensor(one.positions)[None] for one in (pair(cell=9.0), pair())]
    assert not torch.allclose(*places)
    graph = free.graph(free.distances(places[1]))
    assert torch.equal(bonds.graph(bonds.distances(places[0])), graph)
    assert int(graph.sum()) == 8


@pytest.mark.parametrize("pbc", [(True, True, True), (True, True, False)])
def test_bonds_of_a_long_skewed_cell_are_those_of_the_compact_one(
    pbc: tuple[bool, bool, bool],
) -> None:
    """Bonds that cross such a cell were taken for broken ones."""
    crystal = bulk("Cu", "fcc", a=3.63, cubic=True).repeat(2)
    crystal.rattle(0.1, seed=1)
    crystal.wrap()
    places = torch.tensor(crystal.positions)[None]
    graphs = []
    for turn in (np.eye(3), [[1, 0, 0], [3, 1, 0], [0, 0, 1]]):
        cell = np.array(turn) @ crystal.cell.array
        bonds = BondGraph(
            System(crystal.numbers, crystal.positions, cell, pbc), np.ones((119, 119)), CPU
        )
        graphs.append(bonds.graph(bonds.distances(places)))
    assert int(graphs[0].sum()) > 32 * 7
    assert torch.equal(*graphs)


def test_atoms_of_a_crystal_may_shake_but_not_trade_places() -> None:
    crystal = bulk("Cu", "fcc", a=3.63, cubic=True).repeat(2)
    system = System(crystal.numbers, crystal.positions, crystal.cell.array, crystal.pbc)
    bonds = NeighborGraph(system, np.ones((119, 119)), CPU)
    shaken, traded = crystal.positions.copy(), crystal.positions.copy()
    shaken += np.random.default_rng(0).normal(scale=0.12, size=shaken.shape)
    far = int(np.argmax(crystal.get_distances(0, range(len(crystal)), mic=True)))
    traded[[0, far]] = traded[[far, 0]]
    watch = StabilityMonitor(bonds, simulation([system] * 2), 1, 0.0)
    for time in (100.0, 200.0):
        look(watch, [system.replace(positions=one) for one in (shaken, traded)], time)
    assert [list(one.failures) for one in watch.starts] == [[], ["bonds"]]
    # By the radii of their bonds some of the shaken ones would be lost.
    plain = BondGraph(system, np.ones((119, 119)), CPU)
    first, now = (
        plain.graph(plain.distances(torch.tensor(x)[None])) for x in (system.positions, shaken)
    )
    assert not torch.equal(first, now)


def test_a_hydrogen_may_move_where_that_is_allowed(tmp_path: Path) -> None:
    moved, lost = pair().positions.copy(), pair().positions.copy()
    moved[1] = moved[3] - [1.0, 0.0, 0.0]
    lost[1] += 5.0
    assert fails(tmp_path, moved, lost, transfer=True) == [False, True]
    assert fails(tmp_path, moved, lost, transfer=False) == [True, True]
    # On its way, farther from both oxygens than a bond is long.
    apart = pair().positions[3] - pair().positions[0]
    shared, far = pair().positions.copy(), pair().positions.copy()
    shared[3:] -= apart / np.linalg.norm(apart) * 0.2
    shared[1] = 0.5 * (shared[0] + shared[3])
    far[1] = 0.5 * (far[0] + far[3]) + [0.0, 0.0, 1.0]
    assert np.linalg.norm(shared[1] - shared[0]) == pytest.approx(1.3)
    assert fails(tmp_path, shared, far, transfer=True) == [False, True]


def fails(tmp_path: Path, *starts: Any, transfer: bool) -> list[bool]:
    """Whether bonds of the starts have changed, after two looks at these positions."""
    watch = watching(tmp_path, transfer=transfer)
    for time in (100.0, 200.0):
        look(watch, [pair().replace(positions=one) for one in starts], time)
    return ["bonds" in one.failures for one in watch.starts]


def test_a_contact_is_recorded(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    near = pair().positions.copy()
    near[3:] -= [1.0, 0.0, 0.0]  # oxygens 1.8 A apart, 0.64 of what was trained on
    look(watch, [pair().replace(positions=near), pair()], 100.0)
    assert "contact" in watch.starts[0].failures
    assert watch.starts[0].closest < 0.7
    assert watch.starts[1].closest == pytest.approx(1.0)
    assert not watch.starts[1].failures


def test_others_go_on_without_a_start_that_stopped(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch.drop({0}, simulation([pair()] * 2, 1000.0))
    for time in (100.0, 200.0):
        look(watch, [pair(0.6)], time)
    assert [one.failures for one in watch.starts] == [{"stopped": 1.0}, {"bonds": 1.2}]


def test_temperatures_are_judged_by_their_own_noise() -> None:
    generator = np.random.default_rng(4)
    noise = generator.normal(size=(10, 4000))
    for place in range(1, 4000):  # correlated over ten looks
        noise[:, place] += 0.9 * noise[:, place - 1]
    kelvin = 300.0 + 20.0 * noise
    kelvin[3] += 60.0
    starts = [Start(one.tolist()) for one in kelvin]
    found = np.abs(temperature_deviations(starts, 300.0, 50))
    assert found[3] > 5.0
    assert np.delete(found, 3).max() < 4.0
    few = [Start([290.0, 310.0] * 90)]
    assert np.isnan(temperature_deviations(few, 300.0, 50)).all()


def test_few_blocks_call_no_sound_start_off_and_a_hot_one_still() -> None:
    """Pairs of starts with five blocks each, as 8 ps of `mdgraph validate` give."""
    generator, looks, independent = np.random.default_rng(5), 375, 63
    noise = generator.normal(size=(4000, 2, looks))
    kelvin = 300.0 + 10.0 * lfilter([1.0], [1.0, -math.exp(-20.0 / 250.0)], noise)
    beyond_five = beyond = hot = 0
    for pair_of_starts in kelvin:
        starts = [Start(one.tolist()) for one in pair_of_starts]
        largest = largest_deviation(starts, independent)
        assert 7.0 < largest < 7.3
        found = np.abs(temperature_deviations(starts, 300.0, independent))
        beyond_five += int((found > 5.0).sum())
        beyond += int((found > largest).sum())
        starts[1] = Start((pair_of_starts[1] + 90.0).tolist())
        hot += abs(temperature_deviations(starts, 300.0, independent)[1]) > largest
    assert beyond_five >= 10
    assert beyond <= 4
    assert hot > 3900
    long = [Start(np.tile(kelvin[0, 0], 20).tolist())] * 2
    assert largest_deviation(long, independent) == 5.0


def runs(frames: list[Atoms], **changes: Any) -> StabilityResult:
    """Of the shipped water on a CPU, looked at every 2 fs."""
    systems = [from_ase(frame).replace(velocities=None) for frame in frames]
    bonds = BondGraph(systems[0], shortest_distances(systems), torch.device("cpu"))
    options = StabilityOptions(bath_ps=0.0, every_fs=2.0, **changes)
    return stability.stability(systems, "water-pbe0", bonds, options, torch.device("cpu"))


@pytest.mark.statistical
def test_the_shipped_water_holds_together_and_falls_apart_when_hot() -> None:
    frames = ase.io.read(ROOT / "data" / "water27.extxyz", ":")[:2]
    calm = runs(frames, ps=0.03)
    assert calm.stable == len(calm.starts) == 2
    assert calm.ps == pytest.approx(0.03)
    assert min(start.closest for start in calm.starts) > 0.85
    assert 150.0 < np.mean([start.kelvin for start in calm.starts]) < 450.0
    hot = runs(frames, ps=0.03, temperature=6000.0)
    assert hot.stable == 0
    assert all({"bonds", "contact", "stopped"} & set(start.failures) for start in hot.starts)


def test_a_start_that_explodes_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = ase.io.read(ROOT / "data" / "water27.extxyz", ":")[:2]
    frames[0].positions *= 0.8  # bonds of 0.78 A hold some eV each
    cool = partial(Simulation, maximum_temperature=1000.0)
    monkeypatch.setattr(stability, "Simulation", cool)
    told = runs(frames, ps=0.02)
    assert told.ps == pytest.approx(0.02)
    assert "stopped" in told.starts[0].failures
    assert told.starts[1].failures == {}
    assert told.stable == 1
