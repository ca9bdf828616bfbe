"""The repulsion of nuclei in its three dialects, and that of atoms nearer than in training."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from random_networks import TENSORNET, energy_of, evaluated, network
from torch import Tensor

from mdgraph.checkpoints import load, save
from mdgraph.models import Domain, TensorNetConfig, TensorNetPotential
from mdgraph.system import System


def dimer(first: int, second: int, distance: float) -> System:
    return System([first, second], [[0.0, 0.0, 0.0], [0.0, distance, 0.0]])


def repulsive_energy(kind: str, cutoff: float, distance: float) -> float:
    """The difference that the repulsion makes, of carbon and oxygen."""
    with_it = network(**TENSORNET, repulsion=({"kind": kind, "cutoff": cutoff},))
    without = network(**TENSORNET)
    system = dimer(6, 8, distance)
    return float(energy_of(with_it, system)) - float(energy_of(without, system))


COEFFICIENTS = np.array([0.1818, 0.5099, 0.2802, 0.02817])

EXPONENTS = np.array([3.2, 0.9423, 0.4029, 0.2016])


@pytest.mark.parametrize("distance", [0.7, 1.3, 2.4, 3.3])
def test_prior_repulsion_is_universal_screening_times_a_cosine(distance: float) -> None:
    cutoff = 2.9
    length = 0.8854 * 0.529177210903 / (6**0.23 + 8**0.23)
    screening = COEFFICIENTS @ np.exp(-EXPONENTS * distance / length)
    expected = 14.39964548 * 48 / distance * screening
    expected *= 0.5 * (1.0 + math.cos(math.pi * distance / cutoff)) if distance < cutoff else 0.0
    assert repulsive_energy("torchmdnet_prior", cutoff, distance) == pytest.approx(
        expected, rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize("distance", [0.7, 1.1, 2.4])
def test_network_repulsion_is_scaled_and_ends_at_the_radii(distance: float) -> None:
    settings = TENSORNET | {"repulsion": ({"kind": "torchmdnet_network", "cutoff": 3.4},)}
    (part,) = network(**settings).repulsions
    length = 0.4543 / 1.8897261258369282 / (6**0.3 + 8**0.3)
    u = distance / float(part.radii[6, 8])
    window = 1.0 - 28.0 * u**6 + 48.0 * u**7 - 21.0 * u**8 if u < 1.0 else 0.0
    screening = COEFFICIENTS @ np.exp(-EXPONENTS * distance / length)
    # Inside the network, so the scale of 1.7 applies.
    expected = 1.7 * 14.399645 * 48 / distance * screening * window
    assert repulsive_energy("torchmdnet_network", 3.4, distance) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_network_repulsion_is_nothing_beyond_the_range_of_its_list() -> None:
    settings = TENSORNET | {"repulsion": ({"kind": "torchmdnet_network", "cutoff": 3.4},)}
    potential, without = network(**settings), network(**TENSORNET)
    potential.repulsions[0].radii.fill_(9.0)
    system = dimer(6, 8, 3.5)
    bare = evaluated(without, system).energy
    assert torch.equal(evaluated(potential, system).energy, bare)
    assert torch.equal(evaluated(potential, system, skin=1.0).energy, bare)


@pytest.mark.parametrize("distance", [0.3, 0.7, 0.98, 1.0])
def test_contact_repulsion_is_universal_and_ends_below_all_bonds(distance: float) -> None:
    """At 0.7 of 1.42 A of carbon and oxygen."""
    length = 0.8854 * 0.529177210903 / (6**0.23 + 8**0.23)
    u = distance / (0.7 * 1.42)
    window = 1.0 - 28.0 * u**6 + 48.0 * u**7 - 21.0 * u**8 if u < 1.0 else 0.0
    screening = COEFFICIENTS @ np.exp(-EXPONENTS * distance / length)
    expected = 14.399645 * 48 / distance * screening * window
    assert repulsive_energy("contact", 2.0, distance) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def domain_of(shortest: float) -> Domain:
    """Of hydrogen, carbon and oxygen, whose carbon and oxygen were so near."""
    species = torch.tensor([1, 6, 8])
    nearest = torch.full((3, 3), torch.inf, dtype=torch.float64)
    nearest[1, 2] = nearest[2, 1] = shortest
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    return Domain(species, nothing, nearest, nothing[:, :2], nothing, torch.eye(5), nothing[:, :2])


def test_atoms_that_were_near_in_training_feel_no_added_repulsion(tmp_path: Path) -> None:
    plain = network(**TENSORNET)
    added = plain.with_contact_repulsion(domain_of(0.8))
    for distance in (0.8, 0.9, 3.0):
        system = dimer(6, 8, distance)
        assert torch.equal(energy_of(added, system), energy_of(plain, system))
    near = dimer(6, 8, 0.7)
    assert float(energy_of(added, near)) > float(energy_of(plain, near)) + 0.1
    # Carbons, of which the training frames have no pair, repel each other from 0.7 of 1.52 A on.
    assert torch.equal(energy_of(added, dimer(6, 6, 1.07)), energy_of(plain, dimer(6, 6, 1.07)))
    assert float(energy_of(added, dimer(6, 6, 0.9))) > float(energy_of(plain, dimer(6, 6, 0.9)))

    save(added, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert torch.equal(energy_of(again, near), energy_of(added, near))
    assert again.flaw() is None
    once = added.with_contact_repulsion(domain_of(0.8))
    assert len(once.repulsions) == 1
    assert torch.equal(energy_of(once, near), energy_of(added, near))


@pytest.mark.parametrize("distance", [0.7, 1.3, 2.4, 3.3])
def test_trained_repulsion_keeps_its_constants_positive(distance: float) -> None:
    cutoff = 2.9
    settings = TENSORNET | {"repulsion": ({"kind": "matgl", "cutoff": cutoff},)}
    potential = network(**settings)
    (part,) = potential.repulsions

    def positive(parameter: Tensor) -> np.ndarray:
        return np.log1p(np.exp(parameter.detach().numpy()))

    weights = positive(part.coefficients)
    scale = (6 ** positive(part.power) + 8 ** positive(part.power)) * positive(part.division)
    terms = np.exp(-positive(part.exponents) * scale * distance)
    u = distance / cutoff
    window = 1.0 - 10.0 * u**3 + 15.0 * u**4 - 6.0 * u**5 if u < 1.0 else 0.0
    expected = float(part.constant) * 48 / distance * (weights @ terms / weights.sum()) * window
    system = dimer(6, 8, distance)
    bare = TensorNetPotential(potential.config.model_copy(update={"repulsion": ()}))
    bare.load_state_dict(
        {key: value for key, value in potential.state_dict().items() if "repulsions" not in key}
    )
    found = float(energy_of(potential, system)) - float(energy_of(bare, system))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("distance", [0.4, 1.3, 2.4])
def test_a_new_trained_repulsion_is_the_universal_one(distance: float) -> None:
    cutoff = 2.9
    energies = []
    for repulsion in ((), ({"kind": "matgl", "cutoff": cutoff},)):
        torch.manual_seed(3)
        config = TensorNetConfig.model_validate(TENSORNET | {"repulsion": repulsion})
        energies.append(float(energy_of(TensorNetPotential(config), dimer(6, 8, distance))))
    length = 0.8854 * 0.529177210903 / (6**0.23 + 8**0.23)
    u = distance / cutoff
    window = 1.0 - 10.0 * u**3 + 15.0 * u**4 - 6.0 * u**5
    # MatGL divides by the sum of the coefficients, which is not 1 to all its digits.
    screening = COEFFICIENTS @ np.exp(-EXPONENTS * distance / length) / COEFFICIENTS.sum()
    expected = 14.39964548 * 48 / distance * screening * window
    assert energies[1] - energies[0] == pytest.approx(expected, rel=1e-6)


def test_a_repulsion_that_reaches_farther_than_the_network_gets_a_list() -> None:
    potential = network(**TENSORNET, repulsion=({"kind": "torchmdnet_prior", "cutoff": 6.0},))
    assert potential.cutoffs == (3.4, 6.0)
    far = dimer(6, 8, 5.0)
    assert float(energy_of(potential, far)) != float(energy_of(network(**TENSORNET), far))
