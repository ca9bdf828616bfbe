"""Random structures have the volumes asked for, and no atoms nearer than they may be."""

from collections.abc import Callable

import numpy as np
import pytest
from ase.data import covalent_radii

from mdgraph.data.random_structures import CLOSEST, random_cluster, random_crystal
from mdgraph.data.similarity import short_pairs
from mdgraph.system import System

VOLUME = 20.0
BOND = 2.0 * float(covalent_radii[14])

Draw = Callable[..., System]


def nearest(system: System) -> float:
    """A between the nearest atoms, images among them."""
    return float(short_pairs(system, 3.0 * BOND)[2].min(initial=np.inf))


@pytest.mark.parametrize("draw", [random_crystal, random_cluster])
@pytest.mark.parametrize("closest", [CLOSEST, 0.9])
def test_no_atoms_are_nearer_than_they_may_be(draw: Draw, closest: float) -> None:
    rng = np.random.default_rng(0)
    systems = [draw([14] * (1 + n % 8), VOLUME, rng, closest) for n in range(60)]
    assert min(map(nearest, systems)) > closest * BOND - 1e-9
    assert {bool(system.pbc.all()) for system in systems} == {draw is random_crystal}


def test_crystals_have_their_volume_where_atoms_fit_into_it() -> None:
    rng = np.random.default_rng(1)
    crystals = [random_crystal([14] * (1 + n % 4), VOLUME, rng) for n in range(40)]
    volumes = np.array([crystal.volume / len(crystal) for crystal in crystals])
    assert (volumes > VOLUME - 1e-6).all()
    assert (np.abs(volumes - VOLUME) < 1e-6).mean() > 0.9


@pytest.mark.parametrize("draw", [random_crystal, random_cluster])
def test_what_does_not_fit_is_widened_at_once(draw: Draw) -> None:
    """Sixty atoms in a volume of which each would take more than there is."""
    system = draw([14] * 60, 0.5, np.random.default_rng(2))
    assert nearest(system) == pytest.approx(CLOSEST * BOND)


def test_a_seed_gives_the_same_structures_and_a_free_atom_is_one() -> None:
    one, other = (random_crystal([14, 8], VOLUME, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one.positions, other.positions)
    atom = random_cluster([14], VOLUME, np.random.default_rng(3))
    assert len(atom) == 1
    assert np.isfinite(atom.positions).all()
