"""D3(BJ) against s-dftd3, its derivatives, its cutoffs, and which potentials it suits."""

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import chemical_symbols, reference_states
from ase.io import read
from random_networks import TENSORNET, network
from repository import ROOT

from mdgraph import Simulation, VelocityVerlet, load
from mdgraph.checkpoints import describe, shipped_potentials
from mdgraph.engine import Calculation
from mdgraph.errors import InputError, UnknownSpeciesError
from mdgraph.io.structures import from_ase
from mdgraph.models import D3Potential, PotentialModule, d3_config, term, with_terms
from mdgraph.models import d3 as module
from mdgraph.models.d3 import BOHR, DEFAULT_CUTOFF, HARTREE, d3_tables
from mdgraph.models.potential import dispersion_in, functional_in
from mdgraph.system import System
from mdgraph.units import BAR, SYMBOLS

needs_dftd3 = pytest.mark.skipif(
    importlib.util.find_spec("dftd3") is None, reason="needs dftd3, which is in the extra test"
)
PAIR, COUNT, TRIPLE = 9.3, 7.1, 6.37
"""A; cutoffs of the comparison."""


def oracle(
    atoms: Atoms, cutoff: float, count: float, functional: str, triple: float = 0.0
) -> tuple[float, np.ndarray, np.ndarray]:
    """Energy, forces and virial of s-dftd3, in eV and A; its cutoffs are sharp.

    With `triple`, the cutoff of triples, it has the three-body term.
    """
    from dftd3.interface import DispersionModel, RationalDampingParam

    periodic: dict[str, Any] = {}
    if atoms.pbc.any():
        periodic = {"lattice": atoms.cell.array / BOHR, "periodic": atoms.pbc}
    model = DispersionModel(atoms.numbers, atoms.positions / BOHR, **periodic)
    model.set_realspace_cutoff(disp2=cutoff / BOHR, disp3=triple / BOHR or 1.0, cn=count / BOHR)
    damping = RationalDampingParam(method=functional, atm=triple > 0.0)
    found = model.get_dispersion(damping, grad=True)
    forces, virial = -found["gradient"] * HARTREE / BOHR, -found["virial"] * HARTREE
    return found["energy"] * HARTREE, forces, virial


def evaluated(potential: PotentialModule, *systems: System, precision: str = "double") -> Any:
    at = Calculation(systems, potential, device="cpu", precision=precision)
    at.compute()
    return at.state


def crystals() -> list[Atoms]:
    """Of every third element that ASE knows the crystal of, and five compounds."""
    known = [
        symbol
        for number, symbol in enumerate(chemical_symbols[:95])
        if (reference_states[number] or {}).get("symmetry") in ("fcc", "bcc", "diamond", "hcp")
    ]
    compounds = [
        bulk("NaCl", "rocksalt", 5.64),
        bulk("CsCl", "cesiumchloride", 4.12),
        bulk("GaAs", "zincblende", 5.65),
        bulk("CaF2", "fluorite", 5.46),
        bulk("PbTe", "rocksalt", 6.46),
    ]
    return [*(bulk(symbol) for symbol in known[::2]), *compounds]


def molecules() -> list[Atoms]:
    names = "H2 LiF N2 Cl2 SiO Na2 CS P2 SO2 H2O NH3 SiH4 C6H6 C2H6 CH3CH2OH CCl4 PF3 C4H4NH BF3"
    dimers = ["AuBr", "HgI", "XeF", "SnSe", "UO", "ThO", "PtC", "AgI"]
    return [
        *(molecule(name) for name in names.split()),
        *(Atoms(name, [[0, 0, 0], [0, 0.3, 2.4]]) for name in dimers),
    ]


