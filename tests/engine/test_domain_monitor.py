"""Leaving what a potential was trained on is noticed, said once, and changes nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list
from ensembles import assert_same
from repository import ROOT
from toys import LennardJones, argon

from mdgraph.checkpoints import load_domain, shipped_potentials
from mdgraph.engine import DomainMonitor, LangevinMiddle, Simulation, VelocityVerlet
from mdgraph.engine.observables.domain import KINDS, Departure
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.structures import read_system
from mdgraph.models import Domain
from mdgraph.system import System

CUTOFF = 7.5


def argon_domain(neighbors: tuple[float, float], shortest: float, force: float) -> Domain:
    """Of argon alone; nothing is known of its last layer."""

    def one(*values: float) -> torch.Tensor:
        return torch.tensor([values], dtype=torch.float64)

    least, most = neighbors
    return Domain(
        species=torch.tensor([18]),
        neighbors=one(least, least, most, most),
        shortest=one(shortest),
        forces=one(force, force),
        mean=one(0.0),
        factor=torch.full((2, 2), torch.nan, dtype=torch.float64),
        sigma=one(0.0, 0.0),
    )


NARROW = argon_domain((70.0, 84.0), 3.3, 0.05)
"""What liquid argon at 120 K leaves now and then."""


def liquid(*observe: DomainMonitor, **options: Any) -> Simulation:
    settings = {"device": "cpu", "temperature": 120.0, "seed": 3, "chunk": 4, "skin": 0.0} | options
    return Simulation(
        argon(2), LennardJones(0.0104, 3.4, CUTOFF), LangevinMiddle(4.0, 120.0),
        observe=observe, **settings,
    )  # fmt: skip


def departures(simulation: Simulation) -> dict[str, Departure]:
    return {one.kind: one for one in simulation.online[0].result().departures}


def test_counts_distances_and_forces_are_those_of_ase() -> None:
    """Every chunk of four steps is looked at, and the start; ASE counts and measures anew."""
    run = liquid(DomainMonitor(NARROW, margin=0.0, every=4))
    expected: dict[str, list[tuple[int, list[int], float]]] = {}
    for number in range(16):
        if number:
            run.run(4)
        atoms = ase.Atoms(
            "Ar" * 32, run.state.positions.numpy(), cell=run.state.cell[0].numpy(), pbc=True
        )
        first, second, distance = neighbor_list("ijd", atoms, CUTOFF)
        count = np.bincount(first)
        force = np.linalg.norm(run.state.forces.numpy(), axis=1)
        near = distance.argmin()
        seen = {
            "too few neighbors": (70 - count.min(), count.argmin(), count.min()),
            "too many neighbors": (count.max() - 84, count.argmax(), count.max()),
            "too short a distance": (
                3.3 - distance[near], [first[near], second[near]], distance[near],
            ),
            "too large a force": (force.max() - 0.05, force.argmax(), force.max()),
        }  # fmt: skip
        for kind, (excess, who, value) in seen.items():
            if excess > 0:
                named = sorted(np.atleast_1d(who).tolist())
                expected.setdefault(kind, []).append((run.step, named, float(value)))
    found = departures(run)
    assert run.online[0].result().samples == 16
    assert found.keys() == expected.keys()
    assert {"too few neighbors", "too short a distance", "too large a force"} <= found.keys()
    assert any(0 < len(one) < 16 for one in expected.values())
    for kind, one in found.items():
        step, who, value = expected[kind][0]
        assert (one.looks, one.step) == (len(expected[kind]), step)
        assert one.value == pytest.approx(value, rel=1e-9)
        if "neighbors" not in kind:  # of which several atoms may have as many
            assert sorted({one.atom, one.neighbor}) == who


def test_monitoring_changes_no_bit_and_counts_repeated_chunks_once() -> None:
    """A list that is too short again and again repeats chunks, and no look counts twice."""
    plain, ample, tight = (
        liquid(),
        liquid(DomainMonitor(NARROW, every=4)),
        liquid(DomainMonitor(NARROW, every=4)),
    )
    plain.run(40)
    ample.run(40)
    (rows,) = tight.calculation.lists
    for _ in range(5):
        rows._allocate(1, *rows.reference())
        rows.sticky()[0].zero_()
        tight.run(8)
    assert_same(ample, tight)
    assert departures(ample)
    for name, value in ample.online.tensors().items():
        assert torch.equal(value, tight.online.tensors()[name]), name
    for name, value in plain.state.tensors().items():
        assert torch.equal(value, ample.state.tensors()[name]), name


def test_a_resumed_run_remembers(tmp_path: Path) -> None:
    whole, resumed = liquid(DomainMonitor(NARROW, every=4)), liquid(DomainMonitor(NARROW, every=4))
    whole.run(20)
    save_restart(whole, tmp_path / "restart.safetensors")
    whole.run(20)
    load_restart_(resumed, tmp_path / "restart.safetensors")
    resumed.run(20)
    assert_same(whole, resumed)
    assert departures(whole) == departures(resumed)
    assert len(whole.online[0].result().rows()) == 4


def test_the_steps_before_a_failure_are_monitored() -> None:
    """Those of its chunk, which are taken one by one; the temperature passes 34 K at step 22."""
    run = liquid(
        DomainMonitor(NARROW, every=1), chunk=16, temperature=20.0, maximum_temperature=34.0
    )
    with pytest.raises(SimulationError, match="at step 22"):
        run.run(40)
    assert run.step == 21
    assert run.online[0].result().samples == 7  # at 0 and 16, and from 17 to 21


def test_an_element_without_training_frames_is_outside() -> None:
    """In every way, whatever the margin."""
    nothing = argon_domain((np.inf, -np.inf), np.inf, 0.0)
    for margin in (0.0, 0.1):
        run = liquid(DomainMonitor(nothing, margin=margin))
        assert departures(run).keys() == KINDS.keys()
        assert all(one.step == 0 for one in departures(run).values())


def test_the_domain_of_another_potential_is_refused() -> None:
    water = load_domain("water-pbe0")
    assert water is not None
    with pytest.raises(InputError, match="knows other elements than are here"):
        liquid(DomainMonitor(water))


def shipped(system: System) -> Simulation:
    domain = load_domain("water-pbe0")
    assert domain is not None
    monitor = DomainMonitor(domain)
    return Simulation(
        system, "water-pbe0", VelocityVerlet(0.5), device="cpu", check=False, observe=[monitor]
    )


def test_the_shipped_potential_knows_its_water() -> None:
    """Its liquid is inside; a squeezed bond is not, nor is a molecule alone."""
    liquid = read_system(ROOT / "potentials" / "water-pbe0" / "start.extxyz")
    assert not departures(shipped(liquid))
    oxygen = int(np.flatnonzero(liquid.numbers == 8)[5])
    apart = liquid.positions - liquid.positions[oxygen]
    edge = liquid.cell[0, 0]
    apart -= edge * np.round(apart / edge)
    hydrogen = int(np.where(liquid.numbers == 1, (apart**2).sum(1), np.inf).argmin())
    positions = liquid.positions.copy()
    unit = apart[hydrogen] / np.linalg.norm(apart[hydrogen])
    positions[hydrogen] = positions[oxygen] + 0.75 * unit
    found = departures(shipped(liquid.replace(positions=positions)))
    near = found["too short a distance"]
    assert sorted([near.atom, near.neighbor]) == sorted([oxygen, hydrogen])
    assert near.value == pytest.approx(0.75, abs=1e-6)
    assert near.step == 0

    chosen = [oxygen, *np.argsort(np.where(liquid.numbers == 1, (apart**2).sum(1), np.inf))[:2]]
    alone = System(liquid.numbers[chosen], apart[chosen])
    assert departures(shipped(alone)).keys() == {"too few neighbors"}


def test_a_run_warns_of_extrapolation_and_may_stop(
    tmp_path: Path, mdgraph_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Inside at the start, and by each of four seeds of velocities outside in two ways at step 100.
    hot = ["--temperature-K", "6000", "--new-velocities", "--chunk", "5",
           "--log-interval", "50", "--no-check", "--device", "cpu"]  # fmt: skip
    water = ROOT / "data" / "water27.extxyz"
    long = [*hot, "--steps", "105"]
    warned = mdgraph_command("md", water, *long, "--out", "warned")
    assert warned.status == 0, warned.err
    assert warned.err.count("left what the potential was trained on: too short a distance") == 1
    assert "2 looks at what the potential was trained on: " in warned.err
    last = ase.io.read(tmp_path / "warned" / "end.extxyz").positions
    calm = mdgraph_command(
        "md", water, *hot, "--steps", "5", "--out", "calm", "--no-monitor-domain"
    )
    assert calm.status == 0
    assert "trained on" not in calm.err

    stopped = mdgraph_command("md", water, *long, "--out", "stopped", "--on-extrapolation", "stop")
    assert stopped.status == 1
    assert "the run left what the potential was trained on" in stopped.err
    assert "--resume --on-extrapolation warn continues the run" in stopped.err
    assert "At step 100 the run" in stopped.err
    assert "2 looks at what the potential was trained on: " in stopped.err
    assert not (tmp_path / "stopped" / "end.extxyz").exists()
    record = json.loads((tmp_path / "stopped" / "run.json").read_text())
    assert record["configuration"]["monitor_domain"] is True
    done = mdgraph_command("md", "--resume", "--out", "stopped", "--on-extrapolation", "warn")
    assert done.status == 0, done.err
    end = ase.io.read(tmp_path / "stopped" / "end.extxyz").positions
    np.testing.assert_array_equal(end, last)


def test_an_element_without_training_frames_is_named() -> None:
    domain = load_domain("water-pbe0")
    assert domain is not None
    domain.neighbors[0] = torch.tensor([torch.inf, torch.inf, -torch.inf, -torch.inf])
    assert domain.lines()[0] == "H: in no frame of several atoms that was trained on"
    assert domain.lines()[1].startswith("O: 37 to 65 neighbors")


def test_a_domain_of_89_elements_is_told_shortly() -> None:
    """All but one without frames are one line; of elements with frames not every pair is listed."""
    size = 89
    neighbors = torch.tensor([[torch.inf, torch.inf, -torch.inf, -torch.inf]]).repeat(size, 1)
    neighbors[41] = torch.tensor([50.0, 51.0, 60.0, 62.0])
    shortest = torch.full((size, size), torch.inf)
    shortest[41, 41] = 2.25
    domain = Domain(
        species=torch.arange(1, size + 1),
        neighbors=neighbors,
        shortest=shortest,
        forces=torch.zeros(size, 2),
        mean=torch.zeros(size, 1),
        factor=torch.zeros(2, 2),
        sigma=torch.zeros(size, 2),
    )
    assert domain.lines() == [
        "H, He, Li, Be and 84 more: in no frame of several atoms that was trained on",
        "Mo: 50 to 62 neighbors, forces up to 0 eV/A",
        "shortest distances: Mo-Mo 2.250 A",
    ]
    domain.neighbors[:] = neighbors[41]
    lines = domain.lines()
    assert len(lines) == size + 2
    assert max(map(len, lines)) < 1000
    assert lines[-1].endswith(" and 3938 more")


def test_a_start_outside_the_domain_is_reported(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    (tmp_path / "alone.xyz").write_text("3\n\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n")
    options = ["--steps", "4", "--no-check", "--device", "cpu", "--out", tmp_path / "run"]
    done = mdgraph_command("md", tmp_path / "alone.xyz", *options)
    assert done.status == 0, done.err
    assert "At step 0 the run left what the potential was trained on: too few" in done.err
    resumed = mdgraph_command("md", "--resume", "--out", tmp_path / "run", "--steps", "8")
    assert resumed.status == 0, resumed.err
    assert "At step 0" not in resumed.err

    here = shipped_potentials()["water-pbe0"]
    elsewhere = tmp_path / "weights"
    elsewhere.mkdir()
    shutil.copy(here / "model.safetensors", elsewhere)
    asked = ["md", "--resume", "--out", tmp_path / "run", "--potential", elsewhere]
    refused = mdgraph_command(*asked, "--steps", "12")
    assert refused.status == 1
    assert "monitors its domain, and domain.safetensors is not beside the weights" in refused.err
    shutil.copy(here / "domain.safetensors", elsewhere)
    assert mdgraph_command(*asked, "--steps", "12").status == 0


def test_on_extrapolation_stop_needs_a_monitor(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    common = ["--device", "cpu", "--out", tmp_path / "run"]
    options = ["--on-extrapolation", "stop", "--no-monitor-domain", *common]
    done = mdgraph_command("md", *options)
    assert done.status == 1
    assert "on_extrapolation is stop, and nothing tells where the run leaves" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_captured_steps_are_monitored_like_eager_ones() -> None:
    runs = [
        liquid(DomainMonitor(NARROW, every=4), device="cuda", graph=graph, chunk=8)
        for graph in ("on", "off")
    ]
    for run in runs:
        run.run(64)
    assert runs[0].graphed
    assert_same(*runs)
    assert departures(runs[0])
    assert departures(runs[0]) == departures(runs[1])
    assert runs[0].online[0].result().samples == 9  # chunks of eight reach a multiple of four
