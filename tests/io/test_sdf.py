"""SDF and MOL files: every record, with its charge, and what is refused."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mdgraph.errors import FileError, InputError
from mdgraph.io.structures import read_system, read_systems

HEAD = "name\n  program 12345678903D\n\n"


def record(
    symbols: str, *properties: str, codes: dict[int, int] | None = None, head: str = HEAD
) -> str:
    lines = [
        f"{1.5 * place:10.4f}{-0.5:10.4f}{2.0:10.4f} {symbol:<3} 0{(codes or {}).get(place, 0):3}"
        for place, symbol in enumerate(symbols.split())
    ]
    bonds = [f"{place + 1:3}{place + 2:3}  1  0" for place in range(len(lines) - 1)]
    count = f"{len(lines):3}{len(bonds):3}  0  0  0  0  0  0  0  0999 V2000"
    return head + "\n".join([count, *lines, *bonds, *properties, "M  END"]) + "\n"


def test_every_record_is_read_with_its_charge(tmp_path: Path) -> None:
    ion = record("N H Cl", "M  CHG  2   1   1   3  -2", codes={0: 1})
    texts = [ion, record("O H D", codes={0: 5}), record("C O", "M  ISO  1   1  13")]
    data = "> <energy>\n-3.0\n\n"
    (tmp_path / "a.sdf").write_text("".join(f"{text}{data}$$$$\n" for text in texts))
    systems = read_systems(tmp_path / "a.sdf")
    assert [system.charge for system in systems] == [-1.0, -1.0, 0.0]
    assert systems[0].numbers.tolist() == [7, 1, 17]
    np.testing.assert_allclose(systems[0].positions[1], [1.5, -0.5, 2.0])
    assert systems[1].masses[2] == 2.0
    assert systems[2].masses[0] == 13.0
    assert not systems[2].pbc.any()
    assert read_system(f"{tmp_path / 'a.sdf'}@0").charge == -1.0


def test_what_ase_writes_is_read(tmp_path: Path) -> None:
    atoms = molecule("CH3CH2OH")
    ase.io.write(tmp_path / "a.mol", atoms)
    system = read_system(tmp_path / "a.mol")
    assert system.numbers.tolist() == atoms.numbers.tolist()
    np.testing.assert_allclose(system.positions, atoms.positions, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (record("C H", "M  RAD  1   1   2"), "unpaired electrons"),
        (record("C H", codes={0: 4}), "unpaired electrons"),
        (record("C R#"), "Atom 1 is 'R#', which is not an element"),
        (record("C O", head=HEAD.replace("3D", "2D")), "is a drawing"),
        (record("C O").replace("V2000", "V3000"), r"line 4 .*is of V3000; write the file as V2000"),
        (record("C O").replace("    1.5000", "    1.5x00"), "line 6 .*no coordinates of atom 2"),
        (record("C O").replace("  2  1", "  9  1", 1), "Atom 2 is .0., which is not an element"),
        (record("C O", "M  CHG  2   1   1"), "line 8 .*is not a list of atoms and values"),
        (record("C O") + "$$$$\n" + record("C Xx"), "frame 1: Atom 1 is 'Xx'"),
        ("one line\n", "line 4 .*how many atoms follow"),
        ("$$$$\n", "it is empty"),
    ],
)
def test_what_is_damaged_or_no_closed_shell_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.sdf").write_text(text)
    with pytest.raises((FileError, InputError), match=message):
        read_systems(tmp_path / "a.sdf")
