"""Structure files give the right atoms, or one sentence."""

import gzip
import io
import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixBondLength
from openmm import app, unit

from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.io.structures import (
    from_ase,
    from_xyz,
    read_atoms,
    read_system,
    read_systems,
    to_ase,
)
from mdgraph.io.xyz import FrameText, frame_texts, parse_frame, parse_plain_frame
from mdgraph.system import System
from mdgraph.units import KINETIC_ENERGY


def pdb_line(
    name: str = " C  ",
    residue: str = "LIG",
    number: int = 1,
    position: tuple[float, float, float] = (0.0, 0.0, 0.0),
    element: str = "  ",
    conformer: str = " ",
    serial: int = 1,
) -> str:
    x, y, z = position
    return (
        f"HETATM{serial:5d} {name:4s}{conformer}{residue:>3s} A{number:4d}    "
        f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00          {element:>2s}\n"
    )


def pdb_file(folder: Path, *lines: str) -> Path:
    path = folder / "structure.pdb"
    path.write_text("".join(lines), encoding="ascii")
    return path


def elements(system: System) -> Counter[str]:
    return Counter(system.symbols)


class TestSharedStructures:
    @pytest.mark.parametrize(
        ("name", "atoms", "box"),
        [
            ("alanine_dipeptide", 22, None),
            ("caffeine", 24, None),
            ("testosterone", 49, None),
            ("chignolin", 166, None),
            ("factorIX", 5807, None),
            ("alanine_dipeptide_water_2269", 2269, (32.853, 32.862, 31.855)),
            ("tip3p_2685", 2685, (30.0, 30.0, 30.0)),
            ("dhfr_water_23558", 23558, (62.23, 62.23, 62.23)),
        ],
    )
    def test_atoms_and_box(
        self, structures_folder: Path, name: str, atoms: int, box: tuple[float, ...] | None
    ) -> None:
        (system,) = read_systems(structures_folder / f"{name}.pdb")
        assert len(system) == atoms
        assert system.pbc.tolist() == [box is not None] * 3
        np.testing.assert_array_equal(system.cell, np.diag(box or (0.0, 0.0, 0.0)))
        assert set(system.symbols) <= set("HCNOSP")

    @pytest.mark.parametrize(
        "name", ["alanine_dipeptide", "chignolin", "factorIX", "tip3p_2685", "dhfr_water_23558"]
    )
    def test_agrees_with_openmm(self, structures_folder: Path, name: str) -> None:
        path = structures_folder / f"{name}.pdb"
        oracle = app.PDBFile(str(path))
        system = read_system(path)
        assert system.symbols == [atom.element.symbol for atom in oracle.topology.atoms()]
        positions = oracle.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
        np.testing.assert_allclose(system.positions, positions, rtol=0, atol=1e-9)

    def test_atoms_of_one_name_in_a_residue_are_all_read(self, structures_folder: Path) -> None:
        system = read_system(structures_folder / "testosterone.pdb")
        assert elements(system) == {"C": 19, "H": 28, "O": 2}
        oracle = ase.io.read(structures_folder / "testosterone.pdb", index=0)
        np.testing.assert_array_equal(system.positions, oracle.positions)


class TestDisorder:
    @pytest.mark.parametrize(
        ("sites", "sentence"),
        [
            ("Cu1 Cu 0 0 0 0.75\nZn1 Zn 0 0 0 0.25", "a site holds 0.75 Cu, 0.25 Zn, where a"),
            ("Cu1 Cu 0 0 0 0.5", "a site holds 0.5 Cu, where a structure has one whole atom"),
            ("Cu1 Cu 0 0 0 1", None),
            ("Cu1 Cu 0 0 0 0.995(3)", None),
            ("Cu1 Cu 0 0 ? 1", "an atom has \\? for its coordinate z; give the number"),
            ("Cu1 Cu 0 . 0 1", "an atom has \\. for its coordinate y; give the number"),
        ],
    )
    def test_sites_of_a_cif_are_whole(
        self, tmp_path: Path, sites: str, sentence: str | None
    ) -> None:
        cell = "".join(f"_cell_length_{one} 3.6\n" for one in "abc")
        cell += "".join(f"_cell_angle_{one} 90\n" for one in ("alpha", "beta", "gamma"))
        columns = ["label", "type_symbol", "fract_x", "fract_y", "fract_z", "occupancy"]
        loop = "loop_\n" + "".join(f"_atom_site_{one}\n" for one in columns)
        group = "_space_group_IT_number 225\n"
        (tmp_path / "alloy.cif").write_text(f"data_alloy\n{cell}{group}{loop}{sites}\n")
        if sentence is None:
            assert read_system(tmp_path / "alloy.cif").symbols == ["Cu"] * 4
        else:
            with pytest.raises(FileError, match=sentence):
                read_system(tmp_path / "alloy.cif")


