"""The repulsion of the fused form: against autograd, its own differences, and bit by bit.

Triton's interpreter runs the kernel where there is no CUDA device, on cases of at most 8 atoms.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from backends import device_of
from cuda_water import liquid
from network_cases import REPULSIONS, slope
from random_networks import TENSORNET, TENSORNET2, crystal, lists_for, molecule, network
from torch import Tensor

from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cpu import packing
from mdgraph.fused.cpu import packing as buffers
from mdgraph.fused.cpu.pairwise import add_repulsion
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.weights import RepulsionWeights, packed
from mdgraph.models import Atoms, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.pairs import Pairs
from mdgraph.state import State
from mdgraph.system import System

CUTOFF = 3.0
SETTINGS: dict[str, dict[str, Any]] = {
    name: TENSORNET | {"layers": 0, "repulsion": ({"kind": name, "cutoff": CUTOFF},)}
    for name in REPULSIONS
}
SETTINGS["far"] = TENSORNET | {
    "layers": 0,
    "repulsion": ({"kind": "torchmdnet_prior", "cutoff": 4.3}, {"kind": "matgl", "cutoff": 2.0}),
}
SETTINGS["contact"] = TENSORNET | {
    "layers": 0,
    "repulsion": ({"kind": "contact", "cutoff": CUTOFF},),
}
COULOMB = TENSORNET2 | {
    "layers": 0,
    "coulomb": {"cutoff": 5.1},
    "repulsion": ({"kind": "torchmdnet_network", "cutoff": 2.0},),
}

BACKENDS = pytest.mark.parametrize("backend", ["compiled", "triton"])
NAMES = pytest.mark.parametrize("name", SETTINGS)


class Result(NamedTuple):
    """Energies (N,), forces (N, 3) and virials (9, N)."""

    energies: Tensor
    forces: Tensor
    virials: Tensor


class Alone:
    """The repulsion of a potential without its network."""

    uses_charge = False

    def __init__(self, potential: TensorNetPotential) -> None:
        self.cutoffs, self.species = potential.cutoffs, potential.species
        self._potential = potential

    def __call__(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        within, after = self._potential._repulsion_energies(
            atoms, self._potential.list_roles.assign(pairs)
        )
        return self._potential.scale * within + after


@cache
def potential(name: str) -> TensorNetPotential:
    made = network(**SETTINGS[name])
    if name == "contact":
        # Farther than it goes, so that atoms of the systems below are within it.
        (part,) = made.repulsions
        part.reach.copy_((2.2 * part.reach).clamp(max=CUTOFF))
    return made


@cache
def weights(backend: str, name: str) -> tuple[RepulsionWeights, ...]:
    return packed(potential(name), torch.float32, torch.device(device_of(backend))).repulsions


def computed(
    backend: str, name: str, *systems: System, broken: int | None = None, **options: Any
) -> Result:
    """What the kernels of a backend make of nothing but the repulsion.

    Args:
        backend: compiled or triton.
        name: of the settings.
        systems: what is computed.
        broken: an atom that goes to no finite place after the lists were made.
        options: of the lists.
    """
    device = device_of(backend)
    state = State(systems, device)
    model = potential(name)
    lists = dict(
        zip(model.cutoffs, lists_for(state, model, **options), strict=True)  # type: ignore[arg-type]
    )
    if broken is not None:
        state.positions[broken] = torch.nan
    rows = model.rows.to(device)[state.elements]
    result = Result(
        torch.zeros_like(state.energies),
        torch.zeros_like(state.forces),
        state.energies.new_zeros(9, len(state.energies)),
    )
    for one in weights(backend, name):
        pairs = lists[one.cutoff]
        if backend == "triton":
            from mdgraph.fused.cuda.repulsion import BoundRepulsion

            written = NetworkResult(result.energies, *result)
            bound = BoundRepulsion.to(one, rows, pairs)
            bound.add(state, len(state.numbers), pairs, written, {})
            continue
        add_repulsion(
            0,
            len(state.numbers),
            buffers.listed(state, pairs),
            packing.repulsion(one, rows),
            state.kinds.numpy(),
            *(tensor.numpy() for tensor in result),
        )
    return Result(*(tensor.cpu() for tensor in result))


def exact(name: str, *systems: System) -> State:
    """What autograd makes of the same formula."""
    state = State(systems)
    AutogradEvaluator(Alone(potential(name))).evaluate_(state, lists_for(state, potential(name)))
    return state


def pair(distance: float, first: int = 6, second: int = 8) -> System:
    # Along no axis, so that every component counts.
    way = np.array([2.0, -1.0, 2.0]) / 3.0
    return System([first, second], np.array([np.zeros(3), distance * way]))


SYSTEMS = {
    "0.3 A to the cutoff": (pair(0.3), pair(0.5, 1, 6), pair(0.9), pair(CUTOFF - 1e-3, 8, 8)),
    "molecule and crystal": (molecule(4), crystal(4)),
    "its own images": (System([8], np.zeros((1, 3)), cell=np.eye(3) * 1.2, pbc=True),),
}


@BACKENDS
@NAMES
@pytest.mark.parametrize("systems", SYSTEMS.values(), ids=SYSTEMS)
def test_repulsion_agrees_with_autograd_of_the_formula(
    backend: str, name: str, systems: tuple[System, ...]
) -> None:
    found, wanted = computed(backend, name, *systems), exact(name, *systems)
    assert float(wanted.energies.abs().max()) > 1e-2
    limits = {"rtol": 1e-12, "atol": 1e-13}
    torch.testing.assert_close(found.energies, wanted.energies, **limits)
    torch.testing.assert_close(found.forces, wanted.forces, **limits)
    virial = torch.stack([wanted.grouping.sum(one) for one in found.virials], dim=1)
    torch.testing.assert_close(virial, wanted.virial.flatten(1), **limits)


@NAMES
def test_forces_and_virial_are_differences_of_the_energy(name: str) -> None:
    rng = np.random.default_rng(17)
    for system in (pair(0.6), molecule(5), crystal(5)):
        result = computed("compiled", name, system)
        direction = rng.normal(size=result.forces.shape)
        strain = rng.normal(size=(3, 3)) / 3

        def energy(step: float, system: System = system, way: Any = (direction, strain)) -> float:
            deformation = np.eye(3) + step * way[1]
            moved = system.replace(
                positions=(system.positions + step * way[0]) @ deformation,
                cell=system.cell @ deformation,
            )
            return float(computed("compiled", name, moved).energies.sum())

        virial = result.virials.sum(1).view(3, 3).numpy()
        expected = -(result.forces.numpy() * direction).sum() - (virial * strain).sum()
        assert abs(slope(energy) - expected) < 1e-8 * float(result.forces.abs().max())


@BACKENDS
@NAMES
def test_pairs_beyond_the_cutoff_add_exactly_nothing(backend: str, name: str) -> None:
    end = max(part["cutoff"] for part in SETTINGS[name]["repulsion"])
    if name in ("torchmdnet_network", "contact"):
        (part,) = potential(name).repulsions
        end = float((part.reach if name == "contact" else part.radii)[6, 8])
    ends = (end, float(np.nextafter(end, 9.0)))
    systems = [System([6, 8], np.array([[0.0, 0, 0], [0, 0, one]])) for one in ends]
    nothing = computed(backend, name, *systems, System([1], np.zeros((1, 3))), skin=0.5)
    assert not any(tensor.any() for tensor in nothing)
    just_within = System([6, 8], np.array([[0.0, 0, 0], [0, 0, 0.999 * end]]))
    assert bool((computed(backend, name, just_within).energies > 0).all())


@BACKENDS
def test_a_broken_system_reaches_no_other(backend: str) -> None:
    """A batch must be able to say which of its systems went bad."""
    systems = (pair(0.9), molecule(3))
    found, wanted = (computed(backend, "far", *systems, broken=atom) for atom in (0, None))
    assert torch.equal(found.energies[2:], wanted.energies[2:])
    assert torch.equal(found.forces[2:], wanted.forces[2:])
    assert torch.equal(found.virials[:, 2:], wanted.virials[:, 2:])


@BACKENDS
def test_the_scale_of_the_network_multiplies_its_own_repulsion_alone(backend: str) -> None:
    """What a checkpoint trained within the network is in units of its outputs."""
    for name, factor in (("torchmdnet_network", 1.7), ("torchmdnet_prior", 1.0)):
        (one,) = weights(backend, name)
        numbers = torch.tensor(potential(name).species)
        part = potential(name).repulsions[0].constants(numbers[:, None], numbers)
        torch.testing.assert_close(one.constants[..., 0].cpu(), factor * part.strength)


# Bits


@BACKENDS
@NAMES
def test_the_bits_do_not_depend_on_capacity_or_skin(backend: str, name: str) -> None:
    options: tuple[dict[str, Any], ...] = ({}, {"capacity": 150}, {"skin": 0.7})
    found = [computed(backend, name, crystal(3), **one) for one in options]
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))


def numbers(state: State) -> list[Tensor]:
    return [one.cpu() for one in (state.energies, state.energy, state.forces, state.virial)]


@BACKENDS
def test_a_list_of_its_own_may_grow(backend: str) -> None:
    device = device_of(backend)
    evaluator = FusedTensorNet(potential("far"), "mixed", device, backend)  # type: ignore[arg-type]
    state = State([crystal(2)], device)
    own, far = lists_for(state, evaluator.potential)
    evaluator.evaluate_(state, [own, far])
    before = numbers(state)
    grown = NeighborList(state, far.cutoff, 0.0, 3 * far.capacity)
    evaluator.evaluate_(state, [own, grown])
    assert all(map(torch.equal, before, numbers(state)))


@pytest.mark.parametrize("settings", [SETTINGS["far"], COULOMB], ids=["far", "Coulomb"])
def test_threads_change_no_bit(settings: dict[str, Any]) -> None:
    evaluator = FusedTensorNet(network(**settings))
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            state = State([liquid(20), crystal(6)])
            evaluator.evaluate_(state, lists_for(state, evaluator.potential))
            results.append(numbers(state))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


# On the card


@pytest.mark.gpu
@NAMES
def test_a_liquid_on_cuda_is_that_on_the_cpu(name: str) -> None:
    systems = (liquid(1000), liquid(5, seed=2))
    found, wanted = (computed(backend, name, *systems) for backend in ("triton", "compiled"))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [*SETTINGS.values(), COULOMB], ids=[*SETTINGS, "Coulomb"])
def test_a_graph_gives_the_bits_of_eager_steps(settings: dict[str, Any]) -> None:
    runs = [
        Simulation(
            liquid(),
            network(**settings),
            VelocityVerlet(0.05),
            device="cuda",
            seed=5,
            temperature=300.0,
            maximum_temperature=float("inf"),
            check=False,
            graph=graph,
            skin=0.3,
        )
        for graph in ("on", "off")
    ]
    for run in runs:
        run.run(60)
    one, other = (run.state.tensors() for run in runs)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
