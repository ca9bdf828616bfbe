"""The fused form against the float64 oracle: one suite for the compiled and the Triton kernels.

Triton's interpreter runs the kernels where there is no CUDA device, on cases of at most 8
atoms; on one they run there. The oracle is AutogradEvaluator in float64.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from backends import CUDA, device_of
from network_cases import NETWORKS, slope, systems_for
from random_networks import TENSORNET, crystal, evaluated, lists_for, molecule, network

from mdgraph.decomposition import DecomposedEvaluator
from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.engine import Calculation, Simulation, VelocityVerlet
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused.agreement import SMALLEST_FORCE
from mdgraph.fused.cuda import edge_network, products, readout, workspace
from mdgraph.fused.evaluator import FusedTensorNet, NotFusedError
from mdgraph.fused.tables import TableError
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

FUSED = {
    name: NETWORKS[name]
    for name in (
        *("O(3)", "SO(3)", "SO(3), to neighbor", "no self interaction", "lower cutoff"),
        *("no layers", "charge factor", "charge factor, SO(3)", "gated", "no readout activation"),
        *("ssp", "ssp_float32", "tanh", "sigmoid", "mish", "softplus"),
        *("expnorm", "gaussian", "smooth Bessel", "spherical Bessel"),
        *("torchmdnet_prior", "torchmdnet_network", "matgl", "far repulsion"),
        *("TensorNet2", "TensorNet2, SO(3)", "TensorNet2, lower cutoff"),
        *("TensorNet2, smooth Bessel", "TensorNet2, gated", "TensorNet2, Coulomb"),
        *("TensorNet2, all pairs", "TensorNet2, everything"),
    )
}
"""Written out, so that none goes silently."""
FEW = ("O(3)", "lower cutoff", "no layers", "charge factor", "mish")
FEW += ("TensorNet2, everything", "TensorNet2, all pairs")
"""What the interpreter runs; others differ in tables or analytic terms, or run in float64 below."""

CASES = [pytest.param("compiled", name, id=f"compiled, {name}") for name in FUSED] + [
    pytest.param("triton", name, id=f"triton, {name}") for name in (FUSED if CUDA else FEW)
]


@pytest.fixture(params=["compiled", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fused(backend: str, settings: dict[str, Any], precision: str = "mixed") -> FusedTensorNet:
    return _fused(backend, json.dumps(settings), precision)


@cache
def _fused(backend: str, settings: str, precision: str) -> FusedTensorNet:
    potential = network(**json.loads(settings))
    return FusedTensorNet(potential, precision, device_of(backend), backend)


def few(backend: str, atoms: int, interpreted: int) -> int:
    """So many atoms, or fewer where the interpreter runs the kernels, atom by atom."""
    return interpreted if backend == "triton" and not CUDA else atoms


def computed(
    evaluator: FusedTensorNet,
    *systems: System,
    backend: str,
    capacity: int | None = None,
    skin: float = 0.0,
) -> State:
    state = State(systems, device_of(backend))
    evaluator.evaluate_(state, lists_for(state, evaluator.potential, capacity, skin))
    return state


def assert_agrees(
    state: State,
    exact: State,
    rms: float,
    worst: float,
    energy: float,
    stress: float = 1e-6,
    worst_energy: float | None = None,
) -> None:
    """Force errors relative to the force RMS, energies in eV an atom, stress in eV/A^3.

    The worst atom's energy errs by no more than a system's an atom, unless that is given.
    """
    scale = float(exact.forces.square().mean().sqrt())
    difference = state.forces.cpu() - exact.forces
    assert float(difference.square().mean().sqrt()) < rms * scale
    assert float(torch.linalg.vector_norm(difference, dim=1).max()) < worst * scale
    whole = (state.energy.cpu() - exact.energy) / exact.grouping.counts
    assert float(whole.abs().max()) < energy
    missed = float((state.energies.cpu() - exact.energies).abs().max())
    assert missed < (energy if worst_energy is None else worst_energy)
    torch.testing.assert_close(
        state.energy.cpu(), state.grouping.sum(state.energies).cpu(), rtol=1e-12, atol=1e-12
    )
    volume = torch.linalg.det(exact.cell).abs()
    for number in (volume > 0).nonzero().flatten().tolist():
        missed = (state.virial.cpu() - exact.virial)[number] / volume[number]
        # Random weights give stresses of some eV/A^3, a hundred times those of matter.
        limit = stress * max(1.0, float(exact.virial[number].abs().max() / volume[number]))
        assert float(missed.abs().max()) < limit


# Agreement


def test_every_network_has_a_fused_form() -> None:
    assert set(FUSED) == set(NETWORKS)


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_mixed_agrees_with_the_oracle(backend: str, name: str) -> None:
    settings = FUSED[name]
    evaluator = fused(backend, settings)
    systems = systems_for(settings)
    if backend == "triton" and not CUDA:
        make = molecule if settings.get("coulomb") == {} else crystal
        systems = [make(2, charge=systems[1].charge)]
    for system in systems:
        exact = evaluated(network(**settings), system)
        state = computed(evaluator, system, backend=backend)
        # Forces of 0.03 eV/A, as of the tanh network, leave float32 no more than this.
        # Between 8 and 16 eV float32 has steps of 1e-6, and how products round depends on the CPU.
        assert_agrees(state, exact, rms=2e-5, worst=1e-4, energy=1e-6, worst_energy=2e-6)


DIVIDED = [("torchmdnet_prior", "mixed"), ("SO(3), to neighbor", "double")]
ALL_DIVIDED = [*DIVIDED, ("O(3)", "mixed"), ("no layers", "double"), ("charge factor", "mixed")]


@pytest.mark.parametrize(
    ("backend", "name", "precision"),
    [("compiled", *case) for case in ALL_DIVIDED]
    + [("triton", *case) for case in (ALL_DIVIDED if CUDA else DIVIDED[:1])],
)
def test_domains_have_the_forces_of_the_whole(backend: str, name: str, precision: str) -> None:
    """Two and four domains, cut, then cut again into the same buffers for other positions."""
    evaluator = fused(backend, FUSED[name], precision)
    first = crystal(few(backend, 24, 3))
    cuts = 3 if CUDA else 2
    moves = np.random.default_rng(0).normal(scale=0.05, size=(cuts, *first.positions.shape))
    for shape in [(2, 1, 1), (2, 2, 1)][: few(backend, 2, 1)]:
        divided = DecomposedEvaluator(evaluator, len(first), BrickGrid(shape))
        state = State([first], device_of(backend), evaluator.precision.state)
        lists = lists_for(state, evaluator.potential, None, 0.3)
        buffers = set()
        for move in moves:
            state.positions.copy_(torch.from_numpy(first.positions + move))
            for one in lists:
                one.rebuild_(state.positions, state.cell)
            divided.evaluate_(state, lists)
            if bool(divided.outgrown(state)):
                divided.grow_(state)
                divided.evaluate_(state, lists)
                buffers.clear()
            parts = state.workspaces[divided].domains
            buffers.add(tuple(id(part.state) for part in parts))
            own = [part.is_used[: part.capacity.owned] for part in parts]
            assert sum(int(used.sum()) for used in own) == len(first)
            apart = State([first], state.device, state.dtype)
            apart.positions.copy_(state.positions)
            evaluator.evaluate_(apart, lists_for(apart, evaluator.potential, None, 0.3))
            bound = 1e-12 if precision == "double" else 2e-6
            rms = apart.forces.square().mean().sqrt()
            assert (state.forces - apart.forces).abs().max() < bound * rms
            torch.testing.assert_close(state.energies, apart.energies, rtol=bound, atol=bound)
            scale = apart.virial.abs().max()
            assert (state.virial - apart.virial).abs().max() < bound * scale
        assert len(buffers) == 1


@pytest.mark.parametrize("name", ["TensorNet2, everything"])
def test_edges_that_outgrow_their_room_are_told_and_have_it_then(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The list has slots for all pairs, and buffers of edges room for those of the start."""
    monkeypatch.setattr(workspace, "_ALWAYS", 1)
    evaluator = fused("triton", FUSED[name])
    near = molecule(3)
    apart = near.replace(positions=near.positions * 40.0)
    state = State([apart], device_of("triton"), evaluator.precision.state)
    lists = lists_for(state, evaluator.potential, 4)
    evaluator.evaluate_(state, lists)
    assert not bool(evaluator.outgrown(state))
    state.positions.copy_(torch.tensor(near.positions))
    for one in lists:
        one.rebuild_(state.positions, state.cell)
    for _ in range(2):
        evaluator.evaluate_(state, lists)
        assert bool(evaluator.outgrown(state))
    evaluator.grow_(state)
    evaluator.evaluate_(state, lists)
    assert not bool(evaluator.outgrown(state))
    fresh = computed(evaluator, near, backend="triton", capacity=4)
    for kept in ("energies", "forces", "virial"):
        assert torch.equal(getattr(state, kept), getattr(fresh, kept))


