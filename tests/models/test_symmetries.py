"""What may not change an energy: rotations, translations, order, copies; and what must."""

from typing import Any

import numpy as np
import pytest
import torch
from network_cases import CHARGED, NETWORKS, SOME, close, systems_for
from numpy.typing import NDArray
from random_networks import (
    TENSORNET,
    TENSORNET2,
    atoms_of,
    crystal,
    energy_of,
    evaluated,
    lists_for,
    molecule,
    network,
)

from mdgraph.state import State
from mdgraph.system import System


def random_rotation(seed: int, sign: float = 1.0) -> NDArray[np.float64]:
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return matrix * np.sign(np.linalg.det(matrix)) * sign


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_rotations_turn_forces_and_virial_and_leave_the_energy(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    signs = (1.0,) if settings.get("group") == "SO(3)" else (1.0, -1.0)
    for number, system in enumerate(systems_for(settings)):
        state = evaluated(potential, system)
        for sign in signs:
            turn = random_rotation(number, sign)
            turned = evaluated(
                potential,
                system.replace(positions=system.positions @ turn, cell=system.cell @ turn),
            )
            matrix = torch.from_numpy(turn)
            close(turned.energies, state.energies)
            close(turned.forces, state.forces @ matrix)
            close(turned.virial, matrix.T @ state.virial @ matrix)


def test_only_the_smaller_group_tells_mirror_images_apart() -> None:
    system = molecule()
    mirrored = system.replace(positions=system.positions * [1.0, 1.0, -1.0])
    for settings in (TENSORNET, TENSORNET2):
        same = network(**settings)
        assert float(energy_of(same, system) - energy_of(same, mirrored)) == pytest.approx(
            0.0, abs=1e-11
        )
        chiral = network(**settings | {"group": "SO(3)"})
        assert abs(float(energy_of(chiral, system) - energy_of(chiral, mirrored))) > 1e-6


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_translation_wrapping_and_order_of_atoms_do_not_matter(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    rng = np.random.default_rng(24)
    for system in systems_for(settings):
        state = evaluated(potential, system)
        close(state.forces.sum(0), torch.zeros(3, dtype=torch.float64))
        close(state.virial, state.virial.mT)
        leaps = rng.integers(-5, 5, system.positions.shape) * system.pbc
        order = rng.permutation(len(system))
        other = evaluated(
            potential,
            System(
                system.numbers[order],
                (system.positions + leaps @ system.cell + [12.0, -7.0, 3.3])[order],
                cell=system.cell,
                pbc=system.pbc,
                charge=system.charge,
            ),
        )
        close(other.energies, state.energies[order])
        close(other.forces, state.forces[order])
        close(other.virial, state.virial)


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_distant_copies_and_supercells_add_up(settings: dict[str, Any]) -> None:
    """Charges are shared out with a regularised division, which is extensive to about 1e-6."""
    potential = network(**settings)
    shift = float(potential.shift)
    tolerance = 1e-5 if settings["channels"] and "charge_channels" in settings else 1e-11
    one, far = molecule(), np.array([80.0, 0.0, 0.0])
    two = System(np.tile(one.numbers, 2), np.concatenate([one.positions, one.positions + far]))
    double = 2.0 * float(energy_of(potential, one)) - shift
    assert float(energy_of(potential, two)) == pytest.approx(double, rel=tolerance)

    cell = crystal()
    for axis in range(3):
        images = np.concatenate([cell.positions, cell.positions + cell.cell[axis]])
        stretch = np.where(np.arange(3) == axis, 2.0, 1.0)
        big = System(np.tile(cell.numbers, 2), images, cell=cell.cell * stretch[:, None], pbc=True)
        double = 2.0 * float(energy_of(potential, cell)) - shift
        assert float(energy_of(potential, big)) == pytest.approx(double, rel=tolerance)


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_a_batch_has_the_results_of_its_systems_alone(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    slab = crystal(5, charge=-1.0, seed=3).replace(pbc=(True, True, False))
    systems = [crystal(charge=1.0), molecule(3), System([6], [[0.0, 0.0, 0.0]]), slab]
    systems += [molecule(9, charge=-2.0), crystal(2, seed=4)]
    together = evaluated(potential, *systems)
    start = 0
    for number, system in enumerate(systems):
        alone = evaluated(potential, system)
        stop = start + len(system)
        close(together.energies[start:stop], alone.energies)
        close(together.forces[start:stop], alone.forces)
        close(together.energy[number], alone.energy[0])
        close(together.virial[number], alone.virial[0])
        start = stop


def test_the_charge_matters_where_it_is_used_and_only_there() -> None:
    for settings, uses in (TENSORNET, False), (CHARGED, True), (TENSORNET2, True):
        potential = network(**settings)
        assert potential.uses_charge == uses
        neutral, charged = energy_of(potential, molecule(), molecule(charge=1.0))
        assert (abs(float(neutral - charged)) > 1e-6) == uses


def test_predicted_charges_add_up_to_the_charge_of_each_system() -> None:
    potential = network(**TENSORNET2)
    systems = [molecule(charge=1.0), crystal(), molecule(4, charge=-2.0)]
    state = State(systems)
    (neighbors,) = lists_for(state, potential)
    rows = potential.rows[state.elements]
    with torch.no_grad():
        _, charges = potential.network.with_charges(
            rows, atoms_of(state), neighbors.pairs(state.positions, state.cell)
        )
    total = state.grouping.sum(charges)
    expected = state.charge[:, None].expand_as(total)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-3)
