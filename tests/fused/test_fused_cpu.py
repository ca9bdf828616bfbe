"""What only the compiled kernels promise: threads that change no bit, and failures that show."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from random_networks import (
    TENSORNET,
    TENSORNET2,
    crystal,
    lists_for,
    molecule,
    network,
    spread_atoms,
)
from torch import Tensor

from mdgraph import numba_jit
from mdgraph.fused.cpu.math import NUMBERS, activated
from mdgraph.fused.cpu.simd import LANES, load, run, store
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models.tensornet import ACTIVATIONS
from mdgraph.models.tensornet2 import COULOMB as COULOMB_CONSTANT
from mdgraph.numba_jit import forget_stale
from mdgraph.state import State
from mdgraph.system import System


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def box(atoms: int, seed: int = 5) -> System:
    """Atoms in a periodic cube, of the density of a liquid."""
    edge = (12.0 * atoms) ** (1 / 3)
    positions = spread_atoms(atoms, np.eye(3) * edge, True, seed, apart=0.9)
    numbers = np.resize([8, 1, 1, 6], atoms)
    return System(numbers, positions, cell=np.eye(3) * edge, pbc=True, charge=1.0)


def bits(evaluator: FusedTensorNet, *systems: System, threads: int = 1) -> list[Tensor]:
    torch.set_num_threads(threads)
    state = State(systems)
    evaluator.evaluate_(state, lists_for(state, evaluator.potential))
    return [state.energies, state.energy, state.forces, state.virial]


@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("channels", [6, 48])
def test_threads_change_no_bit(channels: int, precision: str) -> None:
    settings = TENSORNET | {"channels": channels, "charge_factor": True}
    evaluator = FusedTensorNet(network(**settings), precision)
    for systems in ([box(130)], [box(50), molecule(), crystal()]):
        alone = bits(evaluator, *systems)
        for threads in (2, 3, 16):
            shared = bits(evaluator, *systems, threads=threads)
            assert all(map(torch.equal, alone, shared))
            assert torch.get_num_threads() == threads


COULOMB = TENSORNET2 | {"coulomb": {"cutoff": 5.1}}


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_threads_change_no_bit_of_charges(precision: str) -> None:
    evaluator = FusedTensorNet(network(**COULOMB), precision)
    systems = [box(130), molecule(charge=-1.0), crystal()]
    alone = bits(evaluator, *systems)
    for threads in (2, 5):
        assert all(map(torch.equal, alone, bits(evaluator, *systems, threads=threads)))


@pytest.mark.parametrize("settings", [TENSORNET, COULOMB], ids=["TensorNet", "TensorNet2"])
def test_other_systems_of_a_batch_change_no_bit(settings: dict[str, Any]) -> None:
    evaluator = FusedTensorNet(network(**settings))
    one, other = molecule(7), crystal(6)
    together = bits(evaluator, one, other)
    for part, system in ((slice(0, 7), one), (slice(7, 13), other)):
        energies, _, forces, _ = bits(evaluator, system)
        assert torch.equal(energies, together[0][part])
        assert torch.equal(forces, together[2][part])


@pytest.mark.parametrize("total", [-2.0, 0.0, 1.0])
def test_charges_of_every_level_add_up_to_the_total(total: float) -> None:
    evaluator = FusedTensorNet(network(**COULOMB))
    state = State([box(50), molecule(charge=total)])
    evaluator.evaluate_(state, lists_for(state, evaluator.potential))
    charges = state.workspaces[evaluator._network].charged.charges
    levels = charges.shifted.reshape(-1, charges.number, charges.size)[..., :2]
    assert levels.shape[1] == 3
    assert np.abs(levels[:57]).max() > 0.1
    for part, charge in (slice(0, 50), 1.0), (slice(50, 57), total):
        # Shares are divided by 1e-6 more than their sum.
        np.testing.assert_allclose(levels[part].sum(0), charge, rtol=0, atol=1e-4)


def test_coulomb_energies_between_ions_far_apart_are_those_of_point_charges() -> None:
    evaluator = FusedTensorNet(network(**TENSORNET2 | {"coulomb": {}, "layers": 0}), "double")
    energies = []
    for distance in (20.0, 40.0, 1e6):
        state = State([System([8, 8], np.array([[0.0, 0, 0], [0, 0, distance]]), charge=2.0)])
        evaluator.evaluate_(state, lists_for(state, evaluator.potential))
        energies.append(float(state.energy))
    near, far, none = energies
    scaled = COULOMB_CONSTANT * float(evaluator.potential.scale)
    # Two equal atoms share the charge alike, whatever the network says.
    assert near - none == pytest.approx(scaled / 20.0, rel=1e-3)
    assert far - none == pytest.approx(scaled / 40.0, rel=1e-3)


@pytest.mark.parametrize("settings", [TENSORNET, COULOMB], ids=["TensorNet", "TensorNet2"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_position_shows_in_the_energies_of_the_atom_and_its_neighbors(
    value: float, settings: dict[str, Any]
) -> None:
    evaluator = FusedTensorNet(network(**settings))
    state = State([molecule()])
    lists = lists_for(state, evaluator.potential)
    near = lists[0].index[2, : int(lists[0].count[2])].long()
    assert len(near)
    state.positions[2, 1] = value
    evaluator.evaluate_(state, lists)
    assert not state.energies[torch.tensor([2, *near])].isfinite().any()
    assert not state.forces[2].isfinite().any()
    assert not state.energy.isfinite().any()


# The work of threads


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("blocks", [1, 7, 100])
def test_every_block_is_done_once_and_after_the_phase_before(threads: int, blocks: int) -> None:
    torch.set_num_threads(threads)
    done = np.zeros((3, blocks), dtype=int)

    def phase(number: int, first: int, last: int) -> None:
        assert first < last
        assert (done[:number] == 1).all()
        done[number, first:last] += 1

    run(
        [lambda first, last, number=number: phase(number, first, last) for number in range(3)],
        blocks,
    )
    assert (done == 1).all()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("block", [0, 11, 39])
def test_a_failure_in_any_thread_reaches_the_caller(threads: int, block: int) -> None:
    torch.set_num_threads(threads)
    later = []

    def fail(first: int, last: int) -> None:
        if first <= block < last:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        run([fail, lambda first, last: later.append(first)], 40)
    assert not later


# Compiled kernels on disk


def test_cached_kernels_older_than_a_source_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    times = {"one.py": 100, "other.py": 200, "__pycache__/old.nbi": 150, "__pycache__/new.nbi": 250}
    for name, time in times.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time, time))
    forget_stale(tmp_path)
    assert [path.name for path in tmp_path.rglob("*.nbi")] == ["new.nbi"]


ADD_ONE = """
from mdgraph.fused.cpu.simd import kernel

