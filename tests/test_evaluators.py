"""Derivatives, precision and smoothness of the reference evaluator."""

from typing import Any

import numpy as np
import pytest
import torch
from network_cases import COULOMB, NETWORKS, SOME, clear_of_ends, close, slope, systems_for
from random_networks import (
    TENSORNET,
    atoms_of,
    crystal,
    energy_of,
    evaluated,
    lists_for,
    molecule,
    network,
    spread_atoms,
)
from torch import Tensor

from mdgraph.evaluators import AutogradEvaluator
from mdgraph.models import TensorNetPotential
from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.state import State
from mdgraph.system import System

# Derivatives


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_forces_and_virial_are_differences_of_the_energy(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    rng = np.random.default_rng(21)
    for system in systems_for(settings):
        state = evaluated(potential, system)
        forces, virial = state.forces.numpy(), state.virial[0].numpy()
        assert np.abs(forces).max() > 1e-3
        # A random direction has a part along every component.
        direction = rng.normal(size=forces.shape)

        def along(step: float, system: System = system, way: Any = direction) -> float:
            moved = system.replace(positions=system.positions + step * way)
            return float(energy_of(potential, moved))

        scale = np.linalg.norm(forces) * np.linalg.norm(direction)
        assert abs(slope(along) + (forces * direction).sum()) < 1e-9 * scale

        # Any deformation, turning included: the virial is that of the whole gradient.
        strain = rng.normal(size=(3, 3)) / 3

        def strained(step: float, system: System = system, way: Any = strain) -> float:
            deformation = np.eye(3) + step * way
            positions, cell = system.positions @ deformation, system.cell @ deformation
            return float(energy_of(potential, system.replace(positions=positions, cell=cell)))

        scale = np.linalg.norm(virial) * np.linalg.norm(strain)
        assert abs(slope(strained) + (virial * strain).sum()) < 1e-9 * scale


@pytest.mark.parametrize("pbc", [(True, True, False), (False, True, False)])
def test_derivatives_along_partly_periodic_directions(pbc: tuple[bool, bool, bool]) -> None:
    potential = network(**COULOMB)
    system = clear_of_ends(crystal, 6, 1.0, pbc)
    state = evaluated(potential, system)
    rng = np.random.default_rng(22)
    direction = rng.normal(size=state.forces.shape)
    strain = rng.normal(size=(3, 3)) / 3

    def energy(step: float) -> float:
        deformation = np.eye(3) + step * strain
        positions = (system.positions + step * direction) @ deformation
        moved = system.replace(positions=positions, cell=system.cell @ deformation)
        return float(energy_of(potential, moved))

    expected = -(state.forces.numpy() * direction).sum() - (state.virial[0].numpy() * strain).sum()
    assert slope(energy) == pytest.approx(expected, rel=1e-7)


def force_loss(potential: TensorNetPotential, state: State, graph: bool) -> Tensor:
    """A loss of forces and virials as training has it."""
    lists = lists_for(state, potential)
    pairs = tuple(one.pairs(state.positions, state.cell) for one in lists)
    energies = potential(atoms_of(state), pairs)
    leaves = [vectors for one in pairs for vectors in one.vectors]
    gradients = torch.autograd.grad(energies.sum(), leaves, create_graph=graph)
    loss = energies.square().sum()
    start = 0
    for one in pairs:
        stop = start + len(one.blocks)
        forces, virials = forces_and_virials(one, gradients[start:stop])
        loss = loss + forces.square().sum() + state.grouping.sum(virials).square().sum()
        start = stop
    return loss


@pytest.mark.parametrize(
    "name", ["O(3)", "SO(3)", "gated", "spherical Bessel", "TensorNet2, everything"]
)
def test_a_loss_of_forces_has_the_gradient_of_its_differences(name: str) -> None:
    potential = network(**NETWORKS[name])
    state = State([molecule(5, charge=1.0), crystal(4)])
    loss = force_loss(potential, state, graph=True)
    parameters = list(potential.parameters())
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    generator = torch.Generator().manual_seed(23)
    start = [parameter.detach().clone() for parameter in parameters]
    for _ in range(2):
        ways = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]

        def along(step: float, ways: list[Tensor] = ways) -> float:
            with torch.no_grad():
                for parameter, value, way in zip(parameters, start, ways, strict=True):
                    parameter.copy_(value + 0.1 * step * way)
            return float(force_loss(potential, state, graph=False).detach())

        pieces = zip(gradients, ways, strict=True)
        expected = 0.1 * sum(float((g * way).sum()) for g, way in pieces)
        assert slope(along) == pytest.approx(expected, rel=1e-6)
        along(0.0)


