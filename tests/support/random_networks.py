"""Small networks with random weights, systems for them, and their evaluation."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.evaluators import AutogradEvaluator
from mdgraph.models import Atoms, TensorNetConfig, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

TENSORNET: dict[str, Any] = {
    "species": (8, 1, 6),
    "channels": 6,
    "layers": 2,
    "cutoff": 3.4,
    "radial_basis": {"number": 5},
    "readout": {"hidden": (4,)},
    "self_interaction": True,
}
TENSORNET2 = TENSORNET | {"architecture": "tensornet2", "charge_channels": 2}


def random_network(scale: float, settings: dict[str, Any]) -> TensorNetPotential:
    """A potential whose tensors are all random, norms, references and charges' weights too.

    Args:
        scale: of its energies.
        settings: of its TensorNetConfig.
    """
    torch.manual_seed(11)
    potential = TensorNetPotential(TensorNetConfig.model_validate(settings))
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        potential.scale.fill_(scale)
        potential.shift.fill_(-0.9)
        potential.references.copy_(-10.0 * torch.rand(len(potential.species)))
        for part, config in zip(potential.repulsions, potential.config.repulsion, strict=True):
            if config.kind == "torchmdnet_network":
                part.powers.copy_(torch.arange(len(part.powers), dtype=torch.float64) ** 0.3)
                part.radii.copy_(1.2 + torch.rand(part.radii.shape).tril())
                part.radii.copy_(torch.maximum(part.radii, part.radii.T))
            if config.kind == "matgl":
                # Near the universal ones: others leave nothing of the energy, or are too stiff.
                part.constant.fill_(14.0)
                for parameter, values in (
                    (part.power, [0.25]),
                    (part.division, [2.1]),
                    (part.coefficients, [0.2, 0.5, 0.3, 0.04]),
                    (part.exponents, [3.0, 1.0, 0.4, 0.2]),
                ):
                    parameter.copy_(torch.tensor(values, dtype=torch.float64).expm1().log())
        if potential.coulomb is not None:
            potential.coulomb.weights.copy_(torch.rand(len(potential.coulomb.weights)) + 0.1)
    return potential


def network(**settings: Any) -> TensorNetPotential:
    """A potential whose tensors are all random, norms, scale and references too."""
    return random_network(1.7, settings)


def spread_atoms(
    atoms: int, cell: NDArray[np.float64], pbc: object, seed: int, apart: float = 1.0
) -> NDArray[np.float64]:
    """Random places in a cell, none closer to another or its images than said."""
    rng = np.random.default_rng(seed)
    periodic = np.broadcast_to(np.asarray(pbc, dtype=bool), 3)
    near = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3, indexing="ij"), -1).reshape(-1, 3) * periodic
    placed: list[NDArray[np.float64]] = []
    while len(placed) < atoms:
        trial = rng.random(3) @ cell
        leaps = [trial - other + image @ cell for other in placed for image in near]
        if all(np.linalg.norm(leap) > apart for leap in leaps):
            placed.append(trial)
    return np.array(placed)


TRICLINIC = np.array([[4.6, 0.3, 0.0], [1.0, 4.2, -0.2], [-0.5, 1.2, 4.9]])


def crystal(atoms: int = 6, charge: float | None = None, seed: int = 0) -> System:
    """A small triclinic cell, narrower than two cutoffs."""
    positions = spread_atoms(atoms, TRICLINIC, True, seed)
    numbers = np.resize([8, 1, 1, 6], atoms)
    return System(numbers, positions, cell=TRICLINIC, pbc=True, charge=charge)


def molecule(atoms: int = 7, charge: float | None = None, seed: int = 1) -> System:
    positions = spread_atoms(atoms, np.eye(3) * 3.6, False, seed)
    return System(np.resize([6, 1, 8, 1], atoms), positions, charge=charge)


def atoms_of(state: State) -> Atoms:
    return Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)


def crowd(atoms: int) -> System:
    """Atoms of three elements in a row of tiles, most of one."""
    rng = np.random.default_rng(atoms)
    places = 1.3 * np.stack(np.unravel_index(np.arange(atoms), (5, 5, 5)), 1)
    numbers = np.where(np.arange(atoms) % 9 == 4, 6, np.where(np.arange(atoms) % 4 == 1, 1, 8))
    return System(numbers, places + rng.normal(scale=0.1, size=places.shape))


def lists_for(
    state: State, potential: TensorNetPotential, capacity: int | None = None, skin: float = 0.0
) -> list[NeighborList]:
    lists = [NeighborList(state, cutoff, skin, capacity) for cutoff in potential.cutoffs]
    assert all(one.status().complete for one in lists)
    return lists


def energy_of(potential: TensorNetPotential, *systems: System) -> Tensor:
    """Energies (S,) eV without autograd."""
    state = State(systems)
    with torch.no_grad():
        pairs = tuple(one.pairs(state.positions, state.cell) for one in lists_for(state, potential))
        return state.grouping.sum(potential(atoms_of(state), pairs))


def evaluated(
    potential: TensorNetPotential,
    *systems: System,
    kind: torch.dtype = torch.float64,
    state_kind: torch.dtype = torch.float64,
    capacity: int | None = None,
    skin: float = 0.0,
    device: str = "cpu",
) -> State:
    """A state that holds what the evaluator wrote."""
    state = State(systems, device, state_kind)
    # Weights are made in float64; a copy costs more than an evaluation here.
    if kind != torch.float64 or device != "cpu":
        potential = potential.at_precision(kind).to(device)
    evaluator = AutogradEvaluator(potential)
    evaluator.evaluate_(state, lists_for(state, potential, capacity, skin))
    return state
