"""Structures from outside: what cannot be is refused, what is odd but legal is read."""

import gzip
import os
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms

from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.io.formats import create_trajectory
from mdgraph.io.structures import read_system, read_systems
from mdgraph.io.trajectories import Frame
from mdgraph.system import System

WATER = b"3\nwater\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n"
ATOM = "ATOM  {:>5} {:<4} HOH A{:>4}    {:8.3f}{:8.3f}{:8.3f}  1.00  0.00          {:>2}\n"
OXYGEN, HYDROGEN, OTHER = (
    ATOM.format(serial, name, 1, x, y, 0.0, name[0])
    for serial, name, x, y in ((1, "O", 0, 0), (2, "H1", 0.96, 0), (3, "H2", -0.24, 0.93))
)
CRYST1 = "CRYST1{:9.3f}{:9.3f}{:9.3f}{:7.2f}{:7.2f}{:7.2f} P 1           1\n"
TAGS = (
    "id type_symbol label_atom_id label_comp_id label_asym_id label_seq_id Cartn_x Cartn_y Cartn_z"
)
MMCIF = "data_X\nloop_\n" + "".join(f"_atom_site.{tag}\n" for tag in TAGS.split())


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


LEGAL: dict[str, tuple[str, str | bytes]] = {
    "CRLF": ("a.xyz", WATER.replace(b"\n", b"\r\n")),
    "no end of the last line": ("a.xyz", WATER[:-1]),
    "blank lines at the end": ("a.xyz", WATER + b"\n  \n\n"),
    "a mark of UTF-8": ("a.xyz", b"\xef\xbb\xbf" + WATER),
    "a comment in Latin-1": ("a.xyz", WATER.replace(b"water", "Wässer, 3 Å".encode("latin-1"))),
    "a comment in Unicode": ("a.xyz", WATER.replace(b"water", "水 été".encode())),
    "an empty comment": ("a.xyz", WATER.replace(b"water", b"")),
    "quotes that do not end": ("a.xyz", WATER.replace(b"water", b"it's \"water")),
    "columns that nobody names": ("a.xyz", WATER.replace(b" 0\n", b" 0 1.5 x\n")),
    "blanks before and behind": ("a.xyz", WATER.replace(b"\n", b"  \n").replace(b"O ", b"  O ")),
    "gz": ("a.xyz.gz", gzip.compress(WATER)),
    "PDB": ("a.pdb", OXYGEN + HYDROGEN + OTHER),
    "PDB without an end of its last line": ("a.pdb", OXYGEN + HYDROGEN + OTHER.rstrip()),
    "PDB without elements": ("a.pdb", "".join(x[:66] + "\n" for x in (OXYGEN, HYDROGEN, OTHER))),
    "PDB of coordinates alone": ("a.pdb", "\n".join(x[:54] for x in (OXYGEN, HYDROGEN, OTHER))),
    "PDB with a mark of UTF-8": ("a.pdb", b"\xef\xbb\xbf" + (OXYGEN + HYDROGEN + OTHER).encode()),
    "PDB with CRLF": ("a.pdb", (OXYGEN + HYDROGEN + OTHER + "END\n").replace("\n", "\r\n")),
    "PDB with hybrid-36 serials": (
        "a.pdb",
        "".join(x[:6] + "A000" + x[10:] for x in (OXYGEN, HYDROGEN, OTHER)),
    ),
    "PDB with serials of six digits": (
        "a.pdb",
        "".join("ATOM 10000" + x[10:] for x in (OXYGEN, HYDROGEN, OTHER)),
    ),
    "PDB with ANISOU, TER and stale counts": (
        "a.pdb",
        OXYGEN
        + "ANISOU    1  O   HOH A   1      100    100    100      0      0      0       O\n"
        + HYDROGEN
        + OTHER
        + "TER       4      HOH A   1\nCONECT 9999 9998\n"
        + "MASTER        0    0    0    0    0    0    0    6   99    1    0    0\nEND",
    ),
    "PDB with a remark in Latin-1": (
        "a.pdb",
        "REMARK   1 é\n".encode("latin-1") + (OXYGEN + HYDROGEN + OTHER).encode(),
    ),
    "PDB with an insertion code": (
        "a.pdb",
        "".join(x[:26] + "A" + x[27:] for x in (OXYGEN, HYDROGEN, OTHER)),
    ),
    "PDB with a dummy cell": (
        "a.pdb",
        CRYST1.format(1, 1, 1, 90, 90, 90) + OXYGEN + HYDROGEN + OTHER,
    ),
    "mmCIF": (
        "a.mmcif",
        MMCIF
        + "1 O O HOH A 1 0 0 0\n2 H 'H1' HOH A 1 0.96(1) 0. .0\n3 H \"H2\" HOH A . -.24 9.3e-1 0\n",
    ),
}