# Precision


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_mixed_precision_is_close_to_double(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    systems = [one.replace(positions=one.positions + 500.0) for one in systems_for(settings)]
    exact = evaluated(potential, *systems)
    force = exact.forces.square().mean().sqrt()
    mixed = evaluated(potential, *systems, kind=torch.float32)
    assert mixed.forces.dtype == torch.float64
    assert (mixed.energies - exact.energies).abs().max() < 2e-6 * exact.energies.abs().max()
    assert (mixed.forces - exact.forces).abs().max() < 1e-4 * force
    assert (mixed.virial - exact.virial).abs().max() < 1e-4 * exact.virial.abs().max()


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_single_precision_is_close_to_double(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    systems = systems_for(settings)
    exact = evaluated(potential, *systems)
    force = exact.forces.square().mean().sqrt()
    single = evaluated(potential, *systems, kind=torch.float32, state_kind=torch.float32)
    assert single.forces.dtype == torch.float32
    assert (single.energies - exact.energies).abs().max() < 1e-5 * exact.energies.abs().max()
    assert (single.forces - exact.forces).abs().max() < 1e-3 * force


def test_large_references_are_added_in_double() -> None:
    potential = network(**TENSORNET)
    bare = evaluated(potential, molecule(), kind=torch.float32)
    potential.references -= 1e5
    large = evaluated(potential, molecule(), kind=torch.float32)
    torch.testing.assert_close(large.energies + 1e5, bare.energies, rtol=0, atol=1e-9)


# Buffers


def test_buffers_are_written_in_place_and_repeat_to_the_bit() -> None:
    potential = network(**NETWORKS["TensorNet2, everything"])
    state = State([crystal(charge=1.0), molecule()])
    evaluator = AutogradEvaluator(potential.at_precision(torch.float32))
    lists = lists_for(state, potential)
    names = ("energies", "forces", "energy", "virial", "positions", "cell")
    places = [getattr(state, name).data_ptr() for name in names]
    evaluator.evaluate_(state, lists)
    first = {name: getattr(state, name).clone() for name in names}
    for _ in range(2):
        evaluator.evaluate_(state, lists)
    assert [getattr(state, name).data_ptr() for name in names] == places
    for name in names:
        assert torch.equal(getattr(state, name), first[name])
        assert not getattr(state, name).requires_grad
    close(state.energy, state.grouping.sum(state.energies))


# Smoothness

WINDOWED = {name: settings for name, settings in NETWORKS.items() if settings.get("coulomb") != {}}


def far_end(settings: dict[str, Any]) -> float:
    coulomb = (settings.get("coulomb") or {}).get("cutoff", 0.0)
    repulsion = max((part["cutoff"] for part in settings.get("repulsion", ())), default=0.0)
    return max(settings["cutoff"], coulomb, repulsion)


def pair_apart(distance: float) -> System:
    way = np.array([0.48, -0.6, 0.64])
    return System([8, 1], [[0.0, 0.0, 0.0], list(distance * way)])


@pytest.mark.parametrize("settings", WINDOWED.values(), ids=WINDOWED)
def test_a_pair_at_its_cutoff_or_beyond_is_exactly_no_pair(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    end = far_end(settings)
    for kind in (torch.float64, torch.float32):
        copy = potential.at_precision(kind)
        alone = evaluated(copy, pair_apart(end + 30.0)).energies
        # With a skin the pair is in the list; without one it is not.
        for distance, skin in (end * (1 + 1e-15), 1.0), (end + 0.9, 1.0), (end + 0.2, 0.0):
            state = evaluated(copy, pair_apart(distance), skin=skin)
            assert torch.equal(state.energies, alone)
            assert (state.forces == 0.0).all()
            assert (state.virial == 0.0).all()


@pytest.mark.parametrize("settings", WINDOWED.values(), ids=WINDOWED)
def test_the_energy_is_smooth_where_pairs_enter_and_leave(settings: dict[str, Any]) -> None:
    """Across every end of a window in a crowd; the reaction field alone has a kinked end."""
    potential = network(**settings)
    crowd = spread_atoms(5, np.eye(3) * 2.6, False, seed=6)
    ends = {settings["cutoff"], settings.get("cutoff_lower", 0.0), far_end(settings)}
    ends |= {part["cutoff"] for part in settings.get("repulsion", ())}
    coulomb = (settings.get("coulomb") or {}).get("cutoff")
    for end in ends - {0.0}:
        away = crowd[0] + end * np.array([-0.48, -0.64, -0.6])
        away = crowd[0] + (away - crowd[0]) * end / np.linalg.norm(away - crowd[0])

        def at(step: float, away: Any = away) -> State:
            outward = (away - crowd[0]) / np.linalg.norm(away - crowd[0])
            positions = np.concatenate([crowd, [away + step * outward]])
            system = System([8, 1, 1, 6, 1, 1], positions, charge=1.0)
            return evaluated(potential, system)

        below, above = at(-1e-7), at(1e-7)
        force = float(below.forces.abs().max())
        assert abs(float(below.energy - above.energy)) < 1e-5 * (force + 1.0)
        if end != coulomb:
            assert (below.forces - above.forces).abs().max() < 1e-4 * (force + 1.0)