@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("channels", [24, 32, 40])
def test_mixing_leaves_the_same_bits_whatever_programs_do_it(
    monkeypatch: pytest.MonkeyPatch, precision: str, channels: int
) -> None:
    """By strips alone, in pairs, and by programs that keep matrices."""
    shapes, results, taken, at_once = workspace.shapes, [], [], products.programs_at_once
    monkeypatch.setattr(
        products, "programs_at_once", lambda *given: taken.append(len(results)) or at_once(*given)
    )
    alone = workspace.Blocks(16, 16, 16, 1)
    pairs = replace(alone, masked=False, paired=True)
    kept = replace(alone, stages=2) if channels == 32 else None
    for one, resident in ((alone, None), (pairs, None), (alone, kept)):

        def chosen(*sizes: Any, mixing: Any = one, kept: Any = resident) -> workspace.Shapes:
            return replace(shapes(*sizes), mixing=mixing, resident=kept)

        monkeypatch.setattr(workspace, "shapes", chosen)
        settings = FUSED["O(3)"] | {"channels": channels, "layers": 1}
        results.append(computed(fused("triton", settings, precision), crystal(5), backend="triton"))
    for state in results[1:]:
        assert torch.equal(results[0].forces, state.forces)
        assert torch.equal(results[0].energies, state.energies)
    assert set(taken) == ({2} if kept else set())


