"""Terms that are added to potentials: their numbers, their texts, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.calculators.lj import LennardJones as Oracle
from ase.calculators.morse import MorsePotential as MorseOracle
from network_cases import clear_of_ends
from random_networks import TENSORNET, molecule, network
from toys import argon

from mdgraph import Simulation, VelocityVerlet, load
from mdgraph.checkpoints import convert, describe, save
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.io.structures import to_ase
from mdgraph.models import (
    LennardJonesConfig,
    LennardJonesPair,
    PotentialModule,
    SumPotential,
    architecture_named,
    term,
    with_terms,
)
from mdgraph.system import System

TEXTS = (
    "lj:O=0.006/3.1,O-H=0.002/2.0,H=0.001/2.2@3.5",
    "morse:O-H=0.4/1.5/1.6@3.5",
    "zbl@2.5",
    "bonds:0-1=3/1.1,0-5=1.5/2.5,1-5=0.2/1",
    "field:0.02/-0.01/0.03",
    "field:0.1/0/0.2,O=-0.8,H=0.4",
    "walls:xmin=0.5/2,xmax=3/1,zmax=2/4",
)


def water(pbc: bool = True, seed: int = 0) -> System:
    """Two molecules and an atom, in a skewed cell, with a bond across its boundary."""
    rng = np.random.default_rng(seed)
    numbers = [8, 1, 1, 8, 1, 1, 8]
    positions = 4.0 * rng.random((7, 3))
    cell = np.array([[5.0, 0.0, 0.0], [0.8, 5.5, 0.0], [-0.5, 0.4, 6.0]])
    return System(numbers, positions, cell if pbc else np.zeros((3, 3)), [pbc] * 3)


def computed(potential: Any, *systems: System, precision: str = "double") -> Calculation:
    at = Calculation(systems, potential, device="cpu", precision=precision)
    at.compute()
    return at


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pbc", [True, False])
def test_forces_and_virial_are_derivatives(text: str, pbc: bool) -> None:
    potential, _ = term(text)
    system = water(pbc)
    state = computed(potential, system).state
    rng = np.random.default_rng(1)
    shift, strain = rng.normal(size=(7, 3)), rng.normal(size=(3, 3))
    step = 1e-5
    by_shift, by_strain = [], []
    for sign in (1.0, -1.0):
        moved = system.replace(positions=system.positions + sign * step * shift)
        by_shift.append(float(computed(potential, moved).state.energy))
        deformation = np.eye(3) + sign * step * strain
        strained = system.replace(
            positions=system.positions @ deformation, cell=system.cell @ deformation
        )
        by_strain.append(float(computed(potential, strained).state.energy))
    force = -(by_shift[0] - by_shift[1]) / (2 * step)
    virial = -(by_strain[0] - by_strain[1]) / (2 * step)
    assert float(state.energy) != 0.0
    assert (state.forces.numpy() * shift).sum() == pytest.approx(force, rel=1e-6, abs=1e-7)
    assert (state.virial[0].numpy() * strain).sum() == pytest.approx(virial, rel=1e-6, abs=1e-7)
    assert float(state.energies.sum()) == pytest.approx(float(state.energy), abs=1e-10)


def test_pair_terms_are_those_of_ase() -> None:
    system = argon(3)
    pair = LennardJonesPair(first=18, second=18, epsilon=0.0104, sigma=3.4)
    sharp = LennardJonesConfig(species=(18,), cutoff=7.3, switch=0.0, pairs=(pair,))
    state = computed(architecture_named("lj").build(sharp), system).state
    atoms = to_ase(system)
    atoms.calc = Oracle(epsilon=0.0104, sigma=3.4, rc=7.3, smooth=False)
    shift = 4 * 0.0104 * ((3.4 / 7.3) ** 12 - (3.4 / 7.3) ** 6)
    listed = Calculation([system], architecture_named("lj").build(sharp), device="cpu", skin=0.0)
    expected = atoms.get_potential_energy() + 0.5 * shift * int(listed.lists[0].count.sum())
    assert float(state.energy) == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(state.forces.numpy(), atoms.get_forces(), atol=1e-12)

    depth, rho, distance = 0.34, 4.0, 2.9
    atoms = to_ase(System([29, 29], [[0, 0, 0], [0, 0, 3.1]]))
    atoms.calc = MorseOracle(epsilon=depth, rho0=rho, r0=distance, rcut1=8.0, rcut2=9.0)
    copper, _ = term(f"morse:Cu={depth}/{rho / distance}/{distance}@10")
    state = computed(copper, System(atoms.numbers, atoms.positions)).state
    assert float(state.energy) == pytest.approx(atoms.get_potential_energy(), rel=1e-10)


def test_elements_that_are_named_alone_mix() -> None:
    mixed, weight = term("2*lj:Ar=0.01/3.4,Kr=0.04/3.8,Xe=0.02/4,Xe-Ar=0.1/3@9")
    assert weight == 2.0
    assert isinstance(mixed.config, LennardJonesConfig)
    found = {(pair.first, pair.second): (pair.epsilon, pair.sigma) for pair in mixed.config.pairs}
    assert found[18, 36] == pytest.approx((0.02, 3.6))
    assert found[54, 18] == (0.1, 3.0)
    assert set(found) == {(18, 18), (36, 36), (54, 54), (18, 36), (36, 54), (54, 18)}


def test_terms_act_in_every_system_of_a_batch() -> None:
    whole = [water(seed=seed) for seed in range(3)] + [water(seed=3).replace(charge=0.0)]
    for text in TEXTS:
        potential, _ = term(text)
        together = computed(potential, *whole).state
        apart = [computed(potential, system).state for system in whole]
        for name in ("energies", "forces", "virial"):
            expected = torch.cat([getattr(state, name) for state in apart])
            torch.testing.assert_close(getattr(together, name), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("precision", ["double", "mixed", "single"])
def test_a_sum_is_the_sum_of_its_terms_and_conserves_energy(precision: str) -> None:
    base = network(**TENSORNET)
    whole = with_terms(base, ["0.5*zbl@2", "bonds:0-1=2/1.1", "walls:xmin=0/1,xmax=3/1"])
    assert isinstance(whole, SumPotential)
    assert whole.weights == (1.0, 0.5, 1.0, 1.0)
    system = clear_of_ends(molecule, 12, 0.0, (False,) * 3)
    state = computed(whole, system, precision=precision).state
    parts = [computed(part, system, precision=precision).state for part in whole.parts]
    expected = sum(w * p.forces.double() for w, p in zip(whole.weights, parts, strict=True))
    tolerance = 1e-4 if precision == "single" else 1e-9
    torch.testing.assert_close(state.forces.double(), expected, rtol=tolerance, atol=tolerance)
    run = Simulation(
        system, whole, VelocityVerlet(0.1), device="cpu", precision=precision, temperature=50.0
    )
    before = run.observables()
    run.run(100)
    assert int(run.state.degrees[0]) == 3 * 12
    drift = float((run.observables().conserved_energy - before.conserved_energy)[0])
    assert abs(drift) < 2e-3
    assert list(before.term_energies)[1:] == [
        "zbl@2",
        "bonds:0-1=2/1.1",
        "walls:xmin=0/1,xmax=3/1",
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("text", TEXTS)
def test_captured_steps_have_every_term(text: str) -> None:
    """In a skewed cell, with a bond across its boundary."""
    ends = []
    for device in ("cpu", "cuda"):
        run = Simulation(
            water(), term(text)[0], VelocityVerlet(0.1), device=device, precision="double",
            temperature=50.0, seed=1, maximum_temperature=1e9, check=None,
        )  # fmt: skip
        start = run.state.positions.clone()
        run.run(20)
        assert run.graphed == (device == "cuda")
        ends.append((run.state.positions - start).cpu())
    assert ends[0].abs().max() > 1e-3
    torch.testing.assert_close(*ends, rtol=0.0, atol=1e-6 * float(ends[0].abs().max()))


def test_a_sum_is_saved_loaded_and_described(tmp_path: Path) -> None:
    save(network(**TENSORNET), tmp_path / "base.safetensors")
    target = tmp_path / "sum.safetensors"
    convert(tmp_path / "base.safetensors", target, terms=[*TEXTS, "0.25*zbl@3"])
    whole = load(target)
    assert isinstance(whole, SumPotential)
    assert whole.weights == (1.0,) * 8 + (0.25,)
    terms = describe(whole)["terms"]
    assert [words.split(":")[0] for words in terms[1:3]] == ["1 times lj", "1 times morse"]
    again = with_terms(load(tmp_path / "base.safetensors"), [*TEXTS, "0.25*zbl@3"])
    states = [computed(each, water()).state for each in (whole, again)]
    assert torch.equal(states[0].forces, states[1].forces)


def test_each_term_describes_itself() -> None:
    about = describe(term("lj:O-H=0.002/2.0@3.5")[0])
    assert about["architecture"] == "Lennard-Jones"
    assert about["pairs"] == ["O-H: epsilon, sigma 0.002/2"]
    assert describe(term("walls:zmax=2/4")[0])["walls"] == ["z max 2 A: 4 eV/A^2"]
    assert describe(term("field:0/0/1,H=0.4")[0])["field"] == "0/0/1 V/A"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ljj:Ar=1/2@8", "There is no term 'ljj:Ar=1/2@8'; did you mean lj?"),
        ("tensornet", "There is no term 'tensornet'; choose among"),
        ("water-pbe0", "and write another potential as potential:NAME."),
        ("2*potential:", "names no potential; write it as in potential:water-pbe0."),
        ("self@3", "The term self takes a weight alone, and this is 'self@3'"),
        ("", "There is no term ''"),
        ("lj:Ar=1/2", "The term lj needs a cutoff in A; write it as in lj:Ar=0.0104/3.4@10."),
        ("lj:Ar=1/2@x", "the cutoff is 'x'; give a number."),
        ("x*lj:Ar=1/2@8", "the weight is 'x'; give a number."),
        ("nan*lj:Ar=1/2@8", "the weight is 'nan'; give a number."),
        ("lj:Ar=1@8", "has a name and epsilon in eV/sigma in A for each part, and 'Ar=1' is none"),
        ("lj:Ar=1/2,Ar=2/2@8", "Ar comes twice"),
        ("lj:Rr=1/2@8", "There is no element 'Rr'; "),
        ("lj:Ar=-1/2@8", "cannot be: epsilon: it should be greater than 0."),
        ("lj:Ar=1/2@800", "cannot be: cutoff: it should be less than or equal to 100."),
        ("lj:O-H=1/2,H-O=1/3@8", "a pair of elements comes twice"),
        ("zbl:O@3", "The term zbl has no arguments"),
        ("bonds:0-1=1/1@4", "The term bonds has no cutoff; leave @4 out."),
        ("bonds:O-H=1/1", "'O-H' names no bond; give the indices of two atoms"),
        ("field:0/1", "A field has three components"),
        ("walls:top=1/1", "'top' names no plane"),
        ("walls:zmin=0/0", "cannot be: stiffness: it should be greater than 0."),
    ],
)
def test_what_is_no_term_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        term(text)
    assert sentence in str(caught.value)


def test_a_bond_is_to_the_nearest_image_in_a_skewed_cell() -> None:
    potential, _ = term("bonds:0-1=2/0")
    cell = np.array([[7.0, 0.0, 0.0], [3.4, 7.0, 0.0], [3.4, 2.0, 7.0]])
    places = np.random.default_rng(0).random((20, 2, 3)) @ cell
    pairs = [System([6, 6], place, cell, [True] * 3) for place in places]
    lengths = computed(potential, *pairs).state.energy.sqrt()
    images = np.stack(np.meshgrid(*[range(-2, 3)] * 3), -1).reshape(-1, 3) @ cell
    apart = places[:, 1, None] - places[:, :1] + images
    assert lengths.tolist() == pytest.approx(np.linalg.norm(apart, axis=-1).min(1))


LONG = ([[1, 0, 0], [3, 1, 0], [0, 0, 1]], [[1, 0, 0], [-4, 1, 0], [2, -3, 1]])
"""Cells of the same lattice whose nearest images lie beyond the 26 around a rounded one."""


@pytest.mark.parametrize("pbc", [(True, True, True), (True, True, False)])
def test_a_bond_is_to_the_nearest_image_in_long_skewed_cells(pbc: tuple[bool, ...]) -> None:
    potential, _ = term("bonds:0-1=2/0")
    lattice = np.array([[7.0, 0.0, 0.0], [1.4, 6.0, 0.0], [-1.0, 2.0, 7.0]])
    places = np.random.default_rng(0).random((20, 2, 3)) @ lattice
    steps = np.stack(np.meshgrid(*[range(-4, 5)] * 3), -1).reshape(-1, 3) * pbc
    apart = places[:, 1, None] - places[:, :1] + steps @ lattice
    expected = np.linalg.norm(apart, axis=-1).min(1)
    turns = LONG if all(pbc) else LONG[:1]
    cells = [np.array(turn) @ lattice for turn in turns]
    pairs = [System([6, 6], place, cell, pbc) for cell in cells for place in places]
    at = computed(potential, *pairs)
    assert at.state.energy.sqrt().tolist() == pytest.approx([*expected] * len(turns))
    force = at.state.forces[1::2].norm(dim=-1)
    assert force.tolist() == pytest.approx([*(2.0 * expected)] * len(turns))


@pytest.mark.parametrize("bonds", ["bonds:0-7=1/1", "bonds:0-1=1/1,3-3=1/1"])
def test_a_bond_is_between_two_atoms_of_the_structure(bonds: str) -> None:
    potential: PotentialModule = with_terms(network(**TENSORNET), [bonds])
    with pytest.raises(InputError, match=r"which has 7; give indices from 0 to 6\."):
        Calculation([water()], potential, device="cpu")


def test_pairs_of_elements_that_the_potential_lacks_are_refused() -> None:
    base = network(**TENSORNET)
    with pytest.raises(InputError, match=r"does not know all elements of Kr-Kr, Kr-H, so the term"):
        with_terms(base, "morse:Kr=1/1/2,Kr-H=1/1/2@8")
    assert isinstance(with_terms(base, "lj:Kr=0.01/3.4@8", force=True), SumPotential)
    assert isinstance(with_terms(base, "lj:Kr=0.01/3.4,O=0.01/3.4@8"), SumPotential)


@pytest.mark.parametrize("terms", [None, 3, [None], [["zbl@2"]], {"zbl@2": 1}])
def test_terms_are_texts(terms: Any) -> None:
    with pytest.raises(InputError, match="give texts such as"):
        with_terms(network(**TENSORNET), terms)


def test_one_text_is_a_term_and_none_leaves_the_potential() -> None:
    base = network(**TENSORNET)
    assert with_terms(base, []) is base
    whole = with_terms(base, "zbl@2")
    assert isinstance(whole, SumPotential)
    assert len(whole.parts) == 2
    with pytest.raises(InputError, match="load the potential first"):
        with_terms("water-pbe0", "zbl@2")  # type: ignore[arg-type]
