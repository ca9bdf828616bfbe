"""Runs in every ensemble: what each word starts, writes, resumes and refuses."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from run_folders import content, folder_of

from mdgraph.engine import (
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
)
from mdgraph.ensembles import ENSEMBLES
from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.io.structures import read_system
from mdgraph.io.topology import write_pdb
from mdgraph.runs import md
from mdgraph.runs.config import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.md import resume, start
from mdgraph.selection import select_atoms, spans_text
from mdgraph.units import BAR

Make = Callable[..., MDConfig]

CHOICES: dict[str, dict[str, Any]] = {
    "langevin": {"friction_per_ps": 20.0},
    "nve": {},
    "nvt-bussi": {"tau_fs": 20.0},
    "nvt-nose-hoover": {},
    "npt": {"tau_p_fs": 50.0, "pressure_bar": "1:3000"},
    "npt, full cell": {"coupling": "full", "compressibility_per_bar": 1e-3},
    "npt, two axes": {"coupling": "z, x"},
    "npt, semiisotropic": {"coupling": "semiisotropic"},
    "npt-mtk": {"tau_p_fs": 50.0},
    "npt-mtk, fixed z": {"tau_p_fs": 50.0, "coupling": "semiisotropic-fixed-z"},
    "nve, restrained": {"restrain": "O", "stiffness_eV_per_A2": 5.0},
    "nvt-bussi, fixed": {"fix": [0, "3-4"]},
    "nvt-bussi, ramp": {"temperature_K": "100:500"},
    "langevin, no momentum": {"remove_momentum": 5, "hydrogen_mass_amu": 3.0},
}


@pytest.fixture
def configured(
    tmp_path: Path, tiny_potential: Path, water_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """A short run in a folder of its own, with some fields changed, and no picture."""
    monkeypatch.setattr(md, "draw_picture", lambda *arguments: None)

    def make(choice: str = "langevin", **fields: Any) -> MDConfig:
        short: dict[str, Any] = {
            "ensemble": choice.partition(",")[0],
            "structure": str(water_file),
            "potential": str(tiny_potential),
            "out": str(tmp_path / "run"),
            "steps": 20,
            "timestep_fs": 0.25,
            "trajectory_interval": 5,
            "log_interval": 5,
            "checkpoint_interval": 6,
            "seed": 4,
            "device": "cpu",
            "check": False,
        }
        return MDConfig(**(short | CHOICES.get(choice, {}) | fields))

    return make


def file_of(configuration: RunConfig) -> str:
    assert configuration.structure is not None
    return configuration.structure[0]


def frames_of(configuration: MDConfig) -> list[Any]:
    with read_trajectory(folder_of(configuration).trajectory("h5md")) as trajectory:
        return list(trajectory)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_resumes_to_the_same_bits(
    configured: Make, tmp_path: Path, choice: str
) -> None:
    whole = configured(choice, out=str(tmp_path / "whole"))
    start(whole)
    # A ramp belongs to the length that was asked for first.
    steps = {"ramp_steps": 20} if whole.ramped else {}
    parted = configured(choice, steps=8, **steps)
    start(parted)
    resume(Path(parted.out), {"steps": 13})
    resume(Path(parted.out), {"steps": 20})
    assert content(parted) == content(whole)
    ended = read_system(folder_of(parted).end)
    np.testing.assert_array_equal(ended.positions, frames_of(whole)[-1].positions)


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice.startswith("npt")])
def test_frames_and_rows_follow_the_cell(configured: Make, choice: str) -> None:
    configuration = configured(choice)
    start(configuration)
    frames, log = frames_of(configuration), read_log(folder_of(configuration).log)
    cells = np.array([frame.cell for frame in frames])
    assert (np.abs(cells[1:] - cells[0]).max(axis=(1, 2)) > 1e-6).all()
    if "axes" in choice:
        still = np.broadcast_to(cells[0, 1], (len(cells), 3))
        np.testing.assert_allclose(cells[:, 1], still, rtol=1e-14, atol=1e-14)
    volumes = np.abs(np.linalg.det(cells))
    np.testing.assert_allclose(log["volume_A3"], volumes, rtol=1e-12)
    amu = ase.io.read(file_of(configuration)).get_masses().sum()
    np.testing.assert_allclose(log["density_g_per_cm3"], 1.66053906660 * amu / volumes, rtol=1e-4)
    for frame, volume, bars in zip(frames, volumes, log["pressure_bar"], strict=True):
        expected = 2 * frame.kinetic_energy / (3 * volume) - np.trace(frame.stress) / 3
        np.testing.assert_allclose(bars, expected / BAR, rtol=1e-9)


@pytest.mark.parametrize(
    ("choice", "keeps"),
    [
        ("nve", True),
        ("langevin", True),
        ("nvt-bussi", True),
        ("nvt-nose-hoover", True),
        ("npt", False),
        ("npt-mtk", True),
    ],
)
def test_what_is_conserved_is_logged(configured: Make, choice: str, keeps: bool) -> None:
    configuration = configured(choice)
    start(configuration)
    log = read_log(folder_of(configuration).log)
    assert ("conserved_energy_eV" in log) == keeps
    if keeps:
        assert np.ptp(log["conserved_energy_eV"]) < 0.02
    if choice == "nve":
        np.testing.assert_allclose(log["conserved_energy_eV"], log["total_energy_eV"], rtol=1e-12)


def test_graphs_are_switched_by_a_word(tmp_path: Path) -> None:
    """YAML takes on and off for truth values."""
    file = tmp_path / "run.yaml"
    for word in ("on", "off", "auto"):
        file.write_text(f"graph: {word}\n")
        assert read_configuration(MDConfig, file).graph == word
    with pytest.raises(InputError, match="graph is never; it should be 'auto', 'on' or 'off'"):
        read_configuration(MDConfig, None, {"graph": "never"})


def test_a_molecule_has_no_pressure_in_its_log(configured: Make, tmp_path: Path) -> None:
    molecule = ase.io.read(file_of(configured()))[:3]
    molecule.pbc = False
    ase.io.write(tmp_path / "molecule.extxyz", molecule)
    configuration = configured(structure=str(tmp_path / "molecule.extxyz"), steps=0)
    start(configuration)
    assert not {"pressure_bar", "volume_A3"} & set(read_log(folder_of(configuration).log))


def test_defaults_are_those_of_the_integrators() -> None:
    kinds = {
        "nvt-langevin": LangevinMiddle,
        "nvt-bussi": StochasticVelocityRescaling,
        "nvt-nose-hoover": NoseHooverChains,
        "npt": StochasticCellRescaling,
        "npt-mtk": MartynaTobiasKlein,
    }
    names = {
        "friction_per_ps": "friction",
        "tau_fs": "tau",
        "tau_p_fs": "tau_p",
        "compressibility_per_bar": "compressibility",
        "coupling": "cell_dof",
    }
    assert set(kinds) == set(ENSEMBLES) - {"nve"}
    for word, kind in kinds.items():
        own = inspect.signature(kind).parameters
        given = {
            names[name]: value for name, value in ENSEMBLES[word].defaults.items() if name in names
        }
        if "compressibility" in given:
            given["compressibility"] /= BAR
        left_open = (inspect.Parameter.empty, None)
        found = {name: one.default for name, one in own.items() if one.default not in left_open}
        assert found == given


def test_run_json_records_what_was_not_said(configured: Make) -> None:
    configuration = configured("npt", pressure_bar=None, restrain="O")
    start(configuration)
    record = folder_of(configuration).read_record()
    kept = record["configuration"]
    assert (kept["ensemble"], kept["pressure_bar"], kept["coupling"]) == ("npt", 1.0, "isotropic")
    assert (kept["tau_fs"], kept["friction_per_ps"]) == (100.0, None)
    assert kept["stiffness_eV_per_A2"] == 1.0
    chosen = record["chosen"]["integrator"]
    assert chosen["integrator"] == "stochastic cell rescaling"
    assert chosen["pressure_eV_per_A3"] == pytest.approx(6.2415e-7, rel=1e-4)


class TestRamps:
    def test_heat_and_rest_once_they_are_over(self, configured: Make) -> None:
        # A bath this tight draws the kinetic energy anew in every step.
        ramp = {"temperature_K": "100:1500", "tau_fs": 0.01, "timestep_fs": 0.02}
        configuration = configured("nvt-bussi", steps=200, log_interval=1, **ramp)
        start(configuration)
        kelvin = read_log(folder_of(configuration).log)["temperature_K"]
        width = np.sqrt(2 / 15 / 50)  # of a mean over 50 of N_f = 15
        for part, mean in ((kelvin[1:51], 275.0), (kelvin[151:201], 1325.0)):
            assert abs(part.mean() / mean - 1.0) < 4 * width
        resume(Path(configuration.out), {"steps": 300})
        kelvin = read_log(folder_of(configuration).log)["temperature_K"]
        assert abs(kelvin[201:].mean() / 1500.0 - 1.0) < 4 * width
        assert folder_of(configuration).read_record()["configuration"]["ramp_steps"] == 200

    def test_in_a_file_are_no_numbers_of_base_60(self, tmp_path: Path) -> None:
        (tmp_path / "run.yaml").write_text("temperature_K: 300:50\n")
        assert read_configuration(MDConfig, tmp_path / "run.yaml").temperature_K == "300:50"


def test_fixed_atoms_stay_and_do_not_count(configured: Make) -> None:
    configuration = configured(fix="O", steps=20)
    start(configuration)
    frames = frames_of(configuration)
    for frame in frames[1:]:
        moved = np.abs(frame.positions - frames[0].positions).max(axis=1)
        np.testing.assert_array_equal(moved[[0, 3]], 0.0)
        assert (moved[[1, 2, 4, 5]] > 1e-3).all()
    degrees = folder_of(configuration).read_record()["chosen"]["degrees_of_freedom"]
    assert degrees == "3 x (6 - 2 fixed) = 12"


def test_springs_hold_atoms_near_where_they_began(configured: Make, tmp_path: Path) -> None:
    def farthest(name: str, **fields: Any) -> float:
        configuration = configured("langevin", steps=100, out=str(tmp_path / name), **fields)
        start(configuration)
        frames = frames_of(configuration)
        return max(np.abs(frame.positions - frames[0].positions)[0].max() for frame in frames)

    held = farthest("held", restrain="0", stiffness_eV_per_A2=500.0)
    assert held < 0.05 < farthest("loose")


@pytest.mark.parametrize("minimize", [False, True])
def test_atoms_are_selected_once_at_the_start(
    configured: Make, water_file: Path, tmp_path: Path, minimize: bool
) -> None:
    pdb = tmp_path / "water.pdb"
    write_pdb(pdb, read_system(water_file))
    near = {"fix": "name O and resname HOH", "restrain": "around 1.2 (index 0)"}
    configuration = configured(structure=str(pdb), minimize=minimize, **near)
    start(configuration)
    described = folder_of(configuration).read_record()["structure"]
    assert (described["fix"], described["restrain"]) == ("0,3", "1-2")
    # The initial structure in the folder has no names, and the atoms have moved.
    resume(Path(configuration.out), {"steps": 40})
    frames = frames_of(configuration)
    assert len(frames) == 9
    for frame in frames:
        np.testing.assert_array_equal(frame.positions[[0, 3]], frames[0].positions[[0, 3]])


def test_minimising_and_dynamics_fix_the_same_atoms(configured: Make, water_file: Path) -> None:
    heights = read_system(water_file).positions[:, 2]
    text = f"prop z < {np.sort(heights)[2] + 1e-3:.6f}"
    configuration = configured(fix=text, minimize=True)
    start(configuration)
    lowest = sorted(np.argsort(heights)[:3].tolist())
    described = folder_of(configuration).read_record()["structure"]
    assert described["fix"] == spans_text(lowest)
    first, *_, last = frames_of(configuration)
    before = read_system(water_file).positions
    np.testing.assert_array_equal(first.positions[lowest], before[lowest])
    np.testing.assert_array_equal(last.positions[lowest], before[lowest])
    assert (np.abs(first.positions - before).max(axis=1) > 1e-4).sum() == 3


def test_momentum_is_removed_when_asked(configured: Make) -> None:
    configuration = configured("langevin, no momentum")
    start(configuration)
    with read_trajectory(folder_of(configuration).trajectory("h5md")) as trajectory:
        masses, frames = trajectory.masses, list(trajectory)
    np.testing.assert_array_equal(masses[[1, 2, 4, 5]], 3.0)
    assert masses.sum() == pytest.approx(ase.io.read(file_of(configuration)).get_masses().sum())
    for frame in frames[1:]:
        momenta = masses[:, None] * frame.velocities
        assert np.abs(momenta.sum(0)).max() < 1e-12 < np.abs(momenta).max()


class TestMinimising:
    def configured(self, source: MDConfig, **fields: Any) -> MinimizeConfig:
        shared = {"structure", "potential", "out", "device"}
        own = {"trajectory_interval": 5, "log_interval": 5, "checkpoint_interval": 6}
        return MinimizeConfig(**(source.model_dump(include=shared) | own | fields))

    def test_ends_at_rest_in_a_minimum(self, configured: Make) -> None:
        configuration = self.configured(configured(), force_tolerance_eV_per_A=0.02, steps=2000)
        outcome = start(configuration)
        assert outcome.converged
        assert outcome.steps < outcome.total_steps
        with read_trajectory(folder_of(configuration).end) as trajectory:
            last = trajectory[0]
        assert np.linalg.norm(last.forces, axis=1).max() < 0.02
        assert not last.velocities.any()
        log = read_log(folder_of(configuration).log)
        assert last.energy < log["potential_energy_eV"][0] - 0.1
        again = resume(Path(configuration.out), {"steps": 3000})
        assert (again.steps, again.converged) == (outcome.steps, True)

    def test_arrives_at_the_same_step_however_it_is_cut(
        self, configured: Make, tmp_path: Path
    ) -> None:
        whole = self.configured(configured(out=str(tmp_path / "whole")), steps=2000, chunk=10)
        last = start(whole).steps
        parted = self.configured(configured(), steps=last - 1, chunk=10)
        start(parted)
        with read_trajectory(folder_of(parted).end) as trajectory:
            assert np.linalg.norm(trajectory[0].forces, axis=1).max() < 0.05  # at rest already
        assert resume(Path(parted.out), {"steps": 2000}).steps == last
        assert content(parted) == content(whole)

    @pytest.mark.parametrize("coupling", [None, "isotropic", "full", "x"])
    def test_resumes_to_the_same_bits(
        self, configured: Make, tmp_path: Path, coupling: str | None
    ) -> None:
        whole = self.configured(
            configured(out=str(tmp_path / "whole")), steps=25, coupling=coupling
        )
        start(whole)
        parted = self.configured(configured(), steps=7, coupling=coupling)
        start(parted)
        resume(Path(parted.out), {"steps": 25})
        assert content(parted) == content(whole)
        changed = read_system(folder_of(whole).end).cell - read_system(file_of(whole)).cell
        assert (np.abs(changed).max() > 1e-3) == (coupling is not None)

    def test_is_not_resumed_as_dynamics(self, configured: Make) -> None:
        configuration = self.configured(configured(), steps=5)
        start(configuration)
        with pytest.raises(InputError, match="resume it with mdgraph minimise"):
            resume(Path(configuration.out), {}, MDConfig)

    def test_from_the_command_line(
        self, mdgraph_command: Callable[..., Any], configured: Make
    ) -> None:
        made = configured()
        options = ["--potential", made.potential, "--out", made.out, "--steps", 900]
        done = mdgraph_command("minimise", file_of(made), *options)
        assert done.status == 0, done.err
        assert "A minimum is reached after" in done.out
        drawn = mdgraph_command(
            "md", f"{made.out}/end.extxyz", *options[:2], "--out", f"{made.out}-md", "--steps", 0
        )
        assert drawn.status == 0, drawn.err
        assert read_log(Path(f"{made.out}-md") / "log.csv")["temperature_K"][0] > 30.0


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ("--ensemble nvt-busi", "--ensemble is nvt-busi; did you mean nvt-bussi?"),
            ("--ensemble npt-mkt", "--ensemble is npt-mkt; did you mean npt-mtk?"),
            ("--ensemble quantum", "is quantum; choose nve, nvt-langevin, nvt-bussi, nvt-nose"),
            (
                "--ensemble nvt-bussi --pressure-bar 1",
                "nvt-bussi has no --pressure-bar; leave it out, or choose npt or npt-mtk.",
            ),
            ("--ensemble nve --friction-per-ps 1", "nve has no --friction-per-ps; leave it out"),
            (
                "--ensemble npt-mtk --coupling full",
                "varies a cell in other ways than 'full'; choose isotropic, semiisotropic or semi",
            ),
            ("--ensemble npt --fix O", "Fixed atoms would not follow a cell that varies; restrain"),
            (
                "--ensemble npt --coupling w",
                "--coupling is w; it should be isotropic, semiisotropic, semiisotropic-fixed-z,",
            ),
            ("--ensemble nve --temperature-K 1:2", "nve has no bath whose temperature could"),
            ("--temperature-K 1:2:3", "--temperature-K is 1:2:3; it should be a valid number, or"),
            ("--temperature-K=-5:10", "--temperature-K is -5:10; it should be greater than or"),
            ("--ramp-steps 5", "--ramp-steps needs a ramp; give --temperature-K"),
            ("--stiffness-eV-per-A2 5", "--stiffness-eV-per-A2 belongs to atoms; name them with"),
            ("--ensemble npt-mtk --temperature-K 0", "cannot be at 0 K; give a temperature above"),
            ("--fix 6", "There are no atoms 6; atoms are counted from 0 to 5."),
            ("--fix 0,Xx", "'Xx' names no atoms; give indices from 0 on"),
            ("--restrain C", "The structure has no C to choose"),
            ("--fix element", "--fix is element; The selection ends after 'element'; write what"),
            ("--fix (index)", "--fix is (index); The ')' at character 7 of the selection comes"),
            ("--restrain index=9", "--restrain is index=9; Word 1 of the selection, 'index=9',"),
            ("--graph on --device cpu", "graph='on' needs a CUDA device"),
            ("--fix O --remove-momentum 5", "momentum of systems with fixed or restrained atoms"),
        ],
    )
    def test_in_one_sentence(
        self, mdgraph_command: Callable[..., Any], configured: Make, options: str, sentence: str
    ) -> None:
        made = configured()
        arguments = ["--potential", made.potential, "--out", made.out, "--steps", 1]
        done = mdgraph_command("md", file_of(made), *arguments, *options.split())
        assert done.status == 1
        (line,) = [line for line in done.err.splitlines() if "error:" in line]
        assert sentence in line
        assert not Path(made.out).exists()

    @pytest.mark.parametrize("ensemble", ["npt", "npt-mtk"])
    def test_a_vacuum_along_z(
        self,
        mdgraph_command: Callable[..., Any],
        configured: Make,
        tmp_path: Path,
        ensemble: str,
    ) -> None:
        made = configured()
        slab = ase.io.read(file_of(made))
        slab.set_cell(slab.cell[:] * np.array([1.0, 1.0, 2.0]))
        slab.cell[2, 2] += 10.0
        ase.io.write(tmp_path / "slab.extxyz", slab)
        given = ["--potential", made.potential, "--out", made.out, "--ensemble", ensemble]
        given += ["--steps", 2, "--coupling"]
        done = mdgraph_command("md", tmp_path / "slab.extxyz", *given, "semiisotropic")
        assert (done.status, Path(made.out).exists()) == (1, False)
        (line,) = [line for line in done.err.splitlines() if "error:" in line]
        assert "A along z, above 8 A, which pressure along z would close; choose semii" in line
        done = mdgraph_command("md", tmp_path / "slab.extxyz", *given, "semiisotropic-fixed-z")
        assert done.status == 0, done.err

    def test_pressure_without_a_periodic_cell(self, configured: Make, tmp_path: Path) -> None:
        molecule = ase.io.read(file_of(configured()))[:3]
        molecule.pbc = False
        ase.io.write(tmp_path / "molecule.extxyz", molecule)
        with pytest.raises(InputError, match=r"npt needs a periodic cell and the structure has no"):
            start(configured("npt", structure=str(tmp_path / "molecule.extxyz")))


def test_atoms_are_chosen_by_index_range_and_element(water_file: Path) -> None:
    system = read_system(water_file)
    assert select_atoms("O", system) == [0, 3]
    assert select_atoms("4-5, 0 4", system) == [0, 4, 5]
    assert select_atoms("H,0", system) == [0, 1, 2, 4, 5]
    for wrong in ("", "5-4", "1-6", "o", "-1"):
        with pytest.raises(InputError):
            select_atoms(wrong, system)