def test_a_head_in_one_kernel_gives_what_its_layers_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By kernels of its own, by one with tensor cores and by one with multiply-adds."""
    shapes, results, taken, end = workspace.shapes, [], [], readout._end
    monkeypatch.setattr(readout, "_end", lambda *given: (taken.append(len(results)), end(*given)))
    tiles, one = workspace.Blocks(16, 16, 16, 1), workspace.Blocks(1, 16, 16, 1)
    for head, widest in ((tiles, 0), (tiles, readout._WIDEST), (one, readout._WIDEST)):

        def chosen(*sizes: Any, head: workspace.Blocks = head) -> workspace.Shapes:
            return replace(shapes(*sizes), head=head)

        monkeypatch.setattr(workspace, "shapes", chosen)
        monkeypatch.setattr(readout, "_WIDEST", widest)
        settings = FUSED["gated"] | {"channels": 7, "readout": {"kind": "gated", "hidden": (5, 4)}}
        results.append(computed(fused("triton", settings, "double"), crystal(5), backend="triton"))
    assert_alike(*results)
    assert set(taken) == {1, 2}


def assert_alike(first: State, *others: State) -> None:
    for state in others:
        for kept in ("energies", "forces", "virial"):
            torch.testing.assert_close(
                getattr(state, kept), getattr(first, kept), rtol=1e-11, atol=1e-11
            )


@pytest.mark.parametrize("name", ["O(3)", "gated"])
def test_multiply_adds_give_what_tiles_of_tensor_cores_give(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shapes, results = workspace.shapes, []
    for atoms in (16, 1):

        def chosen(*sizes: Any, atoms: int = atoms) -> workspace.Shapes:
            dense = workspace.Blocks(atoms, 16, 16, 1)
            return replace(shapes(*sizes), dense=dense, readout=dense)

        monkeypatch.setattr(workspace, "shapes", chosen)
        settings = FUSED[name] | {"layers": 1}
        results.append(computed(fused("triton", settings, "double"), crystal(5), backend="triton"))
    assert_alike(*results)


def test_charges_that_programs_sum_in_parts_are_those_of_one_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluator = fused("triton", FUSED["TensorNet2, Coulomb"] | {"layers": 1}, "double")
    systems = molecule(5, charge=1.0), molecule(2, charge=-1.0)
    whole = computed(evaluator, *systems, backend="triton")
    monkeypatch.setattr(workspace, "_PART", 4)
    parts = computed(evaluator, *systems, backend="triton")
    (plan,) = (kept for kept in parts.workspaces.values() if hasattr(kept, "charged"))
    assert plan.charged.sums.shape[1] == 3
    for kept in ("energies", "forces", "virial"):
        torch.testing.assert_close(
            getattr(parts, kept), getattr(whole, kept), rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_layers_on_edges_with_buffers_of_their_own_give_the_bits_of_those_that_share(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    settings, results, computes = FUSED["TensorNet2, Coulomb"], [], []
    apply_layers = edge_network.apply_layers
    monkeypatch.setattr(
        edge_network, "apply_layers", lambda *given: (computes.append(1), apply_layers(*given))
    )
    for least in (workspace.TURNS_FROM, 0):
        monkeypatch.setattr(workspace, "TURNS_FROM", least)
        computes.clear()
        state = computed(fused("triton", settings, precision), molecule(5), backend="triton")
        (plan,) = (kept for kept in state.workspaces.values() if hasattr(kept, "charged"))
        results.append((state, plan.layers, len(computes)))
    (own, layers, once), (shared, _, again) = results
    assert layers > 1
    assert once * (2 * layers - 1) == again * layers
    for kept in ("energies", "forces", "virial"):
        assert torch.equal(getattr(own, kept), getattr(shared, kept))


@pytest.mark.parametrize("name", FUSED)
def test_what_float64_leaves_is_the_error_of_the_tables(name: str) -> None:
    settings = FUSED[name]
    evaluator = fused("compiled", settings, "double")
    for system in systems_for(FUSED[name]):
        exact = evaluated(network(**settings), system)
        assert_agrees(
            computed(evaluator, system, backend="compiled"),
            exact,
            rms=5e-6,
            worst=1e-5,
            energy=1e-7,
        )


@pytest.mark.parametrize("name", ["O(3)", "SO(3), to neighbor", "gated", "TensorNet2, everything"])
def test_both_backends_agree_in_float64(name: str) -> None:
    settings = FUSED[name]
    compiled, triton = (
        computed(fused(backend, settings, "double"), crystal(2), backend=backend)
        for backend in ("compiled", "triton")
    )
    assert_agrees(triton, compiled, rms=1e-11, worst=1e-11, energy=1e-11)


@pytest.mark.parametrize("name", FUSED)
def test_forces_and_virial_are_differences_of_the_tabulated_energy(name: str) -> None:
    settings = FUSED[name]
    evaluator = fused("compiled", settings, "double")
    rng = np.random.default_rng(31)
    for system in systems_for(FUSED[name]):
        state = computed(evaluator, system, backend="compiled")
        forces, virial = state.forces.numpy(), state.virial[0].numpy()
        direction = rng.normal(size=forces.shape)
        strain = rng.normal(size=(3, 3)) / 3

        def energy(step: float, system: System = system, way: Any = (direction, strain)) -> float:
            deformation = np.eye(3) + step * way[1]
            moved = system.replace(
                positions=(system.positions + step * way[0]) @ deformation,
                cell=system.cell @ deformation,
            )
            return float(computed(evaluator, moved, backend="compiled").energy)

        expected = -(forces * direction).sum() - (virial * strain).sum()
        scale = np.linalg.norm(forces) * np.linalg.norm(direction)
        # Second derivatives of the cubics jump between intervals; small steps seldom cross one.
        assert abs(slope(lambda step: energy(0.1 * step)) * 10 - expected) < 1e-7 * scale


@pytest.mark.parametrize("name", ["O(3)", "no layers"])
def test_fast_rounds_within_its_bound_and_on_triton_alone(backend: str, name: str) -> None:
    settings = FUSED[name]
    system = crystal(few(backend, 4, 2))
    exact = evaluated(network(**settings), system)
    mixed, fast = (
        computed(fused(backend, settings, precision), system, backend=backend)
        for precision in ("mixed", "fast")
    )
    if backend == "compiled":
        assert same(mixed, fast)
        return
    scale = float(exact.forces.square().mean().sqrt())
    error = (fast.forces.cpu() - exact.forces).square().mean().sqrt()
    change = (fast.forces - mixed.forces).square().mean().sqrt()
    assert float(error) < 2e-3 * max(scale, SMALLEST_FORCE)
    if name == "no layers":
        # All between moments and their gradient is float32 at up to 16 channels, in both.
        assert float(change) == 0.0
    else:
        # Float32 leaves 1e-6 of F.
        assert float(change) > 1e-5 * scale


def test_fast_multiplies_in_halves_for_many_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = fused("triton", TENSORNET, "fast")
    systems = molecule(2), crystal(3)
    few_atoms = computed(evaluator, *systems, backend="triton")
    shapes = workspace.shapes
    monkeypatch.setattr(workspace, "shapes", lambda channels, _, *of: shapes(channels, 9000, *of))
    many_atoms = computed(fused("triton", TENSORNET, "fast"), *systems, backend="triton")
    exact = evaluated(network(**TENSORNET), *systems)
    errors = [
        float((state.forces.cpu() - exact.forces).square().mean().sqrt())
        for state in (few_atoms, many_atoms)
    ]
    assert errors[0] != errors[1]
    assert errors[1] < 1.5 * errors[0]
    total = torch.stack([many_atoms.grouping.sum(one) for one in many_atoms.forces.T])
    assert float(total.abs().max()) < 1e-12


def test_forces_of_fast_add_up_to_zero(backend: str) -> None:
    evaluator = fused(backend, TENSORNET, "fast")
    state = computed(evaluator, molecule(2), crystal(4), backend=backend)
    total = torch.stack([state.grouping.sum(one) for one in state.forces.T])
    assert float(state.forces.abs().max()) > 1e-2
    assert float(total.abs().max()) < 1e-12


def test_a_batch_has_the_results_of_its_systems_alone(backend: str) -> None:
    settings = TENSORNET | {"charge_factor": True}
    evaluator = fused(backend, settings)
    systems = (molecule(few(backend, 3, 2), charge=1.0), crystal(few(backend, 4, 2), charge=-1.0))
    both = computed(evaluator, *systems, backend=backend)
    for number, system in enumerate(systems):
        alone = computed(evaluator, system, backend=backend)
        mine = both.grouping.index == number
        torch.testing.assert_close(both.forces[mine], alone.forces, rtol=0, atol=3e-5)
        torch.testing.assert_close(both.energy[number], alone.energy[0], rtol=0, atol=3e-6)
        torch.testing.assert_close(both.virial[number], alone.virial[0], rtol=0, atol=1e-4)


# Hard cases


def pair(distance: float) -> System:
    return System([8, 1], np.array([[0.0, 0.0, 0.0], [0.0, distance, 0.0]]))


HARD: dict[str, System] = {
    "one atom": System([8], np.zeros((1, 3))),
    "0.3 A": pair(0.3),
    "on the cutoff": pair(3.4),
    "just within": pair(3.4 - 1e-9),
    "isolated": System([8, 1, 1], np.array([[0.0, 0, 0], [0, 1.0, 0], [30.0, 0, 0]])),
    "its own images": System([8], np.zeros((1, 3)), cell=np.eye(3) * 2.1, pbc=True),
    "far from the cell": System(
        [8, 1], np.array([[1e3, -2e3, 5.0], [1e3, -2e3 + 1.0, 5.0]]), cell=np.eye(3) * 4, pbc=True
    ),
}


HARD_CASES = [
    (backend, name, architecture)
    for backend in ("compiled", "triton")
    for name in HARD
    for architecture in ("O(3)", "TensorNet2, Coulomb")
    # The interpreter runs each structure by one architecture.
    if backend == "compiled"
    or CUDA
    or (architecture == "O(3)") == (name in ("one atom", "just within", "its own images"))
]


@pytest.mark.parametrize(("backend", "name", "architecture"), HARD_CASES)
def test_hard_structures_agree_with_the_oracle(backend: str, name: str, architecture: str) -> None:
    settings = FUSED[architecture] | {"layers": 1}
    exact = evaluated(network(**settings), HARD[name])
    state = computed(fused(backend, settings), HARD[name], backend=backend)
    floor = max(1.0, float(exact.forces.square().mean().sqrt()))
    torch.testing.assert_close(state.forces.cpu(), exact.forces, rtol=0, atol=1e-4 * floor)
    torch.testing.assert_close(state.energies.cpu(), exact.energies, rtol=0, atol=3e-6)
    torch.testing.assert_close(state.virial.cpu(), exact.virial, rtol=0, atol=1e-4 * floor)


@pytest.mark.parametrize("atoms", [2, 15, 16, 17, 33])
def test_any_number_of_atoms_agrees_with_the_oracle(atoms: int) -> None:
    settings = TENSORNET
    rng = np.random.default_rng(atoms)
    positions = 1.3 * np.stack(np.unravel_index(np.arange(atoms), (4, 4, 4)), 1)
    system = System(
        np.resize([8, 1, 6], atoms), positions + rng.normal(scale=0.1, size=positions.shape)
    )
    exact = evaluated(network(**settings), system)
    backend = "triton" if CUDA else "compiled"
    state = computed(fused(backend, settings), system, backend=backend)
    assert_agrees(state, exact, rms=2e-5, worst=1e-4, energy=2e-6)


@pytest.mark.parametrize("atoms", [1_000, 3_000, 24_000])
def test_blocks_of_any_size_agree_with_the_oracle(
    atoms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks go by the number of atoms, so those of large systems are tried on a small one."""
    plain = workspace.shapes
    monkeypatch.setattr(
        workspace, "shapes", lambda channels, _, *more: plain(channels, atoms, *more)
    )
    settings = TENSORNET | {"layers": 1}
    exact = evaluated(network(**settings), molecule(3))
    state = computed(fused("triton", settings), molecule(3), backend="triton")
    assert_agrees(state, exact, rms=2e-5, worst=1e-4, energy=2e-6)


