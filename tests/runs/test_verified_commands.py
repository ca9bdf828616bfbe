"""The self-check where simulations, ASE and the commands make it."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_networks import crystal, molecule
from toys import HarmonicWells
from verified_networks import Fast, Fault, nothing, steep_network

from mdgraph.checkpoints import load
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import Calculation, Simulation, VelocityVerlet, calculation
from mdgraph.errors import InputError, SelfCheckError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.structures import read_system, to_ase
from mdgraph.models import TensorNetPotential
from mdgraph.precision import PRECISIONS
from mdgraph.runs import bench, evaluation
from mdgraph.runs.folder import RunDirectory
from mdgraph.state import State

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def potential() -> TensorNetPotential:
    return steep_network()


def wrong(state: State) -> None:
    state.forces[1] += 0.5


class TestSimulation:
    def simulated(self, evaluator: Any, **options: Any) -> Simulation:
        return Simulation(crystal(), evaluator, VelocityVerlet(0.1), device="cpu", **options)

    def test_refuses_to_start(self, potential: TensorNetPotential) -> None:
        with pytest.raises(SelfCheckError, match="in the force on atom 1"):
            self.simulated(Fast(potential, fault=wrong))

    def test_starts_unchecked_where_asked(self, potential: TensorNetPotential) -> None:
        assert self.simulated(Fast(potential, fault=wrong), check=False).run(1) == 1

    def test_says_what_was_found(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "mdgraph"):
            self.simulated(Fast(potential))
        assert "Fast evaluator against the reference: forces err by" in caplog.text

    def test_says_that_nobody_measured(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        said = "Without the self-check, the force error of precision fast was not measured."
        with caplog.at_level(logging.INFO, "mdgraph"):
            self.simulated(Fast(potential), check=False)
            self.simulated(Fast(potential), precision="fast")
        assert said not in caplog.messages
        assert "eV/A RMS" in caplog.text
        with caplog.at_level(logging.INFO, "mdgraph"):
            self.simulated(Fast(potential), precision="fast", check=False)
        assert caplog.messages.count(said) == 1

    def test_does_not_check_the_reference_or_strangers(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        centres = torch.tensor(crystal().positions)
        with caplog.at_level(logging.INFO, "mdgraph"):
            self.simulated(AutogradEvaluator(potential))
            self.simulated(HarmonicWells(centres, 1.0))
        assert "against the reference" not in caplog.text

    def test_refuses_an_unknown_evaluator(self, potential: TensorNetPotential) -> None:
        with pytest.raises(InputError, match="Unknown evaluator 'magic'; choose one of auto, fus"):
            Simulation(crystal(), potential, VelocityVerlet(0.1), device="cpu", evaluator="magic")


class TestASE:
    def test_checks_the_first_atoms_alone(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        calculator = MDGraphCalculator(Fast(potential), device="cpu")
        for system in (crystal(), molecule()):
            atoms = to_ase(system)
            atoms.calc = calculator
            with caplog.at_level(logging.INFO, "mdgraph"):
                atoms.get_forces()
        assert caplog.text.count("against the reference") == 1

    def test_refuses_until_told_not_to_check(self, potential: TensorNetPotential) -> None:
        atoms = to_ase(crystal())
        atoms.calc = MDGraphCalculator(Fast(potential, fault=wrong), device="cpu")
        for _ in range(2):
            with pytest.raises(SelfCheckError, match="on atom 1"):
                atoms.get_potential_energy()
        atoms.calc = MDGraphCalculator(Fast(potential, fault=wrong), device="cpu", check=False)
        assert math.isfinite(atoms.get_potential_energy())


class TestCommands:
    @pytest.fixture
    def evaluators_have(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
        """Gives whoever asks for an evaluator one with a fault."""

        def arrange(fault: Fault) -> None:
            def made(potential: TensorNetPotential | Fast, *options: Any) -> Fast:
                return potential if isinstance(potential, Fast) else Fast(potential, fault=fault)

            for module in (calculation, evaluation):
                monkeypatch.setattr(module, "as_evaluator", made)

        return arrange

    def test_md(
        self,
        mdgraph_command: Command,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        evaluators_have: Callable[[Fault], None],
    ) -> None:
        evaluators_have(wrong)
        command = ["md", water_file, "--potential", tiny_potential, "--out", tmp_path / "run"]
        command += ["--steps", 1, "--device", "cpu"]
        done = mdgraph_command(*command)
        assert done.status == 1
        assert "error: The fast evaluator differs from the reference by 8.66e-01 eV/A" in done.err
        assert list(tmp_path.iterdir()) == []
        done = mdgraph_command(*command, "--no-check")
        assert done.status == 0, done.err
        kept = RunDirectory(tmp_path / "run").read_record()["configuration"]
        assert (kept["check"], kept["evaluator"]) == (False, "fused")
        again = ["md", "--resume", "--out", tmp_path / "run", "--steps", 2]
        assert mdgraph_command(*again).status == 0
        assert mdgraph_command(*again, "--check").status == 1

    def test_eval(
        self,
        mdgraph_command: Command,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        evaluators_have: Callable[[Fault], None],
    ) -> None:
        evaluators_have(wrong)
        command = ["eval", water_file, water_file, "--potential", tiny_potential, "--device", "cpu"]
        command += ["--out", tmp_path / "results.extxyz"]
        done = mdgraph_command(*command)
        assert (done.status, "differs from the reference" in done.err) == (1, True)
        assert list(tmp_path.iterdir()) == []
        assert mdgraph_command(*command, "--no-check").status == 0
        evaluators_have(nothing)
        done = mdgraph_command(*command, "--overwrite")
        assert (done.status, done.err.count("Fast evaluator against the reference")) == (0, 1)

    @pytest.mark.parametrize("command", ["md", "eval", "relax"])
    def test_fast_is_taken_and_measured_unless_told_not_to(
        self,
        mdgraph_command: Command,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        command: str,
    ) -> None:
        shared = [command, water_file, "--potential", tiny_potential, "--precision", "fast"]
        shared += ["--device", "cpu"] + ([] if command == "eval" else ["--steps", 1])
        shared += ["--minimize"] if command == "md" else []
        done = mdgraph_command(*shared, "--out", tmp_path / "checked")
        assert done.status == 0, done.err
        assert done.err.count("forces err by") == 1
        assert "not measured" not in done.err
        done = mdgraph_command(*shared, "--out", tmp_path / "unchecked", "--no-check")
        assert done.status == 0, done.err
        assert "forces err by" not in done.err
        assert done.err.count("the force error of precision fast was not measured") == 1
        if command == "md":
            kept = RunDirectory(tmp_path / "checked").read_record()["configuration"]
            assert kept["precision"] == "fast"
            again = mdgraph_command("md", "--resume", "--out", tmp_path / "checked", "--steps", 2)
            assert again.status == 0, again.err

    def test_the_evaluator_is_recorded(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        (tmp_path / "run.yaml").write_text(f"potential: {tiny_potential}\nevaluator: reference\n")
        options = ["--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--steps", 1]
        assert mdgraph_command("md", water_file, *options).status == 0
        kept = RunDirectory(tmp_path / "run").read_record()["configuration"]
        assert (kept["check"], kept["evaluator"]) == (True, "reference")


class TestBench:
    def test_errors_of_every_precision(
        self, mdgraph_command: Command, tiny_potential: Path, water_file: Path
    ) -> None:
        command = ["bench", "--verify", tiny_potential, water_file, "--device", "cpu"]
        command += ["--evaluator", "reference"]
        done = mdgraph_command(*command, "--json")
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert (found["potential"], found["atoms"], found["device"]) == ("tiny", 6, "cpu")
        assert found["environment"]["torch"] == torch.__version__
        assert set(found["errors"]) == set(PRECISIONS) - {"double"}
        system, potential = read_system(water_file), load(tiny_potential)
        states = {}
        for precision in PRECISIONS:
            at = Calculation(
                [system],
                potential,
                device="cpu",
                precision=precision,
                skin=0.0,
                evaluator="reference",
            )
            at.compute()
            states[precision] = at.state
        exact = states.pop("double")
        for precision, state in states.items():
            error = found["errors"][precision]
            force = (state.forces.double() - exact.forces).norm(dim=1)
            stress = (state.virial - exact.virial).abs().max() / system.volume
            # MKL rounds by threads and by where arrays lie in memory, so errors are not the same.
            energy = float((state.energy - exact.energy).abs()) / 6
            assert error["force_worst_eV_per_A"] == pytest.approx(float(force.max()), rel=0.5)
            assert error["stress_eV_per_A3"] == pytest.approx(float(stress), rel=0.5)
            assert error["energy_eV_per_atom"] == pytest.approx(energy, rel=0.9, abs=2e-8)
        printed = mdgraph_command(*command).out
        assert printed.startswith("tiny, H4 O2 (6 atoms), ")
        for precision, error in found["errors"].items():
            (line,) = (one for one in printed.splitlines() if one.startswith(precision))
            assert f"{error['force_worst_eV_per_A']:.1e}" in line
            assert line.endswith("reference")

    def test_a_molecule_has_no_stress(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        free = read_system(water_file).replace(cell=np.zeros((3, 3)), pbc=False)
        to_ase(free).write(tmp_path / "molecule.xyz")
        command = ["bench", "--verify", tiny_potential, tmp_path / "molecule.xyz"]
        found = json.loads(mdgraph_command(*command, "--json").out)
        assert found["errors"]["mixed"]["stress_eV_per_A3"] is None
        assert mdgraph_command(*command).status == 0

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["tiny.safetensors"], "There is no file or folder"),
            (["water-pbe0", "nowhere.xyz"], "nowhere.xyz"),
            (["water-pbe0", "--precision", "mixed", "--verify"], "leave --precision out."),
            (["--atoms", "30", "--verify", "--picture", "a.png"], "leave it or --verify out."),
            (["water-pbe0", "--seconds", "-1"], "--seconds is -1; it should be greater than 0"),
            (["water-pbe0", "--device", "cuda:99"], "this machine has"),
        ],
    )
    def test_wrong_arguments_end_in_one_sentence(
        self, mdgraph_command: Command, arguments: list[str], sentence: str
    ) -> None:
        done = mdgraph_command("bench", *arguments)
        assert done.status == 1
        assert sentence in done.err
        assert done.err.count("\n") == 1

    def test_what_does_not_fit_is_said(
        self,
        mdgraph_command: Command,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(bench, "available_memory", lambda device: 1000)
        done = mdgraph_command("bench", "--verify", tiny_potential, water_file)
        assert done.status == 1
        assert "GB for 6 atoms, and" in done.err