@needs_dftd3
def test_it_is_s_dftd3_for_molecules_and_crystals() -> None:
    functionals = ("pbe", "pbe0", "b3lyp", "revpbe", "r2scan", "wb97x", "blyp")
    structures = [*molecules(), *crystals()]
    elements = {symbol for atoms in structures for symbol in atoms.symbols}
    assert len(structures) >= 50
    assert len(elements) >= 40
    for number, atoms in enumerate(structures):
        atoms.rattle(0.05, seed=number)
        functional = functionals[number % len(functionals)]
        config = d3_config(
            functional, PAIR, switch=0.0, coordination_cutoff=COUNT, coordination_switch=0.0
        )
        state = evaluated(D3Potential(config), from_ase(atoms))
        energy, forces, virial = oracle(atoms, PAIR, COUNT, functional)
        assert float(state.energy) == pytest.approx(energy, abs=1e-8), atoms
        np.testing.assert_allclose(state.forces.numpy(), forces, atol=1e-8)
        np.testing.assert_allclose(state.virial[0].numpy(), virial, atol=1e-7, rtol=1e-8)


@needs_dftd3
def test_triples_are_those_of_s_dftd3() -> None:
    """Of half of the structures."""
    largest = 0.0
    for number, atoms in enumerate([*molecules()[::2], *crystals()[::3]]):
        atoms.rattle(0.05, seed=number)
        options = {"switch": 0.0, "coordination_cutoff": COUNT, "coordination_switch": 0.0}
        three = {"three_body": True, "three_body_cutoff": TRIPLE, "three_body_switch": 0.0}
        potential = D3Potential(d3_config("pbe", PAIR, **options, **three))
        state = evaluated(potential, from_ase(atoms))
        energy, forces, virial = oracle(atoms, PAIR, COUNT, "pbe", TRIPLE)
        assert float(state.energy) == pytest.approx(energy, abs=1e-8), atoms
        np.testing.assert_allclose(state.forces.numpy(), forces, atol=1e-8)
        np.testing.assert_allclose(state.virial[0].numpy(), virial, atol=1e-7, rtol=1e-8)
        without, _, _ = oracle(atoms, PAIR, COUNT, "pbe")
        largest = max(largest, abs(energy - without))
    assert largest > 1e-2


def test_three_atoms_have_the_energy_of_the_formula() -> None:
    """An equilateral triangle: 1 + 3 cos^3 60 is 11/8, and all of C6, R and r are one number."""
    potential = D3Potential(d3_config("pbe", 9.0, three_body=True, three_body_cutoff=9.0))
    pairs = D3Potential(d3_config("pbe", 9.0))
    side = 4.0
    places = side * np.array([[0, 0, 0], [1, 0, 0], [0.5, np.sqrt(0.75), 0]])
    argon = System([18, 18, 18], places)
    triple = float(evaluated(potential, argon).energy - evaluated(pairs, argon).energy)
    # C6 from the energy of a dimer, whose coordination numbers are as good as the same.
    dimer = float(evaluated(pairs, System([18, 18], places[:2])).energy)
    atoms, length = torch.tensor([side], dtype=torch.float64), side / BOHR
    moment = d3_tables().moments[18]
    c6 = dimer / HARTREE / float(potential.of_distance(atoms, moment * moment))
    radius = float(d3_tables().separations[18, 18])
    damping = 1.0 / (1.0 + 6.0 * (4.0 / 3.0 * radius / length) ** 16)
    expected = HARTREE * c6**1.5 * 1.375 / length**9 * damping
    assert triple == pytest.approx(expected, rel=1e-3)
    assert triple > 0.0