CHANNELS = [("compiled", 1), ("compiled", 16), ("compiled", 24), ("compiled", 40)]
CHANNELS += [("triton", channels) for channels in ((1, 16, 24, 40, 130) if CUDA else (24, 40))]


@pytest.mark.parametrize(("backend", "channels"), CHANNELS)
def test_any_number_of_channels_agrees_with_the_oracle(backend: str, channels: int) -> None:
    settings = TENSORNET | {"channels": channels, "layers": 1}
    exact = evaluated(network(**settings), crystal(4))
    state = computed(fused(backend, settings), crystal(4), backend=backend)
    # Many channels with random weights amplify rounding: autograd in float32 errs by 5e-5 in
    # forces, by 7e-5 eV in energies and by 5e-6 eV/A^3 in stress.
    assert_agrees(state, exact, rms=1e-4, worst=5e-4, energy=1e-4, stress=3e-5)


# Bits


def same(first: State, second: State) -> bool:
    names = ("energies", "energy", "forces", "virial")
    return all(torch.equal(getattr(first, one), getattr(second, one)) for one in names)


@pytest.mark.parametrize(
    ("name", "precision"), [("O(3)", "mixed"), ("O(3)", "fast"), ("TensorNet2, Coulomb", "mixed")]
)
def test_the_bits_do_not_depend_on_capacity_or_skin(
    backend: str, name: str, precision: str
) -> None:
    settings = FUSED[name] | {"layers": 1}
    evaluator = fused(backend, settings, precision)
    system = crystal(few(backend, 6, 2))
    tight = computed(evaluator, system, backend=backend)
    assert same(tight, computed(evaluator, system, backend=backend, capacity=300))
    assert same(tight, computed(evaluator, system, backend=backend, skin=0.7))