@pytest.mark.parametrize("case", LEGAL)
def test_what_is_odd_but_legal_is_read(tmp_path: Path, case: str) -> None:
    system = read_system(written(tmp_path, *LEGAL[case]))
    assert system.numbers.tolist() == [8, 1, 1]
    np.testing.assert_allclose(
        system.positions, [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], atol=1e-9
    )
    assert not system.pbc.any()


BAD: dict[str, tuple[str, str | bytes, str]] = {
    "too many atoms declared": (
        "a.xyz",
        b"1000000000000\n" + WATER[2:],
        "line 1: 1,000,000,000,000",
    ),
    "one atom too many": ("a.xyz", b"4" + WATER[1:], "line 6: the line of atom 4 of the 4 atoms"),
    "one atom too few": (
        "a.xyz",
        b"2" + WATER[1:],
        "line 5: 'H -0.24 0.93 0' stands where frame 1",
    ),
    "no number of atoms": ("a.xyz", b"water\n" + WATER, "line 1: 'water' stands where XYZ begins"),
    "an unknown element": ("a.xyz", WATER.replace(b"O ", b"Xx "), "line 3: 'Xx' is not an element"),
    "deuterium": (
        "a.xyz",
        WATER.replace(b"H ", b"D ", 1),
        "line 4: 'D' is an isotope of hydrogen \\(write H, and masses such as 2.014 in a column",
    ),
    "deuterium in PDB": (
        "a.pdb",
        b"HETATM    2  D1  HOH A   1       0.960   0.000   0.000  1.00  0.00           D\n",
        "Atoms 2 \\(D1 of HOH\\) are isotopes of hydrogen; write H as their element",
    ),
    "a word for a number": (
        "a.xyz",
        WATER.replace(b"0.96", b"zero"),
        "line 4: 'zero' is not a number",
    ),
    "a short line": ("a.xyz", WATER.replace(b" 0.93 0", b""), "line 5: it has 2 of 4 columns"),
    "gz by another name": ("a.xyz", gzip.compress(WATER), "is compressed; unpack it, or end the"),
    "bytes of zero": ("a.xyz", WATER.replace(b"0.96", b"0\0\0"), "line 4 holds bytes of zero"),
    "UTF-16": ("a.pdb", WATER.decode().encode("utf-16"), "its text is UTF-16; save it as UTF-8"),
    "nan": ("a.xyz", WATER.replace(b"0.96", b"nan"), "positions of atom 1 are not finite"),
    "far away": ("a.xyz", WATER.replace(b"0.96", b"1e12"), "atom 1 are beyond 1e\\+07 A"),
    "eight numbers of a cell": (
        "a.xyz",
        WATER.replace(b"water", b'Lattice="9 0 0 0 9 0 0 0"'),
        "line 2: it does not describe a frame",
    ),
    "no positions": (
        "a.xyz",
        WATER.replace(b"water", b"Properties=species:S:1:force:R:3"),
        "no pos",
    ),
    "a billion columns": (
        "a.xyz",
        WATER.replace(b"water", b"Properties=species:S:1:pos:R:1000000000"),
        "columns",
    ),
    "momenta that are text": (
        "a.xyz",
        WATER.replace(b"water", b"Properties=species:S:1:pos:R:2:momenta:S:1"),
        "a.xyz",
    ),
    "cut within a number": (
        "a.xyz",
        b"3\n\n" + b"H 0.000000 0.000000 1.000000\n" * 2 + b"H 0.000000 0.000000 1.00",
        "line 5: the file ends within a number",
    ),
    "empty": ("a.xyz", b"", "it is empty"),
    "an archive that is none": ("a.xyz.gz", WATER, "it is not a complete gz archive"),
    "a database that is none": ("a.db", b"x" * 5000, "as ASE SQLite database file"),
    "PDB cut within a line": ("a.pdb", OXYGEN + HYDROGEN + OTHER[:60], "it ends within line 3"),
    "PDB cut within a name": ("a.pdb", OXYGEN + HYDROGEN + OTHER[:3], "it ends within line 3"),
    "PDB cut within coordinates": ("a.pdb", OXYGEN + HYDROGEN[:50] + "\n", "line 2 is damaged"),
    "PDB with tabs": ("a.pdb", OXYGEN.replace("      ", "\t", 1), "line 1"),
    "PDB in small letters": ("a.pdb", OXYGEN.lower(), "line 1 is damaged"),
    "PDB with stars": ("a.pdb", OXYGEN[:30] + "*" * 24 + OXYGEN[54:], "columns 31-38 hold"),
    "PDB cut within a model": (
        "a.pdb",
        f"MODEL 1\n{OXYGEN}{HYDROGEN}ENDMDL\nMODEL 2\n{OXYGEN}",
        "its last model does not end",
    ),
    "PDB with a negative cell": (
        "a.pdb",
        CRYST1.format(-10, 9, 9, 90, 90, 90) + OXYGEN,
        "-10, 9, 9 A",
    ),
    "PDB with a cell of nan": (
        "a.pdb",
        CRYST1.format(9, 9, 9, 90, 90, 90).replace("  9.000", "    nan", 1) + OXYGEN,
        "line 1 is damaged",
    ),
    "PDB with impossible angles": (
        "a.pdb",
        CRYST1.format(9, 9, 9, 30, 30, 120) + OXYGEN,
        "the angles 30, 30, 120 degrees, which no three vectors have",
    ),
    "PDB without atoms": ("a.pdb", "REMARK\n", "it holds no atoms"),
    "mmCIF with a word": (
        "a.mmcif",
        MMCIF + "1 O O HOH A 1 0 x 0\n",
        "atom 1 has the _atom_site.Cartn_y 'x'",
    ),
    "mmCIF cut within a row": ("a.mmcif", MMCIF + "1 O O HOH A 1 0 0\n", "end within a row"),
    "a POSCAR of many atoms": (
        "POSCAR",
        "Cu\n1\n3 0 0\n0 3 0\n0 0 3\nCu\n900000000\nDirect\n0 0 0\n",
        "as VASP POSCAR",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    name, content, sentence = BAD[case]
    with pytest.raises(MDGraphError, match=sentence) as caught:
        read_systems(written(tmp_path, name, content))
    assert name in str(caught.value)
    assert str(caught.value).isprintable()
    assert "put back" not in str(caught.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    for suffix in ("xyz", "pdb", "db", "h5", "traj", "cif"):
        os.mkfifo(tmp_path / f"a.{suffix}")
        with pytest.raises(FileError, match="it is a pipe"):
            read_systems(tmp_path / f"a.{suffix}")
    with pytest.raises(FileError, match="it is a device"):
        read_systems("/dev/zero")


def test_frames_behind_blank_lines_are_read_and_other_text_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, "a.xyz", WATER + b"\n" + WATER + b"\nmade by hand\n")
    assert len(read_systems(path)) == 2
    assert "what follows line 12 is not read" in caplog.text


def test_the_frame_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.traj"
    ase.io.write(path, [Atoms("He", positions=[[x, 0, 0]]) for x in (0.0, 1.0, np.nan)])
    with pytest.raises(InputError, match="traj, frame 2: The positions of atom 0"):
        read_systems(path)
    assert len(read_systems(path, ":2")) == 2


class TestTrajectories:
    def trajectory(self, folder: Path) -> Path:
        path = folder / "t.h5"
        system = System([8, 1], [[0, 0, 0], [0.96, 0, 0]])
        zeros = np.zeros((2, 3))
        with create_trajectory(path, system) as writer:
            for step in range(3):
                cell = np.zeros((3, 3))
                writer.append(
                    Frame(step, step, system.positions, zeros, zeros, 1.0, 1.0, 1.0, cell)
                )
        return path

    def test_without_velocities_and_more_is_read(self, tmp_path: Path) -> None:
        path = self.trajectory(tmp_path)
        with h5py.File(path, "r+") as file:
            del file["particles/all/velocity"], file["particles/all/force"], file["observables"]
        systems = read_systems(path)
        assert len(systems) == 3
        assert systems[0].velocities is None

    @pytest.mark.parametrize(
        ("place", "value", "sentence"),
        [
            ("particles/all/species", None, "species is not a set of numbers"),
            ("particles/all/species", b"text", "species is not a set of numbers"),
            ("particles/all/mass", np.ones(3), "masses or boundaries are not those"),
            ("particles/all/position/value", None, "value is not a set of numbers"),
            ("particles/all/position/value", np.ones((3, 5, 3)), r"has the shape \(3, 5, 3\)"),
            ("particles/all/position/value", np.full((3, 2, 3), np.nan), "frame 0 has positions"),
            ("particles/all/position/step", np.zeros(0, dtype=int), "holds no frame"),
            ("particles/all/position/step", np.array([0, 2, 2]), "its frames do not increase"),
            ("particles/all/position/time", np.zeros(1), "declares 3 frames and holds 1"),
            ("h5md/creator", 3, "is not a trajectory that this version"),
        ],
    )
    def test_what_cannot_be(self, tmp_path: Path, place: str, value: Any, sentence: str) -> None:
        path = self.trajectory(tmp_path)
        with h5py.File(path, "r+") as file:
            del file[place]
            if value is None:
                file.create_group(place)
            else:
                file[place] = value
        with pytest.raises(MDGraphError, match=sentence):
            read_systems(path)

    def test_lengths_in_another_unit(self, tmp_path: Path) -> None:
        path = self.trajectory(tmp_path)
        with h5py.File(path, "r+") as file:
            file["particles/all/position/value"].attrs["unit"] = "nm"
        with pytest.raises(FileError, match="its positions are in 'nm'"):
            read_systems(path)

    def test_what_declares_more_than_it_holds(self, tmp_path: Path) -> None:
        path = self.trajectory(tmp_path)
        with h5py.File(path, "r+") as file:
            del file["particles/all/species"]
            file.create_dataset("particles/all/species", (10**12,), "i4", chunks=(100,))
        with pytest.raises(FileError, match="declares 1,000,000,000,000 rows"):
            read_systems(path)


class TestSystems:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"numbers": [1e20, 1]}, "The atomic numbers are not whole"),
            ({"numbers": [10**30, 1]}, "The atomic numbers are not whole"),
            ({"numbers": ["O", "H"]}, "The atomic numbers are not all numbers"),
            ({"numbers": [1.5, 1]}, "not whole"),
            ({"numbers": [999, 1]}, "numbers 999 that are not elements"),
            ({"positions": [["0", "0", "0"], ["1", "0", "0"]]}, "positions are not all numbers"),
            ({"positions": np.zeros((2, 3)) + 1j}, "positions are not all numbers"),
            ({"positions": [[0, 0, 0], [1, 0]]}, "positions are not all numbers"),
            ({"positions": np.zeros((3, 3))}, "positions have shape"),
            ({"positions": np.ma.masked_less([[0.0] * 3, [1.0] * 3], 0.5)}, "masked"),
            ({"positions": [[0, 0, 0], [1e8, 0, 0]]}, "no more than 1e-08 A"),
            ({"positions": [[0, 0, 0], [1e300, 0, 0]]}, "beyond"),
            ({"cell": np.eye(3) * 1e9}, "Cell vectors 0, 1, 2 are beyond"),
            ({"cell": np.diag([1, np.inf, 1])}, "Cell vector 1 is not finite"),
            ({"pbc": "no"}, "give one or three truth values"),
            ({"pbc": [2, 0, 0]}, "give one or three truth values"),
            ({"masses": [1e-30, 1]}, "beyond all bounds"),
            ({"velocities": np.full((2, 3), 3000.0)}, "velocities of atoms 0, 1 are beyond"),
            ({"charge": 10}, "all nuclei together have 9"),
            ({"charge": "one"}, "finite number of e"),
        ],
    )
    def test_what_cannot_be(self, changes: dict[str, Any], sentence: str) -> None:
        water = {"numbers": [8, 1], "positions": [[0, 0, 0], [0.96, 0, 0]]}
        with pytest.raises(InputError, match=sentence):
            System(**(water | changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {"positions": [[1e4, 0, 0], [1e4 + 0.96, -9.9e6, 0]]},
            {"cell": [[0, 9, 0], [9, 0, 0], [0, 0, 9]], "pbc": True},
            {"cell": np.diag([9, 9, 1e6]), "pbc": [1, 1, 0]},
            {"masses": [1e20, 5.5e-4]},
            {"charge": -2},
            {"numbers": np.array([8, 1], dtype=np.uint8)},
            {"numbers": [8.0, 1.0]},
            {"velocities": np.full((2, 3), 1e-300)},
        ],
    )
    def test_what_is_odd_but_sound(self, changes: dict[str, Any]) -> None:
        water = {"numbers": [8, 1], "positions": [[0, 0, 0], [0.96, 0, 0]]}
        assert len(System(**(water | changes))) == 2
