"""Moves of atoms keep bonds that they do not touch, and atoms apart."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.geometry import get_distances

from mdgraph.checkpoints import shipped_potentials
from mdgraph.data.bonding import bond_lengths, bonded
from mdgraph.distil.config import SamplingConfig
from mdgraph.distil.sampling import (
    MOVES,
    bend,
    collide,
    displace,
    draw,
    meet,
    move_atoms,
    strain,
    stretch,
    turn,
    turn_several,
)
from mdgraph.io.structures import from_ase, read_system
from mdgraph.system import System

CONFIG = SamplingConfig()


def ethanol() -> System:
    return from_ase(molecule("CH3CH2OH"))


def distances(system: System) -> np.ndarray:
    return np.linalg.norm(system.positions[:, None] - system.positions, axis=2)


def test_one_bond_is_stretched_within_the_range() -> None:
    before = ethanol()
    bonds = np.argwhere(np.triu(bonded(before.numbers, before.positions)))
    for seed in range(30):
        after = stretch(before, np.random.default_rng(seed), CONFIG)
        if after is None:
            continue
        ratios = np.array([distances(after)[i, j] / distances(before)[i, j] for i, j in bonds])
        changed = np.abs(ratios - 1.0) > 1e-9
        assert changed.sum() == 1
        assert CONFIG.stretch[0] <= ratios[changed][0] <= CONFIG.stretch[1]


def torsions(system: System) -> np.ndarray:
    """Degrees, of C-C and of C-O of ethanol."""
    atoms = Atoms(system.numbers, system.positions)
    oxygen = int(np.flatnonzero(system.numbers == 8)[0])
    inner, outer = sorted(
        np.flatnonzero(system.numbers == 6), key=lambda c: atoms.get_distance(c, oxygen)
    )
    first, last = (
        next(h for h in np.flatnonzero(system.numbers == 1) if atoms.get_distance(h, end) < 1.3)
        for end in (outer, oxygen)
    )
    paths = (first, outer, inner, oxygen), (outer, inner, oxygen, last)
    return np.array([atoms.get_dihedral(*path) for path in paths])


def test_several_turns_at_once_keep_all_bonds_and_turn_about_each() -> None:
    before = ethanol()
    bonds = bonded(before.numbers, before.positions)
    least = np.minimum(0.7 * bond_lengths(before.numbers), distances(before))
    angles = []
    for seed in range(40):
        after = turn_several(before, np.random.default_rng(seed))
        assert after is not None
        np.testing.assert_allclose(distances(after)[bonds], distances(before)[bonds], atol=1e-9)
        assert (distances(after) >= least - 1e-9).all()
        angles.append((torsions(after) - torsions(before)) % 360.0)
    turned = np.array(angles)
    assert (np.minimum(turned, 360.0 - turned) > 0.01).all()
    assert (turned.min(axis=0) < 60.0).all()
    assert (turned.max(axis=0) > 300.0).all()
    assert abs(np.corrcoef(turned.T)[0, 1]) < 0.5


def test_several_turns_need_two_bonds_and_no_cell() -> None:
    rng = np.random.default_rng(1)
    assert turn_several(from_ase(molecule("C2H6")), rng) is None
    assert turn_several(from_ase(bulk("Cu", cubic=True)), rng) is None


def test_turns_keep_all_bonds() -> None:
    before = ethanol()
    bonds = bonded(before.numbers, before.positions)
    turns = [turn(before, np.random.default_rng(seed), CONFIG) for seed in range(30)]
    copies = [copy for copy in turns if copy is not None]
    assert len(copies) > 10
    for after in copies:
        np.testing.assert_allclose(distances(after)[bonds], distances(before)[bonds], atol=1e-9)
        assert np.abs(distances(after) - distances(before)).max() > 1e-3


def test_bends_keep_all_bonds_and_change_angles_within_the_range() -> None:
    before = ethanol()
    bonds = bonded(before.numbers, before.positions)
    bends = [bend(before, np.random.default_rng(seed), CONFIG) for seed in range(30)]
    copies = [copy for copy in bends if copy is not None]
    assert len(copies) > 10
    for after in copies:
        np.testing.assert_allclose(distances(after)[bonds], distances(before)[bonds], atol=1e-9)
        moves = np.linalg.norm(after.positions - before.positions, axis=1)
        arms = np.linalg.norm(before.positions - before.positions[moves < 1e-9][:, None], axis=2)
        assert 1e-4 < moves.max() < 2.0 * np.sin(np.radians(20.0)) * arms.max() + 1e-9


def test_bonds_of_rings_are_left_alone() -> None:
    benzene = from_ase(molecule("C6H6"))
    ring = benzene.numbers == 6
    for seed in range(20):
        after = stretch(benzene, np.random.default_rng(seed), CONFIG)
        if after is not None:
            same = distances(after)[np.ix_(ring, ring)]
            np.testing.assert_allclose(same, distances(benzene)[np.ix_(ring, ring)], atol=1e-9)


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_atoms_stay_apart(move: object) -> None:
    before = ethanol()
    least = 0.7 * bond_lengths(before.numbers)
    np.fill_diagonal(least, 0.0)
    if move is displace:
        return  # its size is the caller's
    for seed in range(20):
        after = move(before, np.random.default_rng(seed), CONFIG)  # type: ignore[operator]
        if after is not None:
            assert (distances(after) >= np.minimum(least, distances(before)) - 1e-9).all()


def test_collisions_bring_two_atoms_nearer() -> None:
    before = ethanol()
    nearer = []
    for seed in range(20):
        after = collide(before, np.random.default_rng(seed), CONFIG)
        if after is not None:
            assert (np.abs(after.positions - before.positions).max(1) > 1e-9).sum() == 2
            nearer.append((distances(after) - distances(before)).min())
    assert nearer
    assert min(nearer) < -0.2


def test_two_copies_meet_at_a_distance_and_keep_their_shape() -> None:
    before = ethanol()
    count, gaps = len(before), []
    for seed in range(20):
        pair = meet(before, np.random.default_rng(seed), CONFIG)
        if pair is None:
            continue
        apart = distances(pair)
        for own in (slice(None, count), slice(count, None)):
            np.testing.assert_allclose(apart[own, own], distances(before), atol=1e-9)
        volumes = [
            np.linalg.det(pair.positions[first : first + 3] - pair.positions[first + 3])
            for first in (0, count)
        ]
        assert volumes[0] == pytest.approx(volumes[1], abs=1e-9)  # no mirror image
        gaps.append(apart[:count, count:].min())
    assert len(gaps) > 10
    assert 1.19 < min(gaps) < max(gaps) < 4.01
    assert meet(from_ase(bulk("Cu", cubic=True)), np.random.default_rng(0), CONFIG) is None


def test_cells_are_strained_with_their_atoms() -> None:
    crystal = from_ase(bulk("Cu", cubic=True))
    after = strain(crystal, np.random.default_rng(0), CONFIG)
    assert after is not None
    before = crystal.positions @ np.linalg.inv(crystal.cell)
    np.testing.assert_allclose(after.positions @ np.linalg.inv(after.cell), before, atol=1e-12)
    assert not np.allclose(after.cell, crystal.cell)
    assert strain(ethanol(), np.random.default_rng(0), CONFIG) is None


def test_hydrogens_of_a_cell_are_drawn_along_bonds_and_to_the_next_heavy_atom() -> None:
    before = read_system(shipped_potentials()["water-pbe0"] / "start.extxyz")
    oxygens = np.flatnonzero(before.numbers == 8)
    moved, lengths, toward = [], [], []
    for seed in range(12):
        after = draw(before, np.random.default_rng(seed), CONFIG)
        assert after is not None
        changed = np.flatnonzero((after.positions != before.positions).any(1))
        assert (before.numbers[changed] == 1).all()
        assert len(changed) == 4  # of 192 atoms
        cell = {"cell": before.cell, "pbc": before.pbc}
        apart = get_distances(before.positions[changed], **cell)[1]
        assert (apart + 9.0 * np.eye(4)).min() > 3.5
        vectors, old = get_distances(before.positions[changed], before.positions[oxygens], **cell)
        ways, new = get_distances(after.positions[changed], before.positions[oxygens], **cell)
        for hydrogen in range(4):
            own, other = np.argsort(old[hydrogen])[:2]
            ratio = new[hydrogen, own] / old[hydrogen, own]
            assert CONFIG.stretch[0] <= ratio <= CONFIG.stretch[1]
            lengths.append(ratio)
            straight = [
                np.linalg.norm(np.cross(ways[hydrogen, own], way)) < 1e-9
                for way in (
                    vectors[hydrogen, own],
                    vectors[hydrogen, other] - vectors[hydrogen, own],
                )
            ]
            assert sum(straight) == 1
            toward.append(straight[1])
        everything = get_distances(after.positions[changed], after.positions, **cell)[1]
        least = 0.7 * bond_lengths(before.numbers)[changed]
        everything[np.arange(4), changed] = np.inf
        assert (everything >= least - 1e-9).all()
        moved.append(tuple(changed))
    assert len(set(moved)) > 6
    assert min(lengths) < 0.9
    assert max(lengths) > 1.4
    assert 0.25 < np.mean(toward) < 0.75


def test_hydrogens_of_molecules_are_drawn_and_crystals_have_none() -> None:
    rng = np.random.default_rng(0)
    before = ethanol()
    after = draw(before, rng, CONFIG)
    assert after is not None
    assert (after.positions != before.positions).any(1).sum() == 1
    assert draw(from_ase(bulk("Cu", cubic=True)), rng, CONFIG) is None


def test_every_structure_can_be_moved() -> None:
    rng = np.random.default_rng(0)
    crystal = from_ase(bulk("Cu", cubic=True))
    assert {move_atoms(crystal, rng, CONFIG)[1] for _ in range(40)} == {"displaced", "strained"}
    names = {move_atoms(ethanol(), rng, CONFIG)[1] for _ in range(80)}
    assert names == {"displaced", "stretched", "turned", "bent", "collided", "met"}