def test_a_state_that_moves_has_the_results_of_a_new_one(backend: str) -> None:
    settings = TENSORNET | {"layers": 1}
    evaluator = fused(backend, settings)
    systems = {seed: molecule(few(backend, 4, 2), seed=seed) for seed in (1, 4)}
    state = State([systems[1]], device_of(backend))
    lists = lists_for(state, evaluator.potential)
    new = {seed: computed(evaluator, systems[seed], backend=backend) for seed in systems}
    for seed in (1, 4, 1):
        state.positions.copy_(new[seed].positions)
        for one in lists:
            one.update_(state.positions, state.cell)
        evaluator.evaluate_(state, lists)
        assert same(state, new[seed])


@pytest.mark.parametrize(
    "settings",
    [NETWORKS["TensorNet2, all pairs"] | {"layers": 0}, NETWORKS["charge factor"] | {"layers": 1}],
    ids=["TensorNet2", "charge factor"],
)
def test_total_charges_are_read_at_every_evaluation(backend: str, settings: dict[str, Any]) -> None:
    evaluator = fused(backend, settings)
    more = few(backend, 3, 2)
    state = computed(
        evaluator, molecule(more, charge=1.0), molecule(2, charge=0.0), backend=backend
    )
    neutral = state.energy.clone()
    state.charge.copy_(torch.tensor([-1.0, 2.0]))
    evaluator.evaluate_(state, lists_for(state, evaluator.potential))
    systems = (molecule(more, charge=-1.0), molecule(2, charge=2.0))
    assert same(state, computed(evaluator, *systems, backend=backend))
    assert bool((state.energy != neutral).all())


