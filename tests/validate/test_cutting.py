"""Drops, slabs and molecules cut out of a liquid are whole, and where they were."""

import numpy as np
import pytest
from ase.build import bulk, molecule
from repository import ROOT

from mdgraph.errors import InputError
from mdgraph.io.structures import from_ase, read_systems
from mdgraph.validate.bonds import cut

LIQUID = ROOT / "data" / "water27.extxyz"


@pytest.mark.parametrize(("shape", "atoms"), [("drop", 60), ("slab", 81), ("molecule", 3)])
def test_molecules_are_whole(shape: str, atoms: int) -> None:
    liquid = read_systems(LIQUID)
    found = [cut(frame, shape) for frame in liquid]
    assert len(found) == len(liquid) == 9
    for one, whole in zip(found, liquid, strict=True):
        assert len(one) == atoms
        assert one.velocities is None
        edge = whole.cell[0, 0]
        moved = (one.positions[:, None] - whole.positions) / edge
        off = np.abs(moved - moved.round()).max(-1)
        place = off.argmin(1)  # of each atom in the liquid, but for whole cells
        assert off.min(1).max() < 1e-7
        assert len(set(place)) == atoms
        np.testing.assert_array_equal(one.numbers, whole.numbers[place])
        apart = np.linalg.norm(one.positions[:, None] - one.positions, axis=2)
        hydrogens = apart[one.numbers == 8][:, one.numbers == 1] < 1.3
        assert (hydrogens.sum(0) == 1).all()
        assert (hydrogens.sum(1) == 2).all()
        assert one.pbc.all() == (shape == "slab")
        if shape == "drop":  # of the nearest molecules
            oxygens = whole.positions[whole.numbers == 8]
            apart = oxygens - oxygens[0]
            apart -= edge * np.round(apart / edge)
            expected = np.sort(np.linalg.norm(apart, axis=1))[: atoms // 3]
            found_ones = one.positions[one.numbers == 8]
            reach = np.sort(np.linalg.norm(found_ones - found_ones[0], axis=1))
            np.testing.assert_allclose(reach, expected, atol=1e-6)
        if shape == "slab":  # the liquid in one piece, although its molecules had wandered off
            within = one.positions[one.numbers == 8] / edge
            assert ((within >= 0.0) & (within < 1.0)).all()
            oxygens = apart[one.numbers == 8][:, one.numbers == 8]
            # Those at an edge of the cube may have images alone for neighbors, which are left out.
            edges = (np.abs(within - 0.5) > 0.35).sum(1) > 1
            assert (np.sort(oxygens, 1)[:, 1] < 3.5)[~edges].all()
            assert np.ptp(one.positions, axis=0).max() < edge + 2.5
            np.testing.assert_allclose(one.cell, np.diag([edge, edge, 3.0 * edge]))


@pytest.mark.parametrize("shape", ["drop", "slab", "molecule"])
def test_the_cell_of_a_lattice_cuts_nothing(shape: str) -> None:
    """A long skewed one, into which atoms are wrapped one by one."""
    liquid = read_systems(LIQUID)[0]
    cell = liquid.cell + np.outer([0.0, 0.0, 1.0], 9.0 * liquid.cell[0] - 7.0 * liquid.cell[1])
    places = liquid.positions @ np.linalg.inv(cell) % 1.0 @ cell
    part = cut(liquid.replace(cell=cell, positions=places), shape)
    apart = np.linalg.norm(part.positions[:, None] - part.positions, axis=2)
    hydrogens = apart[part.numbers == 8][:, part.numbers == 1] < 1.3
    assert (hydrogens.sum(1) == 2).all()
    assert np.ptp(part.positions, axis=0).max() < 9.4 + 2.5 + 5.0 * (shape == "drop")


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputError, match="has an open side; give one that is periodic"):
        cut(from_ase(molecule("H2O")), "drop")
    with pytest.raises(InputError, match="hang together; give a liquid of molecules"):
        cut(from_ase(bulk("Si", cubic=True)), "drop")
