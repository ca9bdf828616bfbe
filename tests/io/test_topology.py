"""Bonds, molecules and residues of structures, and topology.pdb in OpenMM, MDAnalysis and here."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import covalent_radii
from ase.neighborlist import neighbor_list
from openmm import unit
from openmm.app import PDBFile

from mdgraph.errors import InputError
from mdgraph.io.structures import from_ase, read_system
from mdgraph.io.topology import Molecules, find_bonds, topology_of, wrap_positions, write_pdb
from mdgraph.system import System, Topology

PEPTIDE = """\
CRYST1   20.000   21.000   22.000  90.00  90.00  90.00 P 1           1
ATOM      1  N   GLY B  42A      1.000   2.000   3.000  1.00  0.00           N
ATOM      2  CA  GLY B  42A      2.450   2.000   3.000  1.00  0.00           C
ATOM      3 HG11 VAL B  43       3.000   3.000   3.000  1.00  0.00           H
HETATM    7  O   HOH C   1       9.000   9.000   9.000  1.00  0.00           O
HETATM    8  H1  HOH C   1       9.960   9.000   9.000  1.00  0.00           H
HETATM    9  H2  HOH C   1       8.760   9.930   9.000  1.00  0.00           H
HETATM   10 CL    CL C   2     -12.000   9.930   9.000  1.00  0.00          CL
CONECT    1    2
CONECT    2    1    3
CONECT    7    8    9
CONECT    9  555
END
"""


def peptide(folder: Path) -> System:
    path = folder / "peptide.pdb"
    path.write_text(PEPTIDE)
    return read_system(path)


def mixture() -> Atoms:
    """Water, carbon dioxide, sodium in contact with the water; in a skewed periodic cell."""
    atoms = molecule("H2O") + molecule("CO2") + Atoms("Na")
    atoms.positions[3:6] += [5.0, 0, 0]
    atoms.positions[6] = atoms.positions[0] + [0, 0, 2.2]
    atoms.set_cell([[9.0, 0, 0], [4.0, 8.0, 0], [1.0, -3.0, 9.0]])
    atoms.pbc = True
    return atoms


class TestBonds:
    def test_are_those_of_a_neighbor_list(self) -> None:
        random = np.random.default_rng(0)
        for _ in range(20):
            count, edge = random.integers(1, 40), random.uniform(2, 6)
            atoms = Atoms(
                numbers=random.choice([1, 6, 8, 17], count),
                positions=random.normal(size=(count, 3)) * 8,
                cell=np.eye(3) * edge + random.normal(size=(3, 3)) * edge * 0.3,
                pbc=random.random(3) < 0.6,
            )
            first, second, shift = neighbor_list("ijS", atoms, 1.25 * covalent_radii[atoms.numbers])
            expected = {
                (i, j, tuple(s))
                for i, j, s in zip(first.tolist(), second.tolist(), shift.tolist(), strict=True)
            }
            bonds, shifts = find_bonds(from_ase(atoms))
            pairs = zip(bonds.tolist(), shifts.tolist(), strict=True)
            there = {(i, j, tuple(s)) for (i, j), s in pairs}
            back = {(j, i, tuple(-x for x in s)) for i, j, s in there}
            assert there | back == expected

    def test_of_ions_are_none(self) -> None:
        bonds, _ = find_bonds(from_ase(mixture()))
        assert sorted(map(tuple, bonds.tolist())) == [(0, 1), (0, 2), (3, 4), (3, 5)]


class TestMolecules:
    def test_are_made_whole_and_wrapped(self) -> None:
        system = from_ase(mixture())
        molecules = Molecules.of(system)
        assert molecules.labels.tolist() == [0, 0, 0, 1, 1, 1, 2]
        assert molecules.finite.all()
        assert molecules.bonds.from_radii
        random = np.random.default_rng(1)
        for _ in range(5):
            broken = system.positions + random.integers(-3, 4, (7, 3)) @ system.cell
            whole = molecules.whole(broken, system.cell, system.pbc)
            moves = whole - system.positions
            for label in range(3):
                assert np.ptp(moves[molecules.labels == label], axis=0).max() < 1e-9
            inside = molecules.wrap(whole, system.cell, system.pbc)
            for label in range(3):
                own = molecules.labels == label
                assert np.ptp((inside - whole)[own], axis=0).max() < 1e-9
                center = inside[own].mean(axis=0) @ np.linalg.inv(system.cell)
                assert (center > -1e-9).all()
                assert (center < 1 + 1e-9).all()

    def test_long_chains(self) -> None:
        count = 500
        positions = np.zeros((count, 3))
        positions[:, 0] = 1.4 * np.arange(count)
        chain = System([6] * count, positions, np.diag([1000.0, 6.0, 6.0]), [True, True, True])
        order = np.random.default_rng(2).permutation(count)
        mixed = chain.replace(positions=chain.positions[order])
        molecules = Molecules.of(mixed)
        assert molecules.finite.tolist() == [True]
        moved = wrap_positions(mixed.positions + [640.0, 0, 0], mixed.cell, mixed.pbc)
        whole = molecules.whole(moved, mixed.cell, mixed.pbc)
        moves = whole - mixed.positions
        assert np.ptp(moves, axis=0).max() < 1e-9

    @pytest.mark.parametrize("name", ["Cu", "Si"])
    def test_crystals_stay_as_they_are(self, name: str) -> None:
        system = from_ase(bulk(name, cubic=True) * (2, 2, 2))
        molecules = Molecules.of(system)
        assert not molecules.finite.any()
        same = molecules.whole(system.positions, system.cell, system.pbc)
        np.testing.assert_array_equal(same, system.positions)
        moved = molecules.wrap(system.positions + 30.0, system.cell, system.pbc)
        np.testing.assert_allclose(
            moved, wrap_positions(system.positions + 30.0, system.cell, system.pbc), atol=1e-9
        )

    def test_bonds_of_a_file_go_before_radii(self, tmp_path: Path) -> None:
        molecules = Molecules.of(peptide(tmp_path))
        assert molecules.labels.tolist() == [0, 0, 0, 1, 1, 1, 2]
        assert not molecules.bonds.from_radii

    def test_atoms_are_wrapped_along_periodic_directions_alone(self) -> None:
        cell, pbc = np.diag([4.0, 5.0, 0.0]), np.array([True, True, False])
        moved = wrap_positions(np.array([[9.0, -1.0, 77.0]]), cell, pbc)
        np.testing.assert_allclose(moved, [[1.0, 4.0, 77.0]])


def residues(topology: Any) -> list[tuple[str, str, str]]:
    return [(atom.name, atom.residue.name, atom.residue.id) for atom in topology.atoms()]


class TestPDB:
    def test_names_come_back(self, tmp_path: Path) -> None:
        system = peptide(tmp_path)
        write_pdb(tmp_path / "topology.pdb", system)
        again = read_system(tmp_path / "topology.pdb")
        assert system.topology is not None
        assert again.topology is not None
        for name in ("names", "residue_names", "residues", "chains", "bonds"):
            expected = getattr(system.topology, name)
            np.testing.assert_array_equal(getattr(again.topology, name), expected)
        assert again.topology.names.tolist() == ["N", "CA", "HG11", "O", "H1", "H2", "CL"]
        assert again.topology.residues.tolist() == ["42A", "42A", "43", "1", "1", "1", "2"]
        assert again.topology.bonds.tolist() == [[0, 1], [1, 2], [3, 4], [3, 5]]
        np.testing.assert_array_equal(again.numbers, system.numbers)
        np.testing.assert_allclose(again.positions, system.positions, atol=1e-9)
        np.testing.assert_allclose(again.cell, system.cell, atol=1e-9)
        records = (tmp_path / "topology.pdb").read_text().splitlines()
        assert records[1:8] == PEPTIDE.splitlines()[1:4] + [
            line[:6] + f"{serial:5}" + line[11:]
            for serial, line in enumerate(PEPTIDE.splitlines()[4:8], 4)
        ]

    def test_openmm_reads_it(self, tmp_path: Path) -> None:
        write_pdb(tmp_path / "topology.pdb", peptide(tmp_path))
        pdb = PDBFile(str(tmp_path / "topology.pdb"))
        assert residues(pdb.topology)[1:3] == [("CA", "GLY", "42"), ("HG11", "VAL", "43")]
        assert [atom.element.symbol for atom in pdb.topology.atoms()][-1] == "Cl"
        lengths = pdb.topology.getUnitCellDimensions().value_in_unit(unit.angstrom)
        np.testing.assert_allclose([*lengths], [20, 21, 22])

    def test_residues_of_other_structures_are_molecules(self) -> None:
        topology = topology_of(from_ase(mixture()))
        assert topology.names.tolist() == ["O", "H1", "H2", "C", "O1", "O2", "NA"]
        assert topology.residue_names.tolist() == ["HOH"] * 3 + ["UNL"] * 3 + ["NA"]
        assert topology.residues.tolist() == ["1", "1", "1", "2", "2", "2", "3"]

    def test_wide_numbers_keep_their_columns(self, tmp_path: Path) -> None:
        count = 100_010
        positions = np.zeros((count, 3))
        positions[:, 0] = np.linspace(-1e7, 1e7, count)
        write_pdb(tmp_path / "topology.pdb", System([18] * count, positions))
        lines = (tmp_path / "topology.pdb").read_text().splitlines()
        assert {len(line) for line in lines[:-1]} == {78}
        assert lines[100_000][:26] == "HETATM    1 AR    AR A   1"
        again = read_system(tmp_path / "topology.pdb")
        np.testing.assert_allclose(again.positions, positions, rtol=1e-6, atol=1.0)

    def test_mdanalysis_reads_it(self, tmp_path: Path) -> None:
        mdanalysis = pytest.importorskip("MDAnalysis")
        write_pdb(tmp_path / "topology.pdb", peptide(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            universe = mdanalysis.Universe(str(tmp_path / "topology.pdb"))
            water = universe.select_atoms("water")
        assert water.names.tolist() == ["O", "H1", "H2"]
        assert universe.atoms.elements.tolist() == ["N", "C", "H", "O", "H", "H", "Cl"]
        assert universe.residues.resnames.tolist() == ["GLY", "VAL", "HOH", "CL"]
        assert len(universe.bonds) == 4


class TestSystems:
    def test_keep_the_topology_of_their_file(self, tmp_path: Path) -> None:
        system = peptide(tmp_path)
        assert system.replace(charge=1.0).topology is system.topology
        assert system.topology is not None
        part = system.topology.select([0, 3, 5])
        assert part.names.tolist() == ["N", "O", "H2"]
        assert part.bonds.tolist() == [[1, 2]]

    def test_refuse_that_of_others(self, tmp_path: Path) -> None:
        system = peptide(tmp_path)
        assert system.topology is not None
        with pytest.raises(InputError, match="names 2 atoms, and the structure has 7"):
            system.replace(topology=system.topology.select([0, 1]))
        with pytest.raises(InputError, match="topology is no"):
            system.replace(topology="peptide.pdb")

    def test_mmcif_has_names_too(self, tmp_path: Path) -> None:
        tags = "id type_symbol label_atom_id label_comp_id label_asym_id auth_asym_id auth_seq_id "
        tags += "pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z"
        rows = ["1 C CA GLY A X 42 A 0 0 0", "2 O O HOH B Y 7 ? 5 0 0"]
        lines = ["data_a", "loop_", *(f"_atom_site.{tag}" for tag in tags.split()), *rows, ""]
        (tmp_path / "a.cif").write_text("\n".join(lines))
        topology = read_system(tmp_path / "a.cif").topology
        assert isinstance(topology, Topology)
        assert topology.names.tolist() == ["CA", "O"]
        assert topology.residues.tolist() == ["42A", "7"]
        assert topology.chains.tolist() == ["X", "Y"]


def test_a_run_writes_the_names_of_its_start(
    tmp_path: Path, tiny_potential: Path, mdgraph_command: Callable[..., Any]
) -> None:
    path = tmp_path / "water.pdb"
    rows = zip(["OW", "HW1", "HW2"], "OHH", molecule("H2O").positions, strict=True)
    path.write_text(
        "".join(
            f"HETATM{serial:5}  {name:3} SOL W   9    {x:8.3f}{y:8.3f}{z:8.3f}"
            f"  1.00  0.00           {symbol}\n"
            for serial, (name, symbol, (x, y, z)) in enumerate(rows, 1)
        )
    )
    stages = tmp_path / "stages.yaml"
    stages.write_text(
        f"potential: {tiny_potential}\ncheck: false\nstages:\n"
        "  - {name: first, steps: 2}\n  - {name: second, steps: 2}\n"
    )
    done = mdgraph_command("protocol", stages, path, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    for folder in sorted((tmp_path / "out").glob("*-*")):
        topology = read_system(folder / "topology.pdb").topology
        assert topology is not None
        assert topology.names.tolist() == ["OW", "HW1", "HW2"]
        assert topology.residue_names.tolist() == ["SOL"] * 3
        assert topology.residues.tolist() == ["9"] * 3
