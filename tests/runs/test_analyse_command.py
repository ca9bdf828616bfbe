"""`mdgraph analyse`: the numbers of a run's own observables, of MDAnalysis and ASE; refusals."""

import csv
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet

from mdgraph.analysis.molecules import superposition_rmsd
from mdgraph.analysis.series import independent_samples
from mdgraph.io.formats import Frame, FrameContents, create_trajectory, read_trajectory
from mdgraph.io.trajectories import WHOLE
from mdgraph.system import System

Command = Callable[..., Any]


@pytest.fixture
def analyse(mdgraph_command: Command, tmp_path: Path) -> Command:
    """Analyses a run into a new folder, and returns this."""
    folders = (tmp_path / f"analysis-{number}" for number in range(20))

    def run(*words: object) -> Path:
        folder = next(folders)
        done = mdgraph_command("analyse", *words, "--out", folder)
        assert done.status == 0, done.err
        return folder

    return run


@pytest.fixture(scope="module")
def trajectory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes frames as a trajectory, 2 fs and 4 steps apart."""

    def write(
        system: System,
        positions: Iterator[np.ndarray] | np.ndarray,
        velocities: np.ndarray | None = None,
        *,
        interval: float = 2.0,
        contents: FrameContents = WHOLE,
        energies: np.ndarray | None = None,
    ) -> Path:
        path = tmp_path_factory.mktemp("frames") / "trajectory.h5md"
        nothing = float("nan")
        with create_trajectory(path, system, contents) as writer:
            for number, places in enumerate(positions):
                writer.append(
                    Frame(
                        step=4 * number,
                        time_fs=interval * number,
                        positions=places,
                        velocities=None if velocities is None else velocities[number],
                        forces=np.zeros(places.shape),
                        energy=-1.0 - number % 2 if energies is None else energies[number],
                        kinetic_energy=nothing,
                        temperature=nothing,
                        cell=system.cell,
                    )
                )
        return path

    return write


POSITIONS = FrameContents(("positions",))
CELL = np.array([[9.0, 0.0, 0.0], [1.0, 10.0, 0.0], [0.5, -1.0, 11.0]])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(path: Path, name: str, **chosen: str) -> np.ndarray:
    wanted = [row for row in rows(path) if all(row[key] == chosen[key] for key in chosen)]
    return np.array([float(row[name]) for row in wanted])


@pytest.fixture(scope="module")
def walk(trajectory: Callable[..., Path]) -> tuple[Path, np.ndarray, np.ndarray]:
    """A random walk of neon and helium without drift; its path, numbers and positions."""
    generator = np.random.default_rng(3)
    numbers = np.array([10, 2] * 20)
    steps = generator.normal(scale=0.08, size=(120, 40, 3))
    masses = np.where(numbers == 10, 20.2, 4.0)[:, None]
    steps -= (masses * steps).sum(1, keepdims=True) / masses.sum()
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)[:40]
    positions = (grid / 4.0) @ CELL + steps.cumsum(0)
    system = System(numbers, positions[0], CELL, True, masses=masses[:, 0])
    return trajectory(system, positions, contents=POSITIONS), numbers, positions


def test_the_numbers_of_the_run_itself(
    mdgraph_command: Command,
    analyse: Command,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    words = ["--potential", tiny_potential, "--evaluator", "reference", "--device", "cpu"]
    words += ["--ensemble", "nvt-bussi", "--steps", 80, "--trajectory-interval", 2]
    words += ["--observe", "averages:2,rdf:2,msd:2,vacf:2", "--no-check"]
    done = mdgraph_command("md", water_file, *words, "--out", run)
    assert done.status == 0, done.err
    options = ["--first", 1, "--window", 40, "--spacing", 10]  # a run records no start
    found = analyse(run, *options, "--rdf-range-A", 3.0, "--rdf-bins", 100)
    # Bin by bin and lag by lag the same, up to the lag of the last frame.
    for word in ("rdf", "msd", "vacf"):
        expected = (run / f"{word}.csv").read_text()
        assert (found / f"{word}.csv").read_text() == expected
    expected = {row["quantity"]: row for row in rows(run / "averages.csv")}
    averages = [*rows(found / "energies.csv"), *rows(found / "density.csv")]
    assert len(averages) == 7
    for row in averages:
        for name in ("mean", "error", "deviation", "block"):
            value = float(expected[row["quantity"]][name])
            assert float(row[name]) == pytest.approx(value, rel=1e-9, abs=1e-9)
    # Of some atoms: by the centre of mass of all.
    oxygens = analyse(run, *options, "--select", "element O", "--only", "msd,vacf")
    for word in ("msd", "vacf"):
        part = [row for row in rows(run / f"{word}.csv") if row["element"] == "O"]
        assert rows(oxygens / f"{word}.csv") == part


def test_distributions_are_those_of_mdanalysis(
    walk: tuple[Path, np.ndarray, np.ndarray], analyse: Command
) -> None:
    path, numbers, positions = walk
    mdanalysis = pytest.importorskip("MDAnalysis")
    from MDAnalysis.analysis.msd import EinsteinMSD
    from MDAnalysis.analysis.rdf import InterRDF

    found = analyse(path, "--rdf-range-A", 4.0, "--rdf-bins", 40, "--window", 60, "--spacing", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mdanalysis.Universe.empty(len(numbers), trajectory=True)
        lengths = np.linalg.norm(CELL, axis=1)
        angles = [
            np.degrees(np.arccos(CELL[i] @ CELL[j] / lengths[i] / lengths[j]))
            for i, j in ((1, 2), (0, 2), (0, 1))
        ]
        box = np.array([*lengths, *angles], dtype=np.float32)
        boxes = np.tile(box, (len(positions), 1))
        universe.load_new(positions.astype(np.float32), dimensions=boxes)
        neon, helium = (universe.atoms[numbers == number] for number in (10, 2))

        unlike = InterRDF(neon, helium, nbins=40, range=(0.0, 4.0)).run()
        like = InterRDF(neon, neon, nbins=40, range=(0.0, 4.0), exclusion_block=(1, 1)).run()
        displacement = EinsteinMSD(neon, msd_type="xyz", fft=False).run()
    for pair, other in (("He-Ne", unlike), ("Ne-Ne", like)):
        own = column(found / "rdf.csv", "g", pair=pair)
        # Distances in float32 move a few of 100,000 pairs to the next bin.
        np.testing.assert_allclose(own, other.results.rdf, atol=2e-3 * own.max())
    own = column(found / "msd.csv", "msd_A2", element="Ne")
    np.testing.assert_allclose(own, displacement.results.timeseries[:60], rtol=1e-5, atol=1e-6)


def test_shapes_are_those_of_ase_and_mdanalysis(
    trajectory: Callable[..., Path], analyse: Command
) -> None:
    rms = pytest.importorskip("MDAnalysis.analysis.rms")
    generator = np.random.default_rng(5)
    atoms = molecule("CH3CH2OH", cell=CELL, pbc=True)
    start = atoms.positions + [8.5, 9.5, 0.2]  # through three faces
    rotations = [np.linalg.qr(generator.normal(size=(3, 3)))[0] for _ in range(8)]
    rotations = [rotation * np.linalg.det(rotation) for rotation in rotations]
    centre = start.mean(0)
    shaken = [start] + [
        (start - centre + generator.normal(scale=0.05, size=start.shape)) @ rotation + centre
        for rotation in rotations
    ]
    inverse = np.linalg.inv(CELL)
    wrapped = [places - np.floor(places @ inverse) @ CELL for places in shaken]
    system = System(atoms.numbers, wrapped[0], CELL, True)
    path = trajectory(system, np.array(wrapped), contents=POSITIONS)
    found = analyse(path)
    numbers = json.loads((found / "analysis.json").read_text())
    assert set(numbers["results"]) == {"energies", "density", "rdf", "bonds", "angles", "rmsd"}
    assert "positions were wrapped" in numbers["left_out"]["msd"]
    assert "no velocities" in numbers["left_out"]["spectrum"]
    expected = [rms.rmsd(places, shaken[0], superposition=True) for places in shaken]
    np.testing.assert_allclose(column(found / "rmsd.csv", "rmsd_C2H6O_A"), expected, atol=1e-6)
    frames = [Atoms(atoms.numbers, places, cell=CELL, pbc=True) for places in wrapped]
    bonded = [
        (first, second)
        for first in range(9)
        for second in range(first)
        if frames[0].get_distance(first, second, mic=True)
        < 1.25 * sum({6: 0.76, 8: 0.66, 1: 0.31}[atoms.numbers[i]] for i in (first, second))
    ]
    assert len(bonded) == 8
    lengths = [
        frame.get_distance(first, second, mic=True)
        for frame in frames
        for first, second in bonded
        if sorted(atoms.numbers[[first, second]]) == [1, 6]
    ]
    own = numbers["results"]["bonds"]["H-C"]
    assert own["number"] == 5
    assert own["mean_A"] == pytest.approx(np.mean(lengths), abs=1e-9)
    assert own["deviation_A"] == pytest.approx(np.std(lengths), abs=1e-9)
    (oxygen,) = np.flatnonzero(atoms.numbers == 8)
    ends = [sum(pair) - oxygen for pair in bonded if oxygen in pair]
    angles = [frame.get_angle(ends[0], oxygen, ends[1], mic=True) for frame in frames]
    own = numbers["results"]["angles"]["H-O-C"]
    assert own["mean_degrees"] == pytest.approx(np.mean(angles), abs=1e-6)
    heavy = analyse(path, "--select", "not element H", "--only", "bonds,angles")
    numbers = json.loads((heavy / "analysis.json").read_text())["results"]
    assert {*numbers["bonds"]} == {"C-C", "C-O"}
    assert {*numbers["angles"]} == {"C-C-O"}


def test_a_reflection_is_no_rotation() -> None:
    generator = np.random.default_rng(1)
    shape = generator.normal(size=(1, 6, 3))
    assert superposition_rmsd(shape[:, :, [1, 2, 0]] + 3.0, shape) == pytest.approx(0.0, abs=1e-12)
    assert superposition_rmsd(-shape, shape) > 0.1


def test_a_spectrum_has_the_frequency_of_an_oscillator(
    trajectory: Callable[..., Path], analyse: Command, mdgraph_command: Command, tmp_path: Path
) -> None:
    wavenumber, light = 1500.0, 2.99792458e-5
    phase = 2.0 * np.pi * wavenumber * light * 2.0 * np.arange(800)
    amplitude = np.array([[0.02, 0.0, 0.0], [-0.02, 0.0, 0.0]])
    base = np.array([[0.0, 0.0, 0.0], [1.1, 0.0, 0.0]])
    positions = base + np.sin(phase)[:, None, None] * amplitude
    velocities = np.cos(phase)[:, None, None] * amplitude * (phase[1] / 2.0)
    path = trajectory(System([7, 7], base), positions, velocities)
    found = analyse(path, "--window", 400, "--spacing", 8, "--only", "spectrum")
    x = column(found / "spectrum.csv", "wavenumber_per_cm")
    total = column(found / "spectrum.csv", "total_cm")
    numbers = json.loads((found / "analysis.json").read_text())["results"]["spectrum"]
    assert x[total.argmax()] == pytest.approx(wavenumber, abs=6.0)
    assert numbers["highest_per_cm"] == pytest.approx(x[total.argmax()])
    assert np.trapezoid(total, x) == pytest.approx(1.0)
    # The width at half height of a line is the resolution.
    above = x[total > 0.5 * total.max()]
    assert above[-1] - above[0] == pytest.approx(numbers["resolution_per_cm"], rel=0.2)
    np.testing.assert_array_equal(column(found / "spectrum.csv", "N_cm"), total)
    done = mdgraph_command(
        *("analyse", path, "--stride", 3, "--only", "spectrum", "--out", tmp_path / "no")
    )
    assert done.status == 1
    assert "No spectrum: there are 6 fs between frames, and a spectrum needs at most 4" in done.err
    assert not (tmp_path / "no").exists()


def test_diffusion_of_a_random_walk(trajectory: Callable[..., Path], analyse: Command) -> None:
    generator = np.random.default_rng(9)
    atoms, frames, scale = 60, 400, 0.03
    steps = generator.normal(scale=scale, size=(frames, atoms, 3))
    steps -= steps.mean(1, keepdims=True)
    system = System([18] * atoms, generator.uniform(0, 30, (atoms, 3)), np.eye(3) * 30.0, True)
    path = trajectory(system, system.positions + steps.cumsum(0), contents=POSITIONS)
    found = analyse(path, "--only", "msd")
    (row,) = rows(found / "diffusion.csv")
    value, error = (float(row[f"{name}_1e-5_cm2_per_s"]) for name in ("diffusion", "error"))
    exact = 1e4 * scale**2 * (1.0 - 1.0 / atoms) / (2.0 * 2.0)
    assert value == pytest.approx(exact, abs=4.0 * error)
    assert 0.002 * exact < error < 0.1 * exact
    assert float(row["exponent"]) == pytest.approx(1.0, abs=0.1)


def test_a_short_run_is_marked(
    trajectory: Callable[..., Path], tmp_path: Path, mdgraph_command: Command
) -> None:
    """Energies of an autoregressive series, whose number of independent samples is known."""
    generator = np.random.default_rng(5)
    positions = np.array([[0.0, 0.0, 0.0], [1.1, 0.0, 0.0]])
    system = System([7, 7], positions, np.eye(3) * 9.0, True)
    memory, count = 0.9, 800
    noise = generator.normal(size=count)
    for place in range(1, count):
        noise[place] += memory * noise[place - 1]
    still = np.tile(positions, (count, 1, 1))
    path = trajectory(system, still, np.ones_like(still), energies=noise)
    words = ["analyse", path, "--only", "energies,rdf,bonds,vacf", "--window", 50]

    def analysed(*more: object) -> tuple[dict[str, Any], str, str]:
        out = tmp_path / "analysis"
        done = mdgraph_command(*words, "--out", out, "--overwrite", *more)
        assert done.status == 0, done.err
        page = (out / "report.html").read_text()
        return json.loads((out / "analysis.json").read_text()), page, done.err

    numbers, page, warned = analysed()
    exact = count * (1.0 - memory) / (1.0 + memory)
    for word in ("energies", "rdf", "bonds"):
        assert numbers["independent_samples"][word] == pytest.approx(exact, rel=0.25)
    assert numbers["independent_samples"]["vacf"] == count / 50
    assert numbers["too_short"] == []
    assert "too short" not in page + warned
    numbers, page, warned = analysed("--last", 29)
    assert numbers["too_short"] == ["energies", "rdf", "vacf", "bonds"]
    assert "The run is too short for energies, rdf, vacf, bonds: it has fewer than 10" in warned
    assert page.count("<strong>The run is too short: it has about") == 4
    assert "about 1 independent samples of this, where 10 are few. Run 10 times longer." in page
    # Without energies the shape of the cell's content says it: here it moves as the noise does.
    moved = still.copy()
    moved[:, 0, 1] += 0.2 * noise
    path = trajectory(system, moved, np.ones_like(still), energies=np.full(count, np.nan))
    words = ["analyse", path, "--only", "rdf"]
    numbers, page, warned = analysed()
    assert numbers["independent_samples"]["rdf"] == pytest.approx(exact, rel=0.3)
    numbers, page, warned = analysed("--last", 29)
    assert numbers["too_short"] == ["rdf"]
    # Of a drift no two samples are independent, and of noise all are.
    assert independent_samples(np.arange(1000.0)) < 3.0
    assert independent_samples(generator.normal(size=1000)) == pytest.approx(1000.0, rel=0.15)


def test_files_of_ase(
    walk: tuple[Path, np.ndarray, np.ndarray],
    mdgraph_command: Command,
    analyse: Command,
    tmp_path: Path,
) -> None:
    words = ["--only", "energies,rdf,msd", "--rdf-range-A", 3.0]
    expected = analyse(walk[0], *words)
    copy = tmp_path / "copy.traj"
    assert mdgraph_command("trajectory", walk[0], copy).status == 0
    plain = tmp_path / "plain.traj"  # as ASE's own dynamics write, without times
    frames = ase.io.read(copy, ":")
    for frame in frames:
        frame.info.clear()
    ase.io.write(plain, frames)
    tables = ("energies", "energies_over_time", "rdf", "msd", "diffusion")
    for path, more in ((copy, []), (plain, ["--frame-interval-fs", 2.0])):
        found = analyse(path, *words, *more)
        for name in tables:
            own, other = (rows(folder / f"{name}.csv") for folder in (found, expected))
            assert len(own) == len(other) > 0
            for row, wanted in zip(own, other, strict=True):
                for key in row.keys() - {"every", "block"}:
                    if re.fullmatch(r"[-+.e\d]+", row[key]):
                        assert float(row[key]) == pytest.approx(float(wanted[key]), rel=1e-9)
    back = tmp_path / "back.h5md"
    done = mdgraph_command("trajectory", plain, back, "--frame-interval-fs", 2.0)
    assert "120 frames of 40 atoms, 0 to 0.238 ps" in done.out
    with read_trajectory(back) as trajectory:
        assert trajectory.steps.tolist() == list(range(120))
        np.testing.assert_array_equal(trajectory[-1].positions, walk[2][-1])
    damaged = tmp_path / "damaged.traj"
    damaged.write_bytes(plain.read_bytes()[:500])
    for words, sentence in (
        ([plain], "plain.traj says nothing of time; give the time between its frames"),
        ([copy, "--frame-interval-fs", 2.0], "copy.traj has times of its own; leave out"),
        ([walk[0], "--frame-interval-fs", 2.0], "which is for .traj"),
        ([plain, "--frame-interval-fs", 0.0], "--frame-interval-fs is 0; give a time above 0"),
        ([damaged], "damaged.traj as a trajectory of ASE"),
    ):
        done = mdgraph_command("analyse", *words, "--out", tmp_path / "no")
        assert done.status == 1, words
        assert sentence in done.err
        assert done.err.count("error") == 1


def test_velocities_and_stresses_of_ase(analyse: Command, tmp_path: Path) -> None:
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.calc = EMT()
    momenta = np.sqrt(atoms.get_masses() * 300.0 * units.kB)[:, None]
    atoms.set_momenta(momenta * np.random.default_rng(1).normal(size=(len(atoms), 3)))
    path = tmp_path / "emt.traj"
    with Trajectory(path, "w", atoms, properties=["energy", "forces", "stress"]) as file:
        dynamics = VelocityVerlet(atoms, 2.0 * units.fs)
        dynamics.attach(file.write, 2)
        dynamics.run(40)
    found = analyse(path, "--frame-interval-fs", 4, "--only", "energies,density,vacf")
    frames = ase.io.read(path, ":")
    table = found / "density_over_time.csv"
    expected = [-np.trace(frame.get_stress(False, include_ideal_gas=True)) / 3 for frame in frames]
    np.testing.assert_allclose(column(table, "pressure_bar"), np.array(expected) / units.bar)
    temperatures = [frame.get_temperature() for frame in frames]
    np.testing.assert_allclose(
        column(found / "energies_over_time.csv", "temperature_K"), temperatures
    )
    velocities = np.array([frame.get_velocities() for frame in frames]) * units.fs
    value = column(found / "vacf.csv", "vacf_A2_per_fs2", element="Cu")
    assert value[0] == pytest.approx(np.mean((velocities**2).sum(-1)), rel=0.2)
    assert json.loads((found / "analysis.json").read_text())["interval_fs"] == 4.0


def test_a_page_has_all_in_it(
    walk: tuple[Path, np.ndarray, np.ndarray], analyse: Command, drawn_pictures: None
) -> None:
    found = analyse(walk[0], "--stride", 2, "--select", "element Ne")
    page = (found / "report.html").read_text()
    assert "<title>Analysis of trajectory.h5md: Ne20, 0.236 ps</title>" in page
    assert {"selection", "element Ne"} <= set(re.findall("<td>(.*?)</td>", page))
    assert page.count("data:image/png;base64,") >= 3
    assert not re.search(r"(src|href)=['\"](?!data:|#)", page)
    numbers = json.loads((found / "analysis.json").read_text())
    assert numbers["frames"] == 60
    assert numbers["interval_fs"] == 4.0
    assert numbers["left_out"]["bonds"] == "there are no bonds"
    assert "<td>there are no bonds</td>" in page
    for name in ("rdf.csv", "msd.csv", "energies.csv", "energies_over_time.csv"):
        assert (found / name).read_text().count("\n") > 1
    with read_trajectory(walk[0]) as frames:
        energies = [frame.energy for frame in frames][::2]
    assert column(found / "energies_over_time.csv", "potential_energy_eV").tolist() == energies


@pytest.mark.parametrize("count", [4, 5, 6])
def test_the_fewest_frames_give_displacements(
    walk: tuple[Path, np.ndarray, np.ndarray], analyse: Command, count: int
) -> None:
    found = analyse(walk[0], "--only", "msd", "--last", count - 1)
    assert column(found / "msd.csv", "lag_fs").size >= 3


def test_wrong_input(
    walk: tuple[Path, np.ndarray, np.ndarray],
    trajectory: Callable[..., Path],
    mdgraph_command: Command,
    tmp_path: Path,
) -> None:
    path = walk[0]
    other = trajectory(System([2], np.zeros((1, 3))), np.zeros((2, 1, 3)), contents=POSITIONS)
    empty = trajectory(System([2], np.zeros((1, 3))), np.zeros((0, 1, 3)))
    lost = np.zeros((5, 1, 3))
    lost[2] = np.nan
    broken = trajectory(System([2], np.zeros((1, 3))), lost, contents=POSITIONS)
    out = tmp_path / "out"
    for words, sentence in (
        ([tmp_path / "nothing"], "nothing; give the folder of a run, or a trajectory"),
        ([empty], "holds no frames; give a trajectory with frames"),
        ([path, other], "has other atoms or periodic directions than"),
        ([path, "--select", "element Xe"], "'element Xe' selects none of the 40 atoms"),
        ([path, "--only", "rfd"], "--only is rfd; did you mean rdf?"),
        ([path, "--only", ","], "--only names nothing; choose from energies, density"),
        ([path, "--only", "spectrum"], "No spectrum: the frames have no velocities; save them"),
        ([path, "--only", "bonds"], "No bonds: there are no bonds."),
        ([other, "--only", "rdf"], "No rdf: there is no cell that is periodic in three"),
        ([other, "--only", "msd"], "No msd: 2 frames are too few; 4 are needed."),
        ([path, "--first", 500], "There is no frame 500"),
        ([path, "--out", "/dev/null/out"], "Cannot use /dev/null/out: a part of its path is not"),
        ([broken], "frame 2 has positions or a cell that are not finite"),
        ([path, "--window", 2, "--only", "msd"], "No msd: a window of 2 frames has no lag between"),
        ([path, "--rdf-bins", 10**8], "--rdf-bins: it should be less than or equal to 100000"),
        ([path, "--rdf-range-A", 500, "--only", "rdf"], "pairs; give at most"),
        ([path.with_suffix(".dcd")], "There is no"),
        (
            [path, "--window", 30, "--spacing", 7],
            "--window is 30 and no multiple of it; give",
        ),
        (
            [path, "--rdf-range-A", -1.0, "--only", "rdf"],
            "--rdf-range-A is -1; give a distance",
        ),
    ):
        done = mdgraph_command("analyse", "--out", out, *words)
        assert done.status == 1, words
        assert sentence in done.err
        assert done.err.count("error") == 1
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "run.dcd").write_bytes(b"CORD")
    refused = mdgraph_command("analyse", tmp_path / "run.dcd", "--out", out)
    assert "DCD and XTC are written and not read" in refused.err
    assert "give the folder of the run that it was written from (with --select 'el" in refused.err
    (tmp_path / "run.dcd").unlink()
    words = ["analyse", path, "--only", "rdf", "--out", out, "--last", 1]
    far = mdgraph_command(*words, "--rdf-range-A", 12)
    assert (far.status, "beyond half of the cell" in far.err) == (0, True)
    assert "beyond half" not in mdgraph_command(*words, "--overwrite").err
    words = ["analyse", path, "--only", "energies", "--out", out, "--overwrite"]
    assert mdgraph_command(*words).status == 0
    words = words[:-1]
    assert "There is no nosuch" in mdgraph_command("analyse", "nosuch", "--out", out).err
    assert "out holds an analysis already; replace it with" in mdgraph_command(*words).err
    assert mdgraph_command(*words, "--overwrite").status == 0
    (out / "analysis.json").unlink()
    refused = mdgraph_command(*words, "--overwrite")
    assert "out holds other files than an analysis" in refused.err
    assert [*tmp_path.iterdir()] == [out]
