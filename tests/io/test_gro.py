"""GRO files: elements of named atoms, units, frames and boxes, and what is refused."""

import logging
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from mdgraph.errors import FileError, InputError
from mdgraph.io.structures import read_system, read_systems

ATOMS = [
    ("1SER", "CA", 6),
    ("1SER", "HG", 1),
    ("2SOL", "OW", 8),
    ("2SOL", "HW1", 1),
    ("3NA", "NA", 11),
    ("4CL", "CL", 17),
    ("5LIG", "CL1", 17),
    ("5LIG", "C2", 6),
    ("6SOD", "SOD", 11),
    ("7CLA", "CLA", 17),
]


def text_of(
    atoms: list[tuple[str, str, int]],
    box: str = "2.0 3.0 4.0",
    digits: int = 3,
    velocity: float | None = None,
) -> str:
    lines = []
    for number, (residue, name, _) in enumerate(atoms):
        place = f"{residue[0]:>5}{residue[1:]:<5}{name:>5}{number + 1:>5}"
        values = [0.1 + 0.2 * number, 1.0, -0.25]
        line = place + "".join(f"{value:{digits + 5}.{digits}f}" for value in values)
        if velocity is not None:
            line += 3 * f"{velocity:{digits + 5}.{digits + 1}f}"
        lines.append(line)
    return "\n".join(["made, t= 1.0", str(len(atoms)), *lines, box]) + "\n"


def written(folder: Path, text: str) -> Path:
    (folder / "a.gro").write_text(text)
    return folder / "a.gro"


@pytest.mark.parametrize("digits", [3, 6])
def test_elements_names_and_units(tmp_path: Path, digits: int) -> None:
    system = read_system(written(tmp_path, text_of(ATOMS, digits=digits, velocity=-0.3)))
    assert system.numbers.tolist() == [number for *_, number in ATOMS]
    np.testing.assert_allclose(system.positions[2], [5.0, 10.0, -2.5], atol=1e-9)
    np.testing.assert_allclose(system.cell, np.diag([20.0, 30.0, 40.0]))
    assert system.pbc.all()
    assert system.velocities is not None
    np.testing.assert_allclose(system.velocities, -0.003)
    assert system.topology is not None
    assert system.topology.names.tolist() == [name for _, name, _ in ATOMS]
    assert system.topology.residue_names[4] == "NA"


def test_frames_and_boxes(tmp_path: Path) -> None:
    box = "2.0 3.0 4.0 0.0 0.0 0.5 0.0 -0.5 0.75"
    text = text_of(ATOMS[:4], "0 0 0") + text_of(ATOMS[:3], box)
    first, last = read_systems(written(tmp_path, text))
    assert (len(first), len(last)) == (4, 3)
    assert not first.pbc.any()
    assert first.velocities is None
    np.testing.assert_allclose(last.cell, [[20, 0, 0], [5, 30, 0], [-5, 7.5, 40]])


def test_what_ase_writes_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    water = Atoms("OH2", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], cell=[9, 8, 7], pbc=True)
    water.arrays["residuenames"] = np.array(3 * ["SOL"])
    ase.io.write(tmp_path / "a.gro", water)
    with caplog.at_level(logging.WARNING):
        system = read_system(tmp_path / "a.gro")
    assert system.numbers.tolist() == [8, 1, 1]
    np.testing.assert_allclose(system.positions, water.positions, atol=5e-3)
    np.testing.assert_allclose(system.cell, water.cell.array)
    assert not caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (text_of([*ATOMS, ("8SOL", "MW", 0)]), r"atoms 11 \(MW of SOL\).*as PDB or mmCIF with ele"),
        (text_of([("1LIG", "CA", 0), ("1LIG", "C1", 6)]), r"atoms 1 \(CA of LIG\)"),
        (text_of(ATOMS[:2]).replace("-0.250", "-0.25x", 1), "line 3 is damaged"),
        (text_of(ATOMS[:2]).replace("2\n", "3\n", 1), "how many lines of atoms follow"),
        (text_of(ATOMS[:2], "2.0 3.0"), "line 5 .* box of three or nine numbers in nm"),
        ("one\n", "how many lines of atoms follow"),
    ],
)
def test_what_is_damaged_or_ambiguous_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((FileError, InputError), match=message):
        read_system(written(tmp_path, text))
