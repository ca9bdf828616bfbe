"""Logs survive kills and full disks, and resume without doubled or lost rows."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared import PreparedProcess

from mdgraph.errors import FileError, InputError
from mdgraph.io.log import LOG_COLUMNS, LogWriter, read_log, unit_row


def row(step: int) -> dict[str, float]:
    values = {column: step / 3 + index for index, column in enumerate(LOG_COLUMNS)}
    return values | {"step": step, "total_energy_eV": -29944.123456789 - step}


def write(path: Path, steps: range, *, units: bool = False) -> bytes:
    with LogWriter.create(path, units=units) as log:
        for step in steps:
            log.append(row(step))
    return path.read_bytes()


def test_rows_come_back(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", range(0, 50, 10))
    table = read_log(tmp_path / "log.csv")
    assert tuple(table) == LOG_COLUMNS
    assert table["step"].dtype == np.int64
    assert table["step"].tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(
        table["total_energy_eV"], -29944.123456789 - table["step"], rtol=1e-14
    )


def test_the_header_stands_once_and_rows_are_there_at_once(tmp_path: Path) -> None:
    with LogWriter.create(tmp_path / "log.csv") as log:
        assert log.path.read_text(encoding="ascii") == ",".join(LOG_COLUMNS) + "\n"
        assert len(read_log(log.path)["step"]) == 0
        log.append(row(1))
        assert len(read_log(log.path)["step"]) == 1
        log.sync()


def test_own_columns(tmp_path: Path) -> None:
    with LogWriter.create(tmp_path / "log.csv", ("step", "volume_A3")) as log:
        log.append({"step": 3, "volume_A3": 27.0})
        log.append({"step": 4, "volume_A3": float("nan")})
    assert (tmp_path / "log.csv").read_text(encoding="ascii") == "step,volume_A3\n3,27\n4,nan\n"


def test_a_row_of_units_stands_below_the_names(tmp_path: Path) -> None:
    columns = ("step", *LOG_COLUMNS[1:], "pressure_bar", "volume_A3", "density_g_per_cm3", "a")
    with LogWriter.create(tmp_path / "log.csv", columns, units=True) as log:
        assert len(read_log(log.path)["step"]) == 0
        log.append(row(1) | dict.fromkeys(columns[len(LOG_COLUMNS) :], 2.5))
    names, units, _ = (tmp_path / "log.csv").read_text(encoding="ascii").splitlines()
    assert names == ",".join(columns)
    assert units == "-,ps,eV,eV,eV,K,ns/day,bar,A^3,g/cm^3,-"
    assert read_log(tmp_path / "log.csv")["pressure_bar"].tolist() == [2.5]


@pytest.mark.parametrize("other", ["-,ps,eV", "-,ps,eV,eV,eV,bar,ns/day"])
def test_a_row_of_other_units_is_damage(tmp_path: Path, other: str) -> None:
    path = tmp_path / "log.csv"
    content = write(path, range(3), units=True)
    path.write_bytes(content.replace(unit_row(LOG_COLUMNS).encode(), other.encode()))
    for read in (read_log, lambda path: LogWriter.resume(path, 100)):
        with pytest.raises(FileError, match="is damaged: its row '-,ps"):
            read(path)


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("last_step", [0, 15, 20, 40, 99])
def test_a_resumed_log_is_the_uninterrupted_one(
    tmp_path: Path, last_step: int, units: bool
) -> None:
    expected = write(tmp_path / "whole.csv", range(0, 100, 10), units=units)
    path = tmp_path / "log.csv"
    part = write(tmp_path / "part.csv", range(0, 50, 10), units=units)
    path.write_bytes(part + b"50,0.5,12")
    kept = [step for step in range(0, 50, 10) if step <= last_step]
    with LogWriter.resume(path, last_step) as log:
        assert log.last_step == kept[-1]
        for step in range(kept[-1] + 10, 100, 10):
            log.append(row(step))
    assert path.read_bytes() == expected


def test_resuming_before_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    header = ",".join(LOG_COLUMNS) + "\n"
    for units, lines in ((False, header), (True, f"{header}{unit_row(LOG_COLUMNS)}\n")):
        path.unlink(missing_ok=True)
        write(path, range(10, 30, 10), units=units)
        with LogWriter.resume(path, 5) as log:
            assert log.last_step is None
        assert path.read_text(encoding="ascii") == lines


@pytest.mark.parametrize("step", [10, 5])
def test_steps_go_up(tmp_path: Path, step: int) -> None:
    with LogWriter.create(tmp_path / "log.csv") as log:
        log.append(row(10))
        with pytest.raises(InputError, match="holds step 10 already"):
            log.append(row(step))


@pytest.mark.parametrize("change", [{"pressure_bar": 1.0}, {"time_ps": None}])
def test_rows_have_the_columns_of_the_log(tmp_path: Path, change: dict[str, float | None]) -> None:
    values = {key: value for key, value in (row(1) | change).items() if value is not None}
    with (
        LogWriter.create(tmp_path / "log.csv") as log,
        pytest.raises(InputError, match=next(iter(change))),
    ):
        log.append(values)


def test_the_first_column_is_the_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be 'step'"):
        LogWriter.create(tmp_path / "log.csv", ("time_ps", "step"))
    assert not (tmp_path / "log.csv").exists()


def test_an_existing_log_is_not_replaced(tmp_path: Path) -> None:
    before = write(tmp_path / "log.csv", range(3))
    with pytest.raises(FileError, match="exists already"):
        LogWriter.create(tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"", b"step,time_ps", b"no log\n1,2\n", b"step,a\n1,2\n3\n", b"step,a\nx,1\n", b"step\nnan\n"],
)
def test_damaged_logs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    for read in (read_log, lambda path: LogWriter.resume(path, 100)):
        with pytest.raises(FileError, match=r"log\.csv"):
            read(path)
    assert path.read_bytes() == content


def test_absent_logs(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read_log(tmp_path / "log.csv")
    with pytest.raises(FileError, match="no such file"):
        LogWriter.resume(tmp_path / "log.csv", 0)
    assert not (tmp_path / "log.csv").exists()


def test_a_killed_run_leaves_all_its_rows(processes: Any, tmp_path: Path) -> None:
    code = """