def test_parts_of_the_triples_are_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives of forces too, by the vectors of the pairs."""
    potential = D3Potential(d3_config("pbe", 5.0, three_body=True, three_body_cutoff=3.5))
    results = []
    for most in (module.MOST_TRIPLES, 1):
        monkeypatch.setattr(module, "MOST_TRIPLES", most)
        at = Calculation([mixture((True,) * 3)], potential, device="cpu", precision="double")
        at.compute()
        state = at.state
        atoms = module.Atoms(
            state.numbers, state.elements, state.kinds, state.charge, state.grouping
        )
        pairs = tuple(item.pairs(state.positions, state.cell) for item in at.lists)
        energy = potential(atoms, pairs).sum()
        vectors = [block.vectors for one in pairs for block in one.blocks]
        slopes = torch.autograd.grad(energy, vectors, create_graph=True)
        seconds = torch.autograd.grad(sum(one.square().sum() for one in slopes), vectors)
        results.append((state.energy, state.forces, state.virial, *seconds))
    for whole, parted in zip(*results, strict=True):
        torch.testing.assert_close(whole, parted, rtol=0, atol=1e-13)
    assert max(float(one.abs().max()) for one in seconds) > 1e-6


@needs_dftd3
def test_the_default_is_within_20_bar_in_water() -> None:
    atoms = read(ROOT / "potentials" / "water-pbe0" / "start.extxyz")
    _, forces, virial = oracle(atoms, 60.0, 40.0 * BOHR, "pbe0")
    volume = atoms.get_volume()
    errors = {}
    for cutoff in (12.0, DEFAULT_CUTOFF):
        state = evaluated(D3Potential(d3_config("pbe0", cutoff)), from_ase(atoms))
        missing = np.trace(state.virial[0].numpy() - virial) / (3.0 * volume * BAR)
        errors[cutoff] = missing
        np.testing.assert_allclose(state.forces.numpy(), forces, atol=1e-4)
    assert 0.0 < errors[DEFAULT_CUTOFF] < 20.0
    assert 60.0 < errors[12.0] < 90.0


def mixture(pbc: tuple[bool, bool, bool], seed: int = 0) -> System:
    rng = np.random.default_rng(seed)
    grid = 2.1 * np.stack(np.meshgrid(*[np.arange(2.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cell = np.array([[4.6, 0.0, 0.0], [0.5, 4.8, 0.0], [-0.3, 0.4, 5.0]])
    cell[~np.array(pbc)] = 0.0
    return System([8, 1, 6, 7, 16, 1, 8, 29], grid + 0.2 * rng.normal(size=(8, 3)), cell, pbc)


@pytest.mark.parametrize("three_body", [False, True])
@pytest.mark.parametrize("pbc", [(True,) * 3, (True, True, False), (False,) * 3])
def test_forces_and_virial_are_derivatives(pbc: tuple[bool, bool, bool], three_body: bool) -> None:
    potential = D3Potential(
        d3_config("pbe", 5.0, coordination_cutoff=4.0, three_body=three_body, three_body_cutoff=4.5)
    )
    system, step = mixture(pbc), 1e-4
    state = evaluated(potential, system)
    rng = np.random.default_rng(1)
    shift, strain = rng.normal(size=(8, 3)), rng.normal(size=(3, 3))
    energies = {}
    for sign in (-2, -1, 1, 2):
        deformation = np.eye(3) + sign * step * strain
        moved = system.replace(positions=system.positions + sign * step * shift)
        strained = system.replace(
            positions=system.positions @ deformation, cell=system.cell @ deformation
        )
        energies[sign] = [float(evaluated(potential, one).energy) for one in (moved, strained)]
    slopes = [
        (8 * (energies[1][k] - energies[-1][k]) - (energies[2][k] - energies[-2][k])) / (12 * step)
        for k in (0, 1)
    ]
    assert (state.forces.numpy() * shift).sum() == pytest.approx(-slopes[0], abs=1e-8)
    assert (state.virial[0].numpy() * strain).sum() == pytest.approx(-slopes[1], abs=1e-8)


def test_energies_end_smoothly_at_the_cutoffs() -> None:
    potential = D3Potential(d3_config("pbe", 5.0, coordination_cutoff=4.0))
    for end in (3.0, 4.0, 5.0):
        forces = [
            float(evaluated(potential, System([8, 29], [[0, 0, 0], [0, 0, d]])).forces[0, 2])
            for d in (end - 1e-5, end + 1e-5)
        ]
        assert forces[0] == pytest.approx(forces[1], abs=1e-6)
    assert float(evaluated(potential, System([8, 29], [[0, 0, 0], [0, 0, 5.01]])).energy) == 0.0


@pytest.mark.parametrize("precision", ["double", "mixed", "single"])
def test_a_batch_is_its_systems(precision: str) -> None:
    potential = D3Potential(d3_config("pbe", 6.0))
    systems = [mixture((True,) * 3, seed) for seed in range(2)]
    together = evaluated(potential, *systems, precision=precision)
    apart = [evaluated(potential, system, precision=precision) for system in systems]
    for number, state in enumerate(apart):
        assert float(together.energy[number]) == pytest.approx(float(state.energy), abs=1e-9)
        own = together.forces[8 * number : 8 * number + 8].double().numpy()
        tolerance = 1e-6 if precision == "single" else 1e-10
        np.testing.assert_allclose(own, state.forces.double().numpy(), atol=tolerance)


def test_a_run_conserves_energy_with_it() -> None:
    base = network(**TENSORNET)
    base.config = base.config.model_copy(update={"level_of_theory": "PBE/def2-SVP", "name": "a"})
    atoms = molecule("CH3CH2OH")
    whole = with_terms(base, ["d3bj:pbe@8"])
    assert whole.config.level_of_theory == "PBE/def2-SVP + D3(BJ)"
    assert whole.stated_dispersion == "D3(BJ)"
    run = Simulation(from_ase(atoms), whole, VelocityVerlet(0.2), device="cpu", temperature=100.0)
    before = run.observables()
    run.run(100)
    after = run.observables()
    assert list(after.term_energies) == ["a", "d3bj:pbe@8"]
    assert abs(float((after.conserved_energy - before.conserved_energy)[0])) < 1e-3
    change = after.term_energies["d3bj:pbe@8"] - before.term_energies["d3bj:pbe@8"]
    assert abs(float(change[0])) > 1e-5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("d3bj", "The term d3bj needs a functional; write it as in d3bj:pbe."),
        ("d3bj:pbe00", "no parameters for the functional 'pbe00'; did you mean pbe0?"),
        ("d3bj:zzzzzz", "no parameters for the functional 'zzzzzz'; see"),
        (
            "d3bj:pbe+mbd",
            "asks for mbd, which mdgraph does not have; write d3bj:pbe, or with the three-body",
        ),
        ("d3bj:pbe+atm=x", "asks for atm=x, which mdgraph does not have"),
        ("d3bj:pbe+atm=0", "cannot be: three_body_cutoff"),
        ("d3bj:pbe@0", "cannot be: cutoff"),
    ],
)
def test_what_it_cannot_be_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        term(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "cutoff"),
    [
        ("d3bj:PBE+atm", "d3bj:pbe+atm=10@18", 10.0),
        ("d3bj:pbe+atm=6.5@12", "d3bj:pbe+atm=6.5@12", 6.5),
        ("d3bj:pbe+atm@5", "d3bj:pbe+atm=5@5", 5.0),
    ],
)
def test_the_name_says_the_triples(text: str, name: str, cutoff: float) -> None:
    potential, _ = term(text)
    config = potential.config
    assert (config.name, config.s9, config.three_body_cutoff) == (name, 1.0, cutoff)
    assert term(name)[0].config == config
    assert potential.stated_dispersion == "D3(BJ)+ATM"
    assert dispersion_in(f"PBE + {potential.stated_dispersion}") == "D3(BJ)"
    assert term("d3bj:pbe")[0].config.tables_sha256 != config.tables_sha256


@pytest.mark.parametrize("text", ["d3bj:PBE@8", "d3bj:PBE+atm@8"])
def test_elements_without_data_are_refused(text: str) -> None:
    potential, _ = term(text)
    with pytest.raises(UnknownSpeciesError, match=r"does not know Rf \(atoms 1\)"):
        Calculation([System([8, 104], [[0, 0, 0], [0, 0, 2]])], potential, device="cpu")
    assert {SYMBOLS[number] for number in (1, 57, 92, 94)} <= {
        SYMBOLS[number] for number in potential.species
    }


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module._functionals.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"tad-dftd3; install it with: pip install 'mdgraph\[d3\]"):
        term("d3bj:pbe")


def test_other_tables_are_refused() -> None:
    config = d3_config("pbe").model_copy(update={"tables_sha256": "0" * 64})
    with pytest.raises(InputError, match="was made with other tables"):
        D3Potential(config)


@pytest.mark.parametrize(
    ("potential", "text", "sentence"),
    [
        ("water-pbe0", "d3bj:pbe0", "has a dispersion already (Tkatchenko-Scheffler, by its level"),
        ("acac-pbe", "d3bj:pbe", "has a dispersion already (D3, by its level of theory PBE-D3/"),
        ("ethanol-pbe", "d3bj:pbe0", "is of PBE/def2-SVP, and the term d3bj:pbe0@18 is for"),
    ],
)
def test_a_dispersion_that_does_not_suit_is_refused_unless_forced(
    potential: str, text: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InputError) as caught:
        with_terms(load(potential), [text])
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("leave the term out, or insist with --force.")
    with_terms(load(potential), [text], force=True)
    assert "It is added all the same." in caplog.text


@pytest.mark.parametrize(
    ("potential", "text"),
    [("ethanol-pbe", "d3bj:PBE"), ("copper-pbe", "d3bj:pbe"), ("3bpa-wb97x", "d3bj:wB97X")],
)
def test_a_dispersion_that_suits_is_added_once(potential: str, text: str) -> None:
    whole = with_terms(load(potential), [text])
    with pytest.raises(InputError, match=r"has a dispersion already \(D3\(BJ\)"):
        with_terms(whole, ["d3bj:pbe@9"])
    with pytest.raises(InputError, match="has a dispersion already"):
        with_terms(load(potential), [text, f"{text}@9"])


def test_a_potential_that_states_nothing_needs_force() -> None:
    with pytest.raises(InputError, match="does not state its level of theory"):
        with_terms(network(**TENSORNET), ["d3bj:pbe"])


@pytest.mark.parametrize(
    ("level", "functional", "dispersion"),
    [
        ("PBE", "pbe", ""),
        ("PBE/def2-SVP", "pbe", ""),
        ("PBE-D3/def2-SVP", "pbe", "D3"),
        ("PBE-D3(BJ)/def2-SVP", "pbe", "D3(BJ)"),
        ("B3LYP-D3BJ", "b3lyp", "D3(BJ)"),
        ("revPBE0 + D3(0)", "revpbe0", "D3(0)"),
        ("PBE0+TS", "pbe0", "Tkatchenko-Scheffler"),
        ("PBE0+MBD", "pbe0", "many-body dispersion"),
        ("wB97X/6-31G(d)", "wb97x", ""),
        ("wB97M-V/def2-TZVPPD", "wb97mv", "VV10"),
        ("ωB97X-D/def2-TZVP", "ωb97xd", "D2"),
        ("r2SCAN-3c", "r2scan3c", "D3"),
        ("SCAN+rVV10", "scan", "VV10"),
        ("GFN2-xTB", "gfn2xtb", "the dispersion of xTB"),
        ("optB88-vdW", "optb88vdw", "a van der Waals functional"),
        ("", "", ""),
    ],
)
def test_a_level_of_theory_says_its_functional_and_dispersion(
    level: str, functional: str, dispersion: str
) -> None:
    assert functional_in(level) == functional
    assert dispersion_in(level) == dispersion


@pytest.mark.parametrize("name", sorted(shipped_potentials()))
def test_every_card_states_the_dispersion_of_its_file(name: str) -> None:
    card = (shipped_potentials()[name] / "card.md").read_text(encoding="utf-8")
    assert f"| dispersion | {describe(name)['dispersion']} |" in card.splitlines()