class TestElementsFromNames:
    @pytest.mark.parametrize(
        ("name", "residue", "symbol"),
        [
            (" HG ", "SER", "H"),
            ("HG  ", "CYS", "H"),
            (" CA ", "ALA", "C"),
            ("CD1 ", "LEU", "C"),
            ("1HB ", "ALA", "H"),
            (" OXT", "GLY", "O"),
            ("OH2 ", "TIP", "O"),
            (" C1 ", "LIG", "C"),
            ("CL1 ", "LIG", "Cl"),
            ("BR2 ", "LIG", "Br"),
            (" HO1", "LIG", "H"),
            (" CM ", "LIG", "C"),
            (" F3 ", "LIG", "F"),
            (" P  ", "DA", "P"),
        ],
    )
    def test_of_atoms_bound_in_a_residue(
        self, tmp_path: Path, name: str, residue: str, symbol: str
    ) -> None:
        path = pdb_file(
            tmp_path, pdb_line(name, residue), pdb_line(" C9 ", residue, position=(1.5, 0, 0))
        )
        assert read_system(path).symbols == [symbol, "C"]

    @pytest.mark.parametrize(
        ("name", "residue", "symbol"),
        [
            ("CA  ", "CA", "Ca"),
            ("HG  ", "HG", "Hg"),
            ("NA+ ", "NA+", "Na"),
            ("ZN  ", "ZN2", "Zn"),
            (" K  ", "K", "K"),
            ("FE  ", "FE2", "Fe"),
            (" CA ", "ALA", "C"),
            (" O  ", "HOH", "O"),
        ],
    )
    def test_of_atoms_alone_in_a_residue(
        self, tmp_path: Path, name: str, residue: str, symbol: str
    ) -> None:
        assert read_system(pdb_file(tmp_path, pdb_line(name, residue))).symbols == [symbol]

    @pytest.mark.parametrize("name", ["CA  ", "NA  ", "FE  ", "HG  ", "SE  ", "EP  ", "M   "])
    def test_that_could_be_two_elements_or_none_are_refused(
        self, tmp_path: Path, name: str
    ) -> None:
        path = pdb_file(tmp_path, pdb_line(" C1 "), pdb_line(name, serial=7, position=(1.5, 0, 0)))
        with pytest.raises(InputError, match=rf"atoms 7 \({name.strip()} of LIG\)"):
            read_system(path)

    def test_yield_to_the_element_column(self, tmp_path: Path) -> None:
        path = pdb_file(
            tmp_path,
            pdb_line("CA  ", element="CA"),
            pdb_line("FE  ", element="Fe", position=(2, 0, 0)),
        )
        assert read_system(path).symbols == ["Ca", "Fe"]