def test_one_evaluator_keeps_the_buffers_of_several_states(backend: str) -> None:
    evaluator = fused(backend, TENSORNET | {"layers": 1})
    first = computed(evaluator, molecule(few(backend, 3, 2)), backend=backend)
    kept = list(first.workspaces.values())
    again = {name: getattr(first, name).clone() for name in ("energy", "forces")}
    other = computed(evaluator, crystal(2), backend=backend)
    assert not same(first, other)
    first.forces.zero_()
    evaluator.evaluate_(first, lists_for(first, evaluator.potential))
    # A graph captured before the second state came would still write into these.
    assert all(one is two for one, two in zip(kept, first.workspaces.values(), strict=True))
    assert torch.equal(first.forces, again["forces"])
    assert torch.equal(first.energy, again["energy"])


def test_buffers_are_freed_with_their_state(backend: str) -> None:
    evaluator = fused(backend, TENSORNET | {"layers": 1})
    state = computed(evaluator, molecule(2), backend=backend)
    kept = [ref(one) for one in state.workspaces.values()]
    assert all(one() is not None for one in kept)
    del state
    assert all(one() is None for one in kept)


# Choice


def test_the_fused_form_is_chosen_where_there_is_one() -> None:
    potential = network(**TENSORNET)
    kinds = {
        name: type(Calculation([molecule()], potential, device="cpu", evaluator=name).evaluator)
        for name in ("auto", "fused", "reference")
    }
    assert kinds == {
        "auto": FusedTensorNet,
        "fused": FusedTensorNet,
        "reference": AutogradEvaluator,
    }
    double = Calculation([molecule()], potential, device="cpu", precision="double")
    assert type(double.evaluator) is AutogradEvaluator


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TENSORNET | {"channels": 272, "layers": 0}, "272 channels"),
        (TENSORNET | {"layers": 0, "readout": {"hidden": (300,)}}, "wider than 256"),
    ],
)
def test_networks_without_a_fused_form_run_on_the_reference_with_a_warning(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    potential = TensorNetPotential(TensorNetConfig.model_validate(settings))
    with caplog.at_level(logging.WARNING):
        calculation = Calculation([molecule()], potential, device="cpu")
    assert type(calculation.evaluator) is AutogradEvaluator
    assert said in caplog.text
    assert "reference evaluator" in caplog.text
    with pytest.raises(NotFusedError, match=said):
        FusedTensorNet(potential)
    with pytest.raises(InputError, match=said):
        Calculation([molecule()], potential, device="cpu", evaluator="fused")


def test_a_network_too_steep_for_tables_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_steep(*_: object) -> None:
        raise TableError("Table 1 errs by 1e-3.")

    monkeypatch.setattr("mdgraph.fused.evaluator.shared_tables", too_steep)
    calculation = Calculation([molecule()], network(**TENSORNET), device="cpu")
    assert type(calculation.evaluator) is AutogradEvaluator
    assert "Table 1 errs by 1e-3. The slower reference evaluator runs." in caplog.text


def test_an_unknown_evaluator_is_refused() -> None:
    with pytest.raises(InputError, match="'fast'; choose one of auto, fused, reference"):
        Calculation([molecule()], network(**TENSORNET), device="cpu", evaluator="fast")


# Dynamics


def drift(make: Callable[[], Simulation], steps: int) -> float:
    """Largest change of the total energy over a run, eV."""
    run = make()
    energies = []
    for _ in range(10):
        run.run(steps // 10)
        seen = run.observables()
        energies.append(float(seen.potential_energy + seen.kinetic_energy))
    return max(energies) - min(energies)


def test_constant_energy_is_conserved_as_the_oracle_conserves_it() -> None:
    def make(evaluator: str) -> Simulation:
        return Simulation(
            molecule(7),
            network(**TENSORNET),
            VelocityVerlet(0.05),
            device="cpu",
            evaluator=evaluator,
            seed=3,
            temperature=50.0,
            check=False,
        )

    fast, exact = (drift(lambda name=name: make(name), 200) for name in ("fused", "reference"))
    assert fast < 1.05 * exact + 1e-6


def test_lists_beyond_the_network_belong_to_the_analytic_terms(backend: str) -> None:
    settings = NETWORKS["far repulsion"] | {"layers": 1}
    evaluator = fused(backend, settings)
    state = State([crystal(4)], device_of(backend))
    lists = [NeighborList(state, cutoff) for cutoff in evaluator.cutoffs]
    evaluator.evaluate_(state, lists)
    exact = evaluated(network(**settings), crystal(4))
    assert_agrees(state, exact, rms=1e-5, worst=1e-4, energy=1e-6)