import sys
from mdgraph.io.log import LogWriter
log = LogWriter.create(sys.argv[1], ("step", "value"))
for step in range(10**9):
    log.append({"step": step, "value": step / 7})
    if step == 200:
        print("ready", flush=True)
"""
    path = tmp_path / "log.csv"
    with PreparedProcess(processes, ["-c", code, path], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        os.kill(run.pid, signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    table = read_log(path)
    assert len(table["step"]) > 200
    np.testing.assert_array_equal(table["step"], np.arange(len(table["step"])))
    np.testing.assert_allclose(table["value"], table["step"] / 7, rtol=1e-14)


def test_a_speed_that_is_not_known_is_an_empty_field(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with LogWriter.create(path) as log:
        log.append(row(0) | {"ns_per_day": float("nan")})
        log.append(row(1) | {"ns_per_day": 12.3456789})
    whole = path.read_bytes()
    first, second = (line.split(",")[-1] for line in whole.decode("ascii").splitlines()[1:])
    assert (first, second) == ("", "12.35")
    np.testing.assert_array_equal(read_log(path)["ns_per_day"], [np.nan, 12.35])
    with LogWriter.resume(path, 0) as log:
        log.append(row(1) | {"ns_per_day": 12.3456789})
    assert path.read_bytes() == whole


def test_no_other_field_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,time_ps,ns_per_day\n0,,1\n", encoding="ascii")
    with pytest.raises(FileError, match="is damaged"):
        read_log(tmp_path / "log.csv")