class TestPDBRecords:
    def test_models_are_frames_with_the_cell_before_them(self, tmp_path: Path) -> None:
        cells = [
            f"CRYST1{a:9.3f}{a:9.3f}{a:9.3f}  90.00  90.00  90.00 P 1           1\n"
            for a in (10.0, 11.0)
        ]
        path = pdb_file(
            tmp_path,
            cells[0],
            "MODEL        1\n",
            pdb_line(position=(1, 0, 0)),
            "ENDMDL\n",
            cells[1],
            "MODEL        2\n",
            pdb_line(position=(2, 0, 0)),
            "ENDMDL\nEND\n",
        )
        systems = read_systems(path)
        assert [system.positions[0, 0] for system in systems] == [1.0, 2.0]
        assert [system.cell[0, 0] for system in systems] == [10.0, 11.0]
        assert read_system(path).positions[0, 0] == 2.0
        assert read_system(path, 0).positions[0, 0] == 1.0

    def test_frames_that_end_alone_separates(self, tmp_path: Path) -> None:
        frames = [pdb_line(position=(x, 0, 0)) + "END\n" for x in (1, 2, 3)]
        assert len(read_systems(pdb_file(tmp_path, *frames))) == 3

    def test_the_first_conformer_counts(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = pdb_file(
            tmp_path,
            pdb_line(" N  ", "SER", position=(0, 0, 0)),
            pdb_line(" CA ", "SER", position=(1, 0, 0), conformer="A"),
            pdb_line(" CA ", "THR", position=(1, 1, 0), conformer="B"),
            pdb_line(" OG ", "SER", position=(2, 0, 0), conformer="A"),
            pdb_line(" OG1", "THR", position=(2, 1, 0), conformer="B"),
            pdb_line(" CA ", "GLY", number=2, position=(5, 0, 0), conformer="B"),
        )
        system = read_system(path)
        assert system.positions[:, 0].tolist() == [0, 1, 2, 5]
        assert system.positions[:, 1].tolist() == [0, 0, 0, 0]
        assert "2 alternate locations" in caplog.text

    @pytest.mark.parametrize("edge", [0.0, 1.0])
    def test_a_dummy_cell_is_none(self, tmp_path: Path, edge: float) -> None:
        cell = f"CRYST1{edge:9.3f}{edge:9.3f}{edge:9.3f}  90.00  90.00  90.00 P 1\n"
        system = read_system(pdb_file(tmp_path, cell, pdb_line()))
        assert not system.pbc.any()
        assert not system.cell.any()

    def test_a_triclinic_cell(self, tmp_path: Path) -> None:
        cell = "CRYST1   10.000   12.000   15.000  70.00  80.00 100.00 P 1           1\n"
        system = read_system(pdb_file(tmp_path, cell, pdb_line()))
        a, b, c = system.cell
        np.testing.assert_allclose(np.linalg.norm(system.cell, axis=1), [10, 12, 15])
        cosines = [b @ c / 12 / 15, a @ c / 10 / 15, a @ b / 10 / 12]
        np.testing.assert_allclose(np.degrees(np.arccos(cosines)), [70, 80, 100])
        assert system.pbc.all()

    def test_symmetry_that_is_not_applied_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cell = "CRYST1   10.000   12.000   15.000  90.00  90.00  90.00 P 21 21 21    4\n"
        read_system(pdb_file(tmp_path, cell, pdb_line()))
        assert "P 21 21 21" in caplog.text

    def test_a_line_cut_short_is_an_error(self, tmp_path: Path) -> None:
        path = pdb_file(tmp_path, pdb_line(), pdb_line()[:52])
        with pytest.raises(FileError, match="line 2 is damaged"):
            read_system(path)


class TestMMCIF:
    def test_agrees_with_the_pdb_file_of_the_same_structure(
        self, structures_folder: Path, tmp_path: Path
    ) -> None:
        source = structures_folder / "alanine_dipeptide_water_2269.pdb"
        structure = app.PDBFile(str(source))
        path = tmp_path / "structure.cif"
        with path.open("w", encoding="utf-8") as file:
            app.PDBxFile.writeFile(structure.topology, structure.positions, file)
        system, expected = read_system(path), read_system(source)
        assert system.symbols == expected.symbols
        np.testing.assert_allclose(system.positions, expected.positions, rtol=0, atol=1e-4)
        np.testing.assert_allclose(system.cell, expected.cell, rtol=0, atol=1e-4)
        assert system.pbc.all()

    def mmcif(self, folder: Path, *rows: str, suffix: str = ".mmcif") -> Path:
        path = folder / f"structure{suffix}"
        names = "id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id"
        names += " label_seq_id Cartn_x Cartn_y Cartn_z pdbx_PDB_model_num"
        lines = ["data_TEST", "_struct.title", ";two lines", "of 'text'", ";", "loop_"]
        lines += [f"_atom_site.{tag}" for tag in names.split()]
        path.write_text("\n".join([*lines, *rows, "#"]) + "\n", encoding="utf-8")
        return path

    def test_waters_of_one_chain_are_not_conformers(self, tmp_path: Path) -> None:
        # Their residue has no number, and some programs write '?' for no conformer.
        rows = [f"{i} O O ? HOH A . {3 * i}.5 0.0 0.0 1" for i in range(1, 4)]
        assert elements(read_system(self.mmcif(tmp_path, *rows))) == {"O": 3}

    def test_quoted_names_conformers_and_models(self, tmp_path: Path) -> None:
        rows = [
            """1 O "O5'" A DA A 1 0.0 0.0 0.0 1""",
            """2 O "O5'" B DA A 1 0.5 0.0 0.0 1""",
            """3 C 'C5''' . DA A 1 1.4 0.0 0.0 1""",
            """4 O "O5'" A DA A 1 9.0 0.0 0.0 2""",
            """5 C 'C5''' . DA A 1 8.0 0.0 0.0 2""",
        ]
        first, second = read_systems(self.mmcif(tmp_path, *rows))
        assert first.symbols == ["O", "C"]
        assert first.positions[:, 0].tolist() == [0.0, 1.4]
        assert second.positions[:, 0].tolist() == [9.0, 8.0]
        assert not first.pbc.any()

    def test_a_row_cut_short_is_an_error(self, tmp_path: Path) -> None:
        path = self.mmcif(tmp_path, "1 O O . HOH A 1 0.0 0.0 0.0 1", "2 O O . HOH A 2 3.0")
        with pytest.raises(FileError, match="end within a row"):
            read_system(path)

    def test_a_small_molecule_cif_goes_to_ase(self, tmp_path: Path) -> None:
        path = tmp_path / "silicon.cif"
        ase.io.write(path, ase.build.bulk("Si", cubic=True))
        system = read_system(path)
        assert elements(system) == {"Si": 8}
        assert system.volume == pytest.approx(5.43**3)


class TestOtherFormats:
    @pytest.mark.parametrize("name", ["x.extxyz", "x.xyz.gz", "x.traj", "x.json", "POSCAR"])
    def test_what_ase_reads(self, tmp_path: Path, name: str) -> None:
        atoms = ase.build.bulk("NaCl", "rocksalt", a=5.64) * (2, 1, 1)
        atoms.rattle(0.05, seed=1)
        ase.io.write(tmp_path / name, atoms)
        system = read_system(tmp_path / name)
        assert system.symbols == atoms.get_chemical_symbols() or name == "POSCAR"
        assert elements(system) == {"Na": 2, "Cl": 2}
        np.testing.assert_allclose(system.cell, atoms.cell.array, atol=1e-8)
        assert system.pbc.all()

    def test_a_compressed_pdb(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pdb.gz"
        path.write_bytes(gzip.compress(pdb_line("CA  ", "CA").encode()))
        assert read_system(path).symbols == ["Ca"]

    def test_frames_by_index(self, tmp_path: Path) -> None:
        path = tmp_path / "frames@2.extxyz"
        ase.io.write(path, [Atoms("He", positions=[[x, 0, 0]]) for x in range(5)])

        def places(index: int | slice | str) -> list[float]:
            return [float(system.positions[0, 0]) for system in read_systems(path, index)]

        assert places(":") == [0, 1, 2, 3, 4]
        assert places("1:4:2") == [1, 3]
        assert places("-2") == [3]
        assert places(slice(3, None)) == [3, 4]
        assert places(2) == [2]

    @pytest.mark.parametrize("index", [5, -6, "7:", "one"])
    @pytest.mark.parametrize("name", ["x.extxyz", "x.pdb", "POSCAR"])
    def test_an_index_without_a_frame(self, tmp_path: Path, name: str, index: int | str) -> None:
        path = tmp_path / name
        ase.io.write(path, Atoms("He", positions=[[0, 0, 0]], cell=[5, 5, 5], pbc=True))
        with pytest.raises(InputError, match=r"index"):
            read_systems(path, index)

    def test_what_a_reader_warns_of_is_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "x.cif"
        ase.io.write(path, ase.build.bulk("Si"))
        with path.open("a", encoding="utf-8") as file:
            file.write("loop_\n _one\n _two\n 1 2 3\n")
        with caplog.at_level(logging.WARNING):
            read_system(path)
        assert f"{path}: Wrong number 3 of tokens" in caplog.text

    def test_constraints_are_kept_or_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        atoms = ase.build.fcc111("Cu", (1, 1, 2), vacuum=5.0)
        atoms.set_constraint([FixAtoms([0]), FixBondLength(0, 1)])
        ase.io.write(tmp_path / "x.traj", atoms)
        system = read_system(tmp_path / "x.traj")
        assert system.fixed is not None
        assert system.fixed.tolist() == [True, False]
        assert system.select([1]).fixed is None
        assert to_ase(system).constraints[0].index.tolist() == [0]
        assert "its constraints FixBondLengths are not used" in caplog.text


class TestASE:
    def water(self) -> Atoms:
        atoms = ase.build.molecule("H2O")
        atoms.set_cell([[8, 0, 0], [1, 9, 0], [0.5, 0.2, 10]])
        atoms.pbc = (True, False, True)
        atoms.set_masses([15.999, 2.014, 1.008])
        atoms.set_velocities(np.linspace(-0.05, 0.05, 9).reshape(3, 3))
        atoms.info["charge"] = -1
        return atoms

    def test_round_trip(self) -> None:
        atoms = self.water()
        back = to_ase(from_ase(atoms))
        np.testing.assert_array_equal(back.numbers, atoms.numbers)
        np.testing.assert_array_equal(back.positions, atoms.positions)
        np.testing.assert_array_equal(back.cell.array, atoms.cell.array)
        np.testing.assert_array_equal(back.pbc, atoms.pbc)
        np.testing.assert_array_equal(back.get_masses(), atoms.get_masses())
        np.testing.assert_allclose(back.get_velocities(), atoms.get_velocities(), rtol=1e-15)
        assert back.info["charge"] == -1

    def test_velocities_are_in_angstrom_per_femtosecond(self) -> None:
        atoms = self.water()
        system = from_ase(atoms)
        assert system.velocities is not None
        kinetic = 0.5 * KINETIC_ENERGY * (system.masses[:, None] * system.velocities**2).sum()
        assert kinetic == pytest.approx(atoms.get_kinetic_energy(), rel=1e-7)
        moved = atoms.positions + atoms.get_velocities() * (2.0 * units.fs)
        np.testing.assert_allclose(system.positions + 2.0 * system.velocities, moved, rtol=1e-14)

    def test_without_velocities_and_charge(self) -> None:
        system = from_ase(ase.build.molecule("CH4"))
        assert system.velocities is None
        assert system.charge is None
        assert "charge" not in to_ase(system).info
        assert not to_ase(system).has("momenta")

    def test_a_total_charge_is_a_charge(self, tmp_path: Path) -> None:
        """Two programs write it by two names."""
        atoms = ase.build.molecule("CH4")
        atoms.info["total_charge"] = 1
        assert from_ase(atoms).charge == 1.0
        ase.io.write(tmp_path / "ion.xyz", atoms, format="extxyz")
        assert read_system(tmp_path / "ion.xyz").charge == 1.0
        atoms.info["charge"] = -1
        assert from_ase(atoms).charge == -1.0

    def test_arrays_are_copies(self) -> None:
        atoms = self.water()
        system = from_ase(atoms)
        before = system.positions.copy()
        atoms.positions += 1.0
        np.testing.assert_array_equal(system.positions, before)

    @pytest.mark.parametrize(("key", "spin"), [("spin", 0), ("spin", 1), ("spin_multiplicity", 1)])
    def test_singlets_are_taken(self, key: str, spin: int) -> None:
        atoms = self.water()
        atoms.info[key] = np.int64(spin)
        assert len(from_ase(atoms)) == 3

    @pytest.mark.parametrize(
        ("key", "spin"), [("spin", 2), ("spin", 3), ("multiplicity", 2), ("spin", "up")]
    )
    def test_other_spins_are_refused(self, key: str, spin: object) -> None:
        atoms = self.water()
        atoms.info[key] = spin
        with pytest.raises(InputError, match=key):
            from_ase(atoms)

    @pytest.mark.parametrize("charge", ["one", [1, 2], np.nan])
    def test_a_charge_that_is_no_number_is_refused(self, charge: object) -> None:
        atoms = self.water()
        atoms.info["charge"] = charge
        with pytest.raises(InputError, match="charge"):
            from_ase(atoms)

    def test_results_of_a_calculator_do_no_harm(self) -> None:
        atoms = self.water()
        atoms.calc = SinglePointCalculator(atoms, energy=1.0)
        assert len(from_ase(atoms)) == 3


class TestBadFiles:
    @pytest.mark.parametrize(
        ("name", "content", "expected"),
        [
            ("empty.xyz", b"", FileError),
            ("blank.pdb", b"\n\n", FileError),
            ("truncated.xyz", b"3\n\nH 0 0 0\n", FileError),
            ("words.extxyz", b"no structure\n", FileError),
            ("element.xyz", b"1\n\nQq 0 0 0\n", FileError),
            ("nan.xyz", b"1\n\nH 0 0 nan\n", InputError),
            ("triplet.xyz", b"1\nspin=3\nO 0 0 0\n", InputError),
            ("none.xyz", b"0\n\n", InputError),
            ("cut.cif", b"data_x\n_cell_length_a", FileError),
            ("atom_site.cif", b"data_x\nloop_\n_atom_site.Cartn_x\n", FileError),
            ("text.cif", b"data_x\n_atom_site.Cartn_x\n;1.0\n", FileError),
            ("POSCAR", b"silicon\n1\n", FileError),
            ("binary.traj", b"\x00\x01\x02", FileError),
            ("unknown.format", b"abc\n", FileError),
            ("remarks.pdb", b"REMARK nothing else\n", FileError),
            ("cell.pdb", b"CRYST1   10.0a0\n", FileError),
            ("compressed.xyz.gz", b"not gzip", FileError),
            ("compressed.pdb.gz", gzip.compress(pdb_line().encode(), mtime=0)[:-9], FileError),
            ("brace.json", b"{", FileError),
            ("no.h5", b"no HDF5", FileError),
        ],
    )
    def test_end_in_one_sentence(
        self, tmp_path: Path, name: str, content: bytes, expected: type[MDGraphError]
    ) -> None:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(expected) as caught:
            read_systems(path)
        sentence = str(caught.value)
        assert str(path) in sentence
        assert "\n" not in sentence
        assert sentence.endswith(".")

    @pytest.mark.parametrize("suffix", [".xyz", ".pdb", ".cif", ".h5"])
    def test_absent_or_a_folder(self, tmp_path: Path, suffix: str) -> None:
        folder = tmp_path / f"folder{suffix}"
        folder.mkdir()
        with pytest.raises(FileError, match="it is a folder"):
            read_system(folder)
        with pytest.raises(FileError, match="no such file"):
            read_system(tmp_path / f"absent{suffix}")


class TestNamedFrames:
    """FILE@FRAME is one frame of a file."""

    def written(self, folder: Path, name: str, count: int = 4) -> Path:
        path = folder / name
        frames = [ase.build.molecule("H2O") for _ in range(count)]
        for number, atoms in enumerate(frames):
            atoms.positions += number
        ase.io.write(path, frames)
        return path

    @pytest.mark.parametrize("name", ["water.extxyz", "water.xyz.gz", "water.traj", "water.pdb"])
    @pytest.mark.parametrize("frame", [0, 2, -1, -4])
    def test_counts_from_either_end(self, tmp_path: Path, name: str, frame: int) -> None:
        path = self.written(tmp_path, name)
        system, *others = read_systems(f"{path}@{frame}")
        assert not others
        expected = read_systems(path)[frame]
        np.testing.assert_array_equal(system.positions, expected.positions)
        np.testing.assert_array_equal(read_system(f"{path}@{frame}").positions, system.positions)

    @pytest.mark.parametrize("name", ["water.extxyz", "water.traj", "water.pdb"])
    @pytest.mark.parametrize("frame", [4, -5, 10**17])
    def test_beyond_the_end_says_how_many_there_are(
        self, tmp_path: Path, name: str, frame: int
    ) -> None:
        path = self.written(tmp_path, name)
        words = f"{name} holds no frame at index {frame}; it holds 4 frames, 0 to 3 or -4 to -1."
        with pytest.raises(InputError, match=f"{words}$"):
            read_systems(f"{path}@{frame}")

    def test_a_file_of_that_name_is_read_as_it_is(self, tmp_path: Path) -> None:
        plain = self.written(tmp_path, "water.extxyz")
        odd = plain.rename(tmp_path / "me@home.extxyz@1")
        with pytest.raises(FileError, match="ASE knows no format"):
            read_systems(odd)  # by its ending, not frame 1 of another file
        self.written(tmp_path, "me@home.extxyz", 2)
        assert len(read_systems(tmp_path / "me@home.extxyz")) == 2
        assert read_system(f"{tmp_path}/me@home.extxyz@0").positions[0, 0] == pytest.approx(0.0)
        with pytest.raises(FileError, match="ASE knows no format"):
            read_systems(odd)

    @pytest.mark.parametrize("end", ["@", "@x", "@1.5", "@1:3", "@--1", "@1@"])
    def test_other_ends_are_part_of_the_name(self, tmp_path: Path, end: str) -> None:
        path = self.written(tmp_path, "water.extxyz")
        with pytest.raises(FileError, match="there is no such file"):
            read_systems(f"{path}{end}")

    def test_names_the_file_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"absent\.extxyz: there is no such file"):
            read_systems(tmp_path / "absent.extxyz@3")
        with pytest.raises(
            InputError, match="holds no frame at index 2; it holds 1 frame, 0 or -1"
        ):
            read_systems(f"{self.written(tmp_path, 'one.extxyz', 1)}@2")


# Frames of the usual kind, which are parsed without ASE


USUAL = b"""3
Lattice="9.0 0.0 0.0 0.5 9.5 0.0 0.0 0.0 10.0" Properties=%b pbc="T F T" energy=-1.5 charge=1
O 0.1 1.25e-3 -0.0 15.9 0.1 0.2 0.3 1.0 2.0 3.0
H 1.0 0.7 7 1.0 -.1 +0.2 0.3 1.0 2.0 3.0
Cl 0.1234567890123456789 0.7 -1E-2 2.0 0.1 0.2 0.3 1.0 2.0 3.0
"""
COLUMNS = b"species:S:1:pos:R:3:masses:R:1:momenta:R:3:forces:R:3"


def frame_of(content: bytes) -> FrameText:
    return next(frame_texts(Path("frames.xyz"), io.BytesIO(content)))


def outcome(read: Callable[[], System]) -> object:
    """The fields of a system as bytes, or the sentence of an error."""
    try:
        system = read()
    except MDGraphError as error:
        return str(error)
    arrays = [system.numbers, system.positions, system.cell, system.pbc, system.masses]
    speeds = None if system.velocities is None else system.velocities.tobytes()
    fixed = None if system.fixed is None else system.fixed.tobytes()
    return [(one.dtype, one.tobytes()) for one in arrays], speeds, system.charge, fixed


def outcome_of(frame: FrameText) -> object:
    return outcome(lambda: from_xyz(frame))


def outcome_by_ase(frame: FrameText) -> object:
    return outcome(lambda: from_ase(parse_frame(frame)))


@pytest.mark.parametrize(
    ("old", "new", "is_plain"),
    [
        (b"", b"", True),
        (b"\n", b"\r\n", True),
        (b' pbc="T F T"', b"", True),
        (b" charge=1", b"", True),
        (b"charge=1", b'charge="-1.0"', True),
        (b"charge=1", b'stress="1 2 3 2 5 6 3 6 9"', True),
        (b"masses:R:1", b"other:R:1", True),
        (b"momenta:R:3", b"velo:R:3", True),
        (b"forces:R:3", b"a:R:1:b:R:2", True),
        (b"Lattice", b"Other", True),
        (b"O 0.1", b"  O\t 0.1", True),
        (b"charge=1", b"charge=one", False),
        (b"charge=1", b"charge=999", True),
        (b"charge=1", b"spin=1", False),
        (b"charge=1", b"spin=3", False),
        (b"charge=1", b'note="it is \\"so\\""', False),
        (b"charge=1", b"words of people", False),
        (b"charge=1", b"stress=nonsense", False),
        (b'pbc="T F T"', b"pbc=[1,0,1]", False),
        (b"Lattice=", b"Lattice=x Lattice=", False),
        (b"charge=1", b"virial=1", False),
        (b' 10.0"', b'"', False),
        (b"pos:R:3:masses:R:1", b"pos:R:2:masses:R:2", False),
        (b"forces:R:3", b"move_mask:L:1:b:R:2", False),
        (b"forces:R:3", b"pos:R:3", False),
        (b"species:S:1:", b"id:S:1:", False),
        (b"O 0.1", b"o 0.1", False),
        (b"O 0.1", b"Xx 0.1", False),
        (b"O 0.1", b"O nan", False),
        (b"O 0.1", b"O 1e999", True),
        (b"O 0.1", b"O 1,0", False),
        (b"O 0.1", b"O true", False),
        (b"O 0.1", b"O", False),
        (b"O 0.1", b"O 0.1 5", False),
        (b"2.0 3.0\nH", b"2.0\n3.0 H", False),
        (b"2.0 3.0\n", b"2.0 \xc2\xb5\n", False),
        (b"3.0\nH", b"3.0 7\nH", False),
    ],
)
def test_usual_frames_are_what_ase_reads(old: bytes, new: bytes, is_plain: bool) -> None:
    """With the same bits and sentences; and what is not usual is left to ASE."""
    content = (USUAL % COLUMNS).replace(old, new, -1 if old == b"\n" else 1)
    frame = frame_of(content)
    assert (parse_plain_frame(frame) is not None) == is_plain
    assert outcome_of(frame) == outcome_by_ase(frame)


def test_mutated_frames_are_what_ase_reads() -> None:
    """Where any byte is another one, those frames that are parsed without ASE are as with it."""
    generator, plain = random.Random(0), 0
    content = USUAL % COLUMNS
    for _ in range(1500):
        at = generator.randrange(2, len(content))
        new = bytes([generator.choice(b'0123456789.+-eE "=:\tTFHOx,_\\')])
        try:
            frame = frame_of(content[:at] + new + content[at + 1 :])
        except MDGraphError:
            continue
        if parse_plain_frame(frame) is not None:
            plain += 1
            assert outcome_of(frame) == outcome_by_ase(frame)
    assert plain > 300


def test_a_system_with_another_charge_shares_its_arrays() -> None:
    system = System(numbers=[8, 1], positions=np.zeros((2, 3)), charge=1.0)
    other = system.replace(charge=-1.0)
    assert (system.charge, other.charge) == (1.0, -1.0)
    assert other.positions is system.positions
    assert system.replace(charge=None).charge is None
    with pytest.raises(InputError, match="all nuclei together have 9"):
        system.replace(charge=10.0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_volumes_are_zero_without_three_directions(scale: float) -> None:
    generator = np.random.default_rng(0)
    cell = generator.normal(size=(3, 3))
    volume = System([1], np.zeros((1, 3)), cell=scale * cell).volume
    assert volume == abs(np.linalg.det(scale * cell)) > 0.0
    cell[2] = cell[0] + cell[1]
    assert System([1], np.zeros((1, 3)), cell=scale * cell).volume == 0.0
    cell[2] += 1e-7 * np.cross(cell[0], cell[1])
    assert System([1], np.zeros((1, 3)), cell=scale * cell).volume > 0.0


LAMMPS = """water

3 atoms
2 atom types

0.0 9.0 xlo xhi
0.0 9.0 ylo yhi
0.0 9.0 zlo zhi
{sections}
Atoms # atomic

1 1 1.0 1.0 1.0
2 2 1.96 1.0 1.0
3 2 0.76 1.93 1.0
"""


ROWS = "O 0 0 0.119 1 2 3\nH 0 0.763 -0.477 4 5 6\nH 0 -0.763 -0.477 7 8 9\n"


@pytest.mark.parametrize("end", ["", "energy=-14.2"])
@pytest.mark.parametrize("lattice", ["lattice", "LATTICE", "Lattice"])
def test_keys_of_a_header_are_read_in_any_spelling(tmp_path: Path, lattice: str, end: str) -> None:
    """GPUMD's files say lattice and properties: such crystals ran as clusters without a word."""
    path = tmp_path / "train.xyz"
    path.write_text(
        f'3\n{lattice}="9 0 0 0 9 0 1.5 0 9.25" properties=species:S:1:pos:R:3:force:R:3 {end}\n'
        + ROWS
    )
    system = read_system(path)
    assert system.pbc.all()
    assert system.cell.tolist() == [[9, 0, 0], [0, 9, 0], [1.5, 0, 9.25]]
    (atoms,) = [atoms for _, atoms in read_atoms(path)]
    assert atoms.arrays["force"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    path.write_text(f'3\n{lattice}="9 0 0 0 9 0 1.5 0 9.25" PBC="T F T"\n' + ROWS)
    assert read_system(path).pbc.tolist() == [True, False, True]


def test_a_comment_that_has_a_word_of_a_header_stays_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "water.xyz"
    path.write_text("3\nlattice=cubic PBC=none properties=measured\n" + ROWS)
    assert not read_system(path).pbc.any()


@pytest.mark.parametrize("after", ["", "VEC1 9 0 0\nVEC2 0 9 0\nVEC3 0 0 9\n"])
def test_atomic_numbers_stand_for_symbols(tmp_path: Path, after: str) -> None:
    path = tmp_path / "water.xyz"
    path.write_text("3\nwater\n" + ROWS.replace("O", " 8").replace("H", "1") + after)
    system = read_system(path)
    assert system.numbers.tolist() == [8, 1, 1]
    assert system.positions[0].tolist() == [0.0, 0.0, 0.119]
    assert system.pbc.all() == bool(after)
    path.write_text("3\nwater\n" + ROWS.replace("O", "0"))
    with pytest.raises(FileError, match="line 3: '0' is not an element"):
        read_system(path)


@pytest.mark.parametrize(
    ("charges", "total"), [("1+ ", "+1 e"), ("2-1+", "-1 e"), ("1+1-", None), (" 7 8", None)]
)
def test_formal_charges_of_a_pdb_file_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, charges: str, total: str | None
) -> None:
    """Such an ion ran as a neutral molecule; a number without a sign is that of an old line."""
    path = tmp_path / "ions.pdb"
    path.write_text(
        "".join(
            f"HETATM{row:5d}  O   LIG A   1    {2.0 * row:8.3f}   0.000   0.000  1.00  0.00"
            f"           O{charges[2 * row : 2 * row + 2]}\n"
            for row in range(2)
        )
    )
    system = read_system(path)
    assert system.charge is None
    if total is None:
        assert caplog.text == ""
    else:
        assert f"formal charges in it add up to {total}, which is not used" in caplog.text


def test_units_of_a_file_of_ipi_are_not_guessed(tmp_path: Path) -> None:
    """Its lengths are in bohr unless it says otherwise, and its cell stands in a comment."""
    path = tmp_path / "run.pos_0.xyz"
    path.write_text("3\n# CELL(abcABC): 18.9 18.9 18.9 90.0 90.0 90.0 cell{atomic_unit}\n" + ROWS)
    with pytest.raises(FileError, match="line 2: it is a header of i-PI"):
        read_system(path)


DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 9
0 9
0 9
ITEM: ATOMS id {columns} x y z
1 {first} 0 0 0
2 {second} 0 0 2.4
"""


@pytest.mark.parametrize(
    ("columns", "rows", "numbers"),
    [
        ("element", ("Na", "Cl"), [11, 17]),
        ("type element", ("1 Na", "2 Cl"), [11, 17]),
        ("type mass", ("1 22.98977", "2 35.453"), [11, 17]),
        ("mass", ("15.9994", "2.014"), [8, 1]),
        ("type", ("1", "2"), "nothing in it tells the elements of its types; write it with a"),
        ("mass", ("15.9994", "3.024"), r"the mass 3\.024 is that of no element; write it with a"),
        ("mass", ("72.0", "47.0"), "is that of no element"),
    ],
)
def test_types_of_a_dump_of_lammps_are_not_taken_for_elements(
    tmp_path: Path, columns: str, rows: tuple[str, str], numbers: list[int] | str
) -> None:
    """Types 1 and 2 were hydrogen and helium, without a word."""
    path = tmp_path / "run.lammpstrj"
    path.write_text(DUMP.format(columns=columns, first=rows[0], second=rows[1]))
    if isinstance(numbers, list):
        assert read_system(path).numbers.tolist() == numbers
        return
    with pytest.raises(FileError, match=numbers):
        read_system(path)


@pytest.mark.parametrize("name", ["water.data", "water.lammps-data"])
def test_types_of_lammps_are_elements_only_where_the_file_says_so(
    tmp_path: Path, name: str
) -> None:
    """Types 1 and 2 were hydrogen and helium, and a heavy hydrogen of 3 amu was helium."""
    path = tmp_path / name
    for sections in (
        "\nMasses\n\n1 15.9994\n2 1.008\n",
        "\nMasses\n\n1 15.9994\n2 2.014\n",
        "\nAtom Type Labels\n\n1 O\n2 H\n\nMasses\n\n1 15.9994\n2 2.014\n",
    ):
        path.write_text(LAMMPS.format(sections=sections))
        assert read_system(path).numbers.tolist() == [8, 1, 1]
    path.write_text(LAMMPS.format(sections=""))
    with pytest.raises(FileError, match="nothing in it tells the elements of its types; write a"):
        read_system(path)
    path.write_text(LAMMPS.format(sections="\nMasses\n\n1 15.9994\n2 3.024\n"))
    with pytest.raises(FileError, match=r"mass 3\.024 is that of no element; write a section Atom"):
        read_system(path)
