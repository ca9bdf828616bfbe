"""Tables in PLUMED's layout: what is written is read, and what is wrong is named by its line."""

import math
from pathlib import Path

import numpy as np
import pytest

from mdgraph.errors import FileError, InputError
from mdgraph.io.plumed import PlumedWriter, read_plumed

FIELDS = ("time", "phi", "metad.bias")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "COLVAR"
    rows = np.random.default_rng(0).normal(size=(5, 3)) * 1e3
    rows[:, 0] = np.arange(5) * 0.1
    with PlumedWriter.create(path, FIELDS, {"min_phi": "-pi", "max_phi": math.pi}) as writer:
        writer.append(rows[0])
        writer.append(rows[1:])
        writer.sync()
    assert path.read_text().startswith("#! FIELDS time phi metad.bias\n#! SET min_phi -pi\n")
    table = read_plumed(path)
    assert table.fields == FIELDS
    np.testing.assert_allclose(table.values, rows, rtol=1e-9)
    np.testing.assert_array_equal(table.lines, np.arange(4, 9))
    assert table.domain("phi") == pytest.approx((-math.pi, math.pi))
    assert table.domain("metad.bias") is None
    exact = tmp_path / "exact"
    with PlumedWriter.create(exact, FIELDS, digits=17) as writer:
        writer.append(rows)
    np.testing.assert_array_equal(read_plumed(exact).values[:, 1:], rows[:, 1:])


def test_resuming_removes_rows_after_the_checkpoint_and_a_half_row(tmp_path: Path) -> None:
    path = tmp_path / "COLVAR"
    with PlumedWriter.create(path, FIELDS) as writer:
        writer.append([[0.1 * step, 1.0, 2.0] for step in range(10)])
    before = path.read_bytes()
    path.write_bytes(before + b" 1.0 0.")
    assert len(read_plumed(path)) == 10
    with PlumedWriter.resume(path, 0.1 * 3, 0.1) as writer:
        writer.append([[0.1 * step, 1.0, 2.0] for step in range(4, 10)])
    assert path.read_bytes() == before


def test_resuming_tells_steps_apart_however_long_the_run(tmp_path: Path) -> None:
    path, step, late = tmp_path / "COLVAR", 1e-3, 2e6
    with PlumedWriter.create(path, ["time", "x"]) as writer:
        writer.append([[late + step * number, number] for number in range(4)])
    PlumedWriter.resume(path, late + step, step).close()
    assert read_plumed(path).column("x").tolist() == [0.0, 1.0]


def test_a_table_of_plumed_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "HILLS"
    head = "#! FIELDS time d sigma_d height biasf\n#! SET multivariate false\n"
    path.write_text(f"{head}  1 0.5 0.1 1.2 10\n# a comment\n{head}\n  2 0.6 0.1 1.1 10\r\n")
    table = read_plumed(path)
    assert table.column("d").tolist() == [0.5, 0.6]
    assert table.constants == {"multivariate": "false"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 2 3\n", "is not a table of PLUMED: no line '#! FIELDS ...'"),
        ("#! FIELDS time phi\n 1 2\n 2 x\n", "line 3: 'x' is not a number; correct or remove"),
        ("#! FIELDS time phi\n 1 2\n 2\n", "line 3: 1 number for 2 columns"),
        ("#! FIELDS time phi\n 1 2\n#! FIELDS time psi\n", "line 3: the columns change to time, p"),
        ("#! FIELDS time time\n 1 2\n", "line 1: #! FIELDS has no name, or one twice"),
    ],
)
def test_bad_tables_are_named_by_their_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "COLVAR"
    path.write_text(text)
    with pytest.raises(FileError, match="COLVAR") as error:
        read_plumed(path)
    assert sentence in str(error.value)


def test_columns_and_constants_that_do_not_serve(tmp_path: Path) -> None:
    path = tmp_path / "COLVAR"
    path.write_text("#! FIELDS time phi\n#! SET min_phi x\n#! SET max_phi pi\n 1 2\n 2 nan\n")
    table = read_plumed(path)
    with pytest.raises(InputError, match="line 5: phi is nan; remove the line"):
        table.column("phi")
    with pytest.raises(InputError, match="has no column psi; it has time, phi"):
        table.column("psi")
    with pytest.raises(FileError, match="'#! SET min_phi x' is not a number"):
        table.domain("phi")
    with pytest.raises(InputError, match="must be 'time'"):
        PlumedWriter.create(tmp_path / "other", ["phi"])
    with pytest.raises(InputError, match="without spaces"):
        PlumedWriter.create(tmp_path / "other", ["time", "a b"])
    with (
        PlumedWriter.create(tmp_path / "other", ["time", "phi"]) as writer,
        pytest.raises(InputError, match="rows of 3 numbers do not fit"),
    ):
        writer.append([1, 2, 3])
