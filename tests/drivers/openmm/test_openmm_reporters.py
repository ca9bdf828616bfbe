"""Every file that OpenMM's reporters write, read back."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import pytest
from openmm import app, unit
from openmm.app.internal.xtc_utils import read_xtc
from openmm_water import EDGE, langevin, masses, positions, shown, simulation, topology, verlet

from mdgraph.drivers.openmm import Simulation


def fortran_records(path: Path) -> list[bytes]:
    content, found, place = path.read_bytes(), [], 0
    while place < len(content):
        (size,) = struct.unpack_from("<i", content, place)
        found.append(content[place + 4 : place + 4 + size])
        assert struct.unpack_from("<i", content, place + 4 + size) == (size,)
        place += size + 8
    return found


def read_dcd(path: Path) -> np.ndarray:
    """(frames, atoms, 3) A; the header says as many."""
    header, _, count, *frames = fortran_records(path)
    atoms = struct.unpack("<i", count)[0]
    assert struct.unpack_from("<i", header, 4)[0] == len(frames) // 4
    axes = [np.frombuffer(one, "<f4") for n, one in enumerate(frames) if n % 4]
    return np.stack(axes).reshape(-1, 3, atoms).swapaxes(1, 2)


def read_frames(path: Path) -> np.ndarray:
    """(frames, atoms, 3) A."""
    if path.suffix == ".dcd":
        return read_dcd(path)
    if path.suffix == ".xtc":
        coordinates = read_xtc(str(path).encode())[0]
        return np.moveaxis(coordinates, -1, 0) * 10.0
    file = app.PDBFile(str(path)) if path.suffix == ".pdb" else app.PDBxFile(str(path))
    models = range(file.getNumFrames())
    return np.array([file.getPositions(asNumpy=True, frame=n)._value * 10.0 for n in models])


class Kept:
    """Positions as the Context showed them, wrapped or not."""

    def __init__(self, interval: int, periodic: bool) -> None:
        self.interval, self.periodic = interval, periodic
        self.frames: list[np.ndarray] = []

    def describeNextReport(self, made: Any) -> dict[str, Any]:  # noqa: N802
        steps = self.interval - made.currentStep % self.interval
        return {"steps": steps, "periodic": self.periodic, "include": ["positions"]}

    def report(self, made: Any, state: Any) -> None:
        self.frames.append(state.getPositions(asNumpy=True)._value * 10.0)


REPORTERS = {
    ".dcd": app.DCDReporter,
    ".xtc": app.XTCReporter,
    ".pdb": app.PDBReporter,
    ".cif": app.PDBxReporter,
}


@pytest.mark.parametrize("suffix", REPORTERS)
@pytest.mark.parametrize("options", [{}, {"enforcePeriodicBox": False, "atomSubset": [3, 4, 5]}])
def test_trajectories_are_read_back(
    tiny_potential: Path, tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    path = tmp_path / f"run{suffix}"
    made = simulation(tiny_potential, langevin())
    kept = Kept(5, options.get("enforcePeriodicBox", True))
    made.reporters += [REPORTERS[suffix](str(path), 5, **options), kept]
    made.step(15)
    made.reporters.clear()  # closes the file
    frames = read_frames(path)
    expected = np.array(kept.frames)[:, options.get("atomSubset", slice(None))]
    assert frames.shape == expected.shape
    assert len(frames) == 3
    np.testing.assert_allclose(frames, expected, atol=6e-3)  # XTC keeps 0.01 A
    assert np.abs(frames[2] - frames[0]).max() > 0.02


@pytest.mark.parametrize("suffix", [".dcd", ".xtc"])
def test_trajectories_are_appended(tiny_potential: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    for append in (False, True):
        made = simulation(tiny_potential, verlet())
        if append:
            made.loadCheckpoint(str(tmp_path / "run.chk"))
        made.reporters.append(REPORTERS[suffix](str(path), 5, append=append))
        made.reporters.append(app.CheckpointReporter(str(tmp_path / "run.chk"), 10))
        made.step(10)
        del made
    straight = simulation(tiny_potential, verlet())
    kept = Kept(5, True)
    straight.reporters.append(kept)
    straight.step(20)
    np.testing.assert_allclose(read_frames(path), kept.frames, atol=6e-3)


def test_the_log_has_all_columns_of_openmm(tiny_potential: Path) -> None:
    text = io.StringIO()
    made = simulation(tiny_potential, langevin())
    columns = {
        "step": "Step",
        "time": "Time (ps)",
        "potentialEnergy": "Potential Energy (kJ/mole)",
        "kineticEnergy": "Kinetic Energy (kJ/mole)",
        "totalEnergy": "Total Energy (kJ/mole)",
        "temperature": "Temperature (K)",
        "volume": "Box Volume (nm^3)",
        "density": "Density (g/mL)",
        "progress": "Progress (%)",
        "remainingTime": "Time Remaining",
        "speed": "Speed (ns/day)",
        "elapsedTime": "Elapsed Time (s)",
    }
    asked = dict.fromkeys(columns, True)
    made.reporters.append(app.StateDataReporter(text, 10, totalSteps=30, separator=";", **asked))
    made.step(30)
    names, *rows = [line.split(";") for line in text.getvalue().splitlines()]
    assert {name.strip('#"') for name in names} == set(columns.values())
    last = dict(zip([name.strip('#"') for name in names], rows[-1], strict=True))
    assert len(rows) == 3
    assert last["Step"] == "30"
    assert last["Progress (%)"] == "100.0%"
    state = shown(made, energy=True)
    kinetic, potential = state.getKineticEnergy()._value, state.getPotentialEnergy()._value
    assert float(last["Total Energy (kJ/mole)"]) == pytest.approx(kinetic + potential)
    assert float(last["Time (ps)"]) == pytest.approx(0.015)
    assert float(last["Temperature (K)"]) == pytest.approx(2 * kinetic / (36 * 8.31446262e-3))
    assert float(last["Box Volume (nm^3)"]) == pytest.approx((0.1 * EDGE) ** 3)
    assert float(last["Density (g/mL)"]) == pytest.approx(sum(masses()) / 0.602214076 / EDGE**3)


def test_states_and_checkpoints_are_reported(tiny_potential: Path, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("run.chk", "run.xml")]
    made = simulation(tiny_potential, verlet())
    for path in paths:
        made.reporters.append(app.CheckpointReporter(path, 5, writeState=path.endswith("xml")))
    made.step(5)
    wanted = shown(made, positions=True).getPositions(asNumpy=True)._value
    for path, load in zip(paths, ("loadCheckpoint", "loadState"), strict=True):
        other = simulation(tiny_potential, verlet(), start=False)
        getattr(other, load)(path)
        assert other.currentStep == 5
        found = shown(other, positions=True).getPositions(asNumpy=True)._value
        np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_run_for_clock_time_writes_a_checkpoint(tiny_potential: Path, tmp_path: Path) -> None:
    made = simulation(tiny_potential, verlet())
    made.step(1)
    path = str(tmp_path / "run.chk")
    made.runForClockTime(0.2 * unit.seconds, checkpointFile=path)
    steps = made.currentStep
    assert steps > 10
    other = simulation(tiny_potential, verlet(), start=False)
    other.loadCheckpoint(path)
    assert other.currentStep == steps


def crossing(potential: Path, **options: Any) -> Simulation:
    """Molecules that move through a face of the box, one of them torn at the start."""
    made = simulation(potential, verlet(), **options)
    start = positions() + [EDGE - 1.6, 0.0, 0.0]
    start[1, 0] -= EDGE
    made.context.setPositions(start * unit.angstrom)
    made.context.setVelocities(np.full((12, 3), [3.0, 0.0, 0.0]))
    return made


def test_molecules_are_written_whole(tiny_potential: Path) -> None:
    """And within the box by their centres."""
    made = crossing(tiny_potential)
    wrapped, free = Kept(10, True), Kept(10, False)
    made.reporters += [wrapped, free]
    made.step(60)
    for frames in (wrapped.frames, free.frames):
        molecules = np.array(frames).reshape(-1, 4, 3, 3)
        bonds = np.linalg.norm(molecules[:, :, 1:] - molecules[:, :, :1], axis=-1)
        assert bonds.max() < 0.4 * EDGE
    centres = np.array(wrapped.frames).reshape(-1, 4, 3, 3).mean(2)
    assert centres.min() >= 0.0
    assert centres.max() < EDGE
    assert np.ptp(centres[:, 0, 0]) > 0.5 * EDGE
    assert np.ptp(np.array(free.frames)[:, 0, 0]) < 2.0


def test_without_bonds_atoms_are_wrapped_one_by_one(
    tiny_potential: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = crossing(tiny_potential, topology=topology(bonds=False))
    assert "each atom is wrapped by itself" in caplog.text
    made.step(40)
    found = shown(made, positions=True, enforcePeriodicBox=True).getPositions(asNumpy=True)._value
    assert found.min() >= 0.0
    assert found.max() < 0.1 * EDGE


def test_a_molecule_without_a_box_is_written(tiny_potential: Path, tmp_path: Path) -> None:
    made = simulation(tiny_potential, verlet(), topology=topology(1, box=None), start=False)
    made.context.setPositions(positions(1) * unit.angstrom)
    path = tmp_path / "run.pdb"
    made.reporters.append(app.PDBReporter(str(path), 5))
    made.step(10)
    made.reporters.clear()
    file = app.PDBFile(str(path))
    assert file.getNumFrames() == 2
    assert file.topology.getPeriodicBoxVectors() is None
    assert isinstance(made.context, openmm.Context)
    assert not made.engine.state.pbc.any()
