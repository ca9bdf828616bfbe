"""The calculator of ASE in its process: threads, and graphs of its updates."""

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from ase_atoms import calculator, ethanol, tensornet
from toys import LennardJones

import mdgraph.drivers.ase.calculator
import mdgraph.gpu.graphs
from mdgraph.engine import Calculation
from mdgraph.io.structures import from_ase

pytestmark = pytest.mark.usefixtures("one_thread")


# The process around it


def process_settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.random.initial_seed(),
        torch.random.get_rng_state().sum().item(),
    )


class Occupied(LennardJones):
    """Notes how many threads evaluate at once."""

    def __init__(self) -> None:
        super().__init__(0.0104, 3.4, 6.0)
        self.inside = 0
        self.most = 0

    def forward(self, atoms: Any, pairs: Any) -> torch.Tensor:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        energies = super().forward(atoms, pairs)
        self.inside -= 1
        return energies


def test_threads_do_not_disturb_each_other_nor_the_process() -> None:
    potential = Occupied()
    starts = [bulk("Ar", a=edge) for edge in (5.0, 5.2, 5.4, 5.6)]
    expected = [calculator(potential).get_potential_energy(atoms) for atoms in starts]
    calculators = [calculator(potential) for _ in starts]
    found: dict[int, list[float]] = {number: [] for number in range(len(starts))}

    def work(number: int) -> None:
        for _ in range(4):
            calculators[number].reset()
            found[number].append(calculators[number].get_potential_energy(starts[number]))

    before = process_settings()
    threads = [threading.Thread(target=work, args=(number,)) for number in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert potential.most == 1
    assert process_settings() == before
    for number, energy in enumerate(expected):
        assert found[number] == [energy] * 4


# Graphs


class ReplayedOnHost:
    """Stands for a captured graph where there is no CUDA."""

    captures = 0
    replays = 0

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        ReplayedOnHost.captures += 1
        self._function = function

    def replay(self) -> None:
        ReplayedOnHost.replays += 1
        self._function()


def test_graph_is_captured_at_the_second_update_and_again_after_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mdgraph.gpu.graphs, "CapturedGraph", ReplayedOnHost)
    monkeypatch.setattr(ReplayedOnHost, "captures", 0)
    monkeypatch.setattr(ReplayedOnHost, "replays", 0)
    sparse = from_ase(bulk("Ar", a=8.0, cubic=True))
    options: dict[str, Any] = {"device": "cpu", "precision": "double"}
    graphed = Calculation([sparse], LennardJones(0.0104, 3.4, 6.0), **options)
    seen = []
    for factor in (1.0, 1.0, 1.0, 0.55, 0.55, 0.55):
        graphed.state.positions.copy_(torch.tensor(sparse.positions * factor))
        graphed.state.cell.copy_(torch.tensor(sparse.cell * factor)[None])
        graphed.compute(graphed=True)
        seen.append((ReplayedOnHost.captures, ReplayedOnHost.replays))
        dense = sparse.replace(positions=sparse.positions * factor, cell=sparse.cell * factor)
        plain = Calculation([dense], LennardJones(0.0104, 3.4, 6.0), **options)
        plain.compute()
        torch.testing.assert_close(graphed.state.energy, plain.state.energy, rtol=1e-12, atol=0)
    # The fourth overflows in its replay, is grown and done eagerly.
    assert seen == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


def test_where_no_graph_can_be_captured_updates_run_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(function: Callable[[], None], device: torch.device) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(mdgraph.gpu.graphs, "CapturedGraph", refuse)
    calculation = Calculation([from_ase(ethanol())], tensornet(), device="cpu")
    calculation.compute()
    energy = calculation.state.energy.clone()
    for _ in range(3):
        calculation.state.energy.zero_()
        calculation.compute(graphed=True)
        assert torch.equal(calculation.state.energy, energy)
    assert caplog.text.count("runs eagerly") == 1


@pytest.mark.gpu
def test_replayed_updates_agree_with_the_host() -> None:
    atoms = bulk("Si", a=5.0, cubic=True) * (2, 2, 2)
    there, here = calculator(device="cuda"), calculator()
    for step in range(6):
        atoms.rattle(0.1, seed=step)
        if step == 4:
            atoms.set_cell(atoms.cell * 0.8, scale_atoms=True)
        for name in ("energy", "forces", "stress"):
            found, expected = (one.get_property(name, atoms) for one in (there, here))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    # The captured graph stays behind.
    duplicate = copy.deepcopy(there)
    atoms.rattle(0.1, seed=6)
    energy = duplicate.get_potential_energy(atoms)
    assert energy == pytest.approx(there.get_potential_energy(atoms), abs=1e-9)