@kernel
def add_one(x):
    return x + 1
"""


@pytest.mark.parametrize("module", ["mdgraph.fused.cpu.addition", "someone.else"])
def test_compiling_is_logged_unless_the_cache_has_the_kernel(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "addition.py").write_text(ADD_ONE, encoding="utf-8")
    told = []
    for number in (1, 1, 1.0):
        monkeypatch.setattr(numba_jit.NOTICE, "has_logged", False)
        caplog.clear()
        spec = spec_from_file_location(module, tmp_path / "addition.py")
        assert spec is not None
        assert spec.loader is not None
        addition = module_from_spec(spec)
        spec.loader.exec_module(addition)
        with caplog.at_level(logging.INFO, "mdgraph"):
            assert addition.add_one(number) == 2
        told.append(caplog.text.count("compiles kernels"))
    ours = module.startswith("mdgraph.")
    assert told == [ours, 0, ours]


@pytest.mark.slow
def test_a_run_logs_compiling_only_where_kernels_are_compiled(tmp_path: Path) -> None:
    told = []
    command = [sys.executable, "-m", "mdgraph", "md", "--steps", "0", "--device", "cpu"]
    for place, precision in enumerate(("mixed", "mixed", "double", "double")):
        options = ["--precision", precision, "--evaluator", "fused", "--out", str(place)]
        done = subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(done.stderr.count("compiles kernels"))
    assert told == [1, 0, 1, 0]


# Activations


@numba.njit
def table(x: NDArray[np.float64], number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values, slopes = np.empty_like(x), np.empty_like(x)
    for i in range(0, len(x), LANES):
        value, slope = activated(load(x, i), number)
        store(values, i, value)
        store(slopes, i, slope)
    return values, slopes


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_the_models(name: str) -> None:
    near, far = (
        torch.linspace(-6.0, 6.0, 242),
        torch.tensor([-800.0, -90.0, -25.0, 25.0, 90.0, 800.0]),
    )
    x = torch.cat([near, far]).double().requires_grad_()
    exact = ACTIVATIONS[name](x)
    (slopes,) = torch.autograd.grad(exact.sum(), x)
    for found, wanted in zip(
        table(x.detach().numpy(), NUMBERS[name]), (exact, slopes), strict=True
    ):
        # torch's softplus is the identity beyond 20, which leaves out 2e-9.
        torch.testing.assert_close(
            torch.from_numpy(found),
            wanted.detach(),
            rtol=1e-10,
            atol=3e-9 if name in ("softplus", "ssp", "ssp_float32") else 1e-15,
        )
