"""The self-check: what it compares, what it refuses, and the commands around it."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from random_networks import TENSORNET, TENSORNET2, crystal, molecule, network
from toys import HarmonicWells

from mdgraph.checkpoints import load
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import Calculation, Simulation, VelocityVerlet, calculation
from mdgraph.errors import InputError, SelfCheckError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused import verification
from mdgraph.fused.agreement import TOLERANCES, Agreement
from mdgraph.fused.clusters import clusters_in
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.verification import self_check, verify
from mdgraph.io.structures import from_ase, read_system, to_ase
from mdgraph.models import TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import PRECISIONS
from mdgraph.runs import accuracy, evaluation
from mdgraph.runs.directory import RunDirectory
from mdgraph.state import State
from mdgraph.system import System

Command = Callable[..., Any]
Fault = Callable[[State], None]


def nothing(state: State) -> None:
    """No fault."""


class Fast:
    """Stands in for a fast evaluator: autograd of its potential, with a fault built in."""

    def __init__(
        self,
        potential: TensorNetPotential,
        kind: torch.dtype = torch.float32,
        fault: Fault = nothing,
    ) -> None:
        self.potential = potential
        self.cutoffs = potential.cutoffs
        self.fault = fault
        self._inner = AutogradEvaluator(potential.at_precision(kind))

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        self._inner.evaluate_(state, lists)
        self.fault(state)


@pytest.fixture(scope="module")
def potential() -> TensorNetPotential:
    """Two layers, 3.4 A, a shift and references; forces of some eV/A."""
    made = network(**TENSORNET)
    made.scale.fill_(40.0)
    return made


def computed(evaluator: Any, *systems: System, precision: str = "mixed") -> Calculation:
    result = Calculation(list(systems), evaluator, device="cpu", precision=precision)
    result.compute()
    return result


def checked(at: Calculation, seconds: float = 5.0) -> Agreement | None:
    return self_check(at.evaluator, at.state, at.lists, at.precision, seconds)


def verified(at: Calculation, seconds: float = 5.0) -> Agreement:
    oracle = AutogradEvaluator(at.evaluator.potential)
    return verify(at.evaluator, oracle, at.state, at.lists, seconds=seconds)


class TestAllAtoms:
    @pytest.mark.parametrize("precision", ["mixed", "single"])
    def test_rounding_passes(
        self, potential: TensorNetPotential, precision: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        at = computed(Fast(potential), crystal(), molecule(), precision=precision)
        before = at.state.snapshot()
        with caplog.at_level(logging.INFO, "mdgraph"):
            found = checked(at)
        assert found is not None
        assert (found.atoms, found.systems, found.how) == (13, 2, "all")
        assert 0.0 < found.relative_rms < found.relative_worst < 1e-4
        (said,) = caplog.messages
        assert said == (
            "Fast evaluator against the reference: forces within "
            f"{found.relative_worst:.1e} of their RMS, energies within {found.energy:.0e} eV/atom "
            "(13 atoms, all)."
        )
        assert all(bool((one == before[name]).all()) for name, one in at.state.tensors().items())

    def test_fast_is_said_in_figures(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        def shifted(state: State) -> None:
            state.forces[3, 1] += 1e-3

        at = computed(Fast(potential, torch.float64, shifted), crystal(), precision="fast")
        with caplog.at_level(logging.INFO, "mdgraph"):
            found = checked(at)
        assert found is not None
        assert found.force_rms == pytest.approx(1e-3 / math.sqrt(18), rel=1e-4)
        (said,) = caplog.messages
        assert said == (
            "Fast evaluator against the reference: forces err by 0.24 meV/A RMS and 1 meV/A on "
            f"the worst atom, {found.relative_rms:.1e} and {found.relative_worst:.1e} of their "
            f"RMS (0.3 eV/A at least), and energies by {found.energy:.0e} eV/atom (6 atoms, all)."
        )

    @pytest.mark.parametrize(("size", "passes"), [(2e-3, True), (6e-3, False)])
    def test_fast_may_err_by_a_few_thousandths(
        self, potential: TensorNetPotential, size: float, passes: bool
    ) -> None:
        exact = computed(AutogradEvaluator(potential), crystal(), precision="double")
        scale = max(0.3, float(exact.state.forces.square().mean().sqrt()))

        def noisy(state: State) -> None:
            state.forces += size * scale * torch.tensor([[1.0], [-1.0]] * 3)

        at = computed(Fast(potential, torch.float64, noisy), crystal(), precision="fast")
        if passes:
            assert checked(at) is not None
            return
        with pytest.raises(SelfCheckError, match=r"eV/A RMS in forces.*run with --precision mixed"):
            checked(at)

    def test_differences_are_those_of_the_results(self, potential: TensorNetPotential) -> None:
        at = computed(Fast(potential), crystal(), molecule())
        exact = computed(AutogradEvaluator(potential), crystal(), molecule(), precision="double")
        force = (at.state.forces - exact.state.forces).numpy()
        energies = (at.state.energies - exact.state.energies).numpy()
        found = verified(at)
        assert found.force_worst == pytest.approx(np.linalg.norm(force, axis=1).max())
        assert found.force_rms == pytest.approx(np.sqrt((force**2).mean()))
        assert found.force_scale == pytest.approx(np.sqrt((exact.state.forces.numpy() ** 2).mean()))
        assert found.force_atom == np.linalg.norm(force, axis=1).argmax()
        assert (found.energy_worst, found.energy_atom) == pytest.approx(
            (np.abs(energies).max(), np.abs(energies).argmax())
        )

    def test_other_weights_are_refused(self, potential: TensorNetPotential) -> None:
        other = potential.at_precision(torch.float64)
        torch.manual_seed(5)
        for parameter in other.parameters():
            parameter.mul_(1.0 + 1e-3 * torch.randn_like(parameter))
        evaluator = Fast(other)
        evaluator.potential = potential
        with pytest.raises(SelfCheckError, match=r"on atom \d.* is allowed \(6 atoms, all\)"):
            checked(computed(evaluator, crystal()))

    @pytest.mark.parametrize(
        ("fault", "sentence"),
        [
            (lambda state: state.energies[8].add_(1e-3), "1.00e-03 eV in the energy of atom 8,"),
            (lambda state: state.forces[8, 1].add_(0.1), "1.00e-01 eV/A in the force on atom 8,"),
            (lambda state: state.forces[8].fill_(math.nan), "nan eV/A in the force on atom 8,"),
            (lambda state: state.energies[3].fill_(math.nan), "nan eV in the energy of atom 3,"),
            (lambda state: state.forces.add_(3e-5), "3.00e-05 eV/A RMS in forces"),
            (lambda state: state.energy.add_(1e-3), "1.54e-04 eV/atom in the energy"),
            (lambda state: state.virial[1, 0, 1].add_(0.1), "1.43e-02 eV/atom in the virial"),
        ],
    )
    def test_a_fault_is_named(
        self, potential: TensorNetPotential, fault: Fault, sentence: str
    ) -> None:
        at = computed(Fast(potential, torch.float64, fault), crystal(), molecule())
        with pytest.raises(SelfCheckError) as caught:
            checked(at)
        assert f"differs from the reference by {sentence}" in str(caught.value)
        assert "run with --evaluator reference" in str(caught.value)

    @pytest.mark.parametrize("precision", ["mixed", "single"])
    def test_forces_that_vanish_are_no_measure(
        self, potential: TensorNetPotential, precision: str
    ) -> None:
        oxygen = System(np.array([8]), np.zeros((1, 3)))
        perfect = from_ase(bulk("CO", "rocksalt", a=4.2, cubic=True))
        at = computed(Fast(potential), oxygen, perfect, precision=precision)
        found = checked(at)
        assert found is not None
        assert found.force_scale < 1e-9
        assert found.relative_worst < 1e-4

    def test_every_precision_has_a_tolerance(self) -> None:
        assert set(TOLERANCES) == set(PRECISIONS)


CHARGED = (molecule(5, charge=-1.0), crystal(charge=1.0))


class TestSampledAtoms:
    """With no time at all, 32 atoms are compared."""

    # A cell narrower than the cutoff, a molecule smaller than a cluster, and a long cell.
    SYSTEMS = (crystal(), molecule(5), crystal(7, seed=2).replace(pbc=[True, False, True]))

    @pytest.mark.parametrize("systems", [SYSTEMS, SYSTEMS[:1], SYSTEMS[2:]])
    def test_exact_results_agree_at_full_size_too(
        self, potential: TensorNetPotential, systems: Sequence[System]
    ) -> None:
        at = computed(Fast(potential, torch.float64), *systems, precision="double")
        found = verified(at, seconds=0.0)
        assert found.force_worst < 1e-11
        assert found.energy_worst < 1e-11
        assert found.virial < 1e-11
        assert found.atoms == 32
        assert found.how.startswith("in clusters of up to ")
        assert found.how.endswith(f" of {len(at.state.numbers)}")

    @pytest.mark.parametrize("precision", ["mixed", "single"])
    def test_rounding_passes(self, potential: TensorNetPotential, precision: str) -> None:
        found = checked(computed(Fast(potential), crystal(), precision=precision), seconds=0.0)
        assert found is not None
        assert found.atoms == 32
        assert 0.0 < found.relative_worst < 1e-4

    def test_more_time_compares_more(self, potential: TensorNetPotential) -> None:
        at = computed(Fast(potential), *[crystal(seed=seed) for seed in range(8)])
        price = 3e-9 * verification.estimated_memory(
            potential, 1, [one.capacity for one in at.lists], PRECISIONS["double"]
        )
        found = [verified(at, seconds=(atoms + 0.5) * price) for atoms in (20, 40, 48)]
        assert [one.atoms for one in found] == [32, 40, 48]
        assert [one.how == "all" for one in found] == [False, False, True]

    def test_too_little_memory_counts_as_too_little_time(
        self, potential: TensorNetPotential, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verification, "available_memory", lambda device: 1000)
        assert verified(computed(Fast(potential), crystal()), seconds=math.inf).how != "all"

    def test_a_fault_is_named_by_the_atom_it_comes_from(
        self, potential: TensorNetPotential
    ) -> None:
        def fault(state: State) -> None:
            state.forces[state.numbers == 6] += 0.1

        water = molecule(5).replace(numbers=np.array([8, 1, 1, 8, 1]))
        carbon = crystal().replace(numbers=np.array([8, 1, 1, 8, 1, 6]))
        at = computed(Fast(potential, fault=fault), water, carbon)
        with pytest.raises(SelfCheckError, match="in the force on atom 10, where"):
            checked(at, seconds=0.0)

    def test_a_fault_at_full_size_alone_is_found(self, potential: TensorNetPotential) -> None:
        def fault(state: State) -> None:
            state.energies[state.pbc.any(-1)[state.grouping.index]] += 1e-3

        at = computed(Fast(potential, fault=fault), crystal())
        with pytest.raises(SelfCheckError, match=r"1.00e-03 eV in the energy of atom \d, where"):
            checked(at, seconds=0.0)

    def test_charges_of_the_whole_system_are_not_cut(self) -> None:
        at = computed(Fast(network(**TENSORNET2), torch.float64), *CHARGED, precision="double")
        found = verified(at, seconds=0.0)
        assert found.energy_worst < 1e-11
        assert found.force_worst < 1e-11
        assert found.virial < 1e-11

    def test_the_fused_form_of_charges_passes(self) -> None:
        potential = network(**TENSORNET2 | {"coulomb": {"cutoff": 5.2}})
        for seconds in (0.0, 5.0):
            found = checked(computed(FusedTensorNet(potential), *CHARGED), seconds=seconds)
            assert found is not None
            assert (found.how == "all") == (seconds > 0.0)
            assert 0.0 < found.relative_worst < 1e-4

    @pytest.mark.parametrize("name", ["energies", "forces", "virial"])
    def test_a_fault_at_some_place_of_charged_systems_is_found(self, name: str) -> None:
        """At full size alone: clusters have no periodic directions."""

        def fault(state: State) -> None:
            if state.pbc.any():
                tensor = getattr(state, name)
                tensor[-1] += 1e-2 * state.positions[-1, 0].abs() / 5.0 + 1e-3

        with pytest.raises(SelfCheckError):
            checked(computed(Fast(network(**TENSORNET2), fault=fault), *CHARGED), seconds=0.0)

    def test_rare_elements_come_first(self) -> None:
        numbers = np.array([1] * 20 + [8] * 9 + [6])
        positions = np.random.default_rng(3).uniform(0.0, 30.0, (30, 3))
        state = State([System(numbers, positions)])
        centres = [int(one.origin[0]) for one in clusters_in(state, 5.0)]
        assert numbers[centres[:3]].tolist() == [6, 8, 1]
        assert sorted(centres) == list(range(30))


@pytest.mark.parametrize("pbc", [True, False, [True, False, False], [False, True, True]])
def test_clusters_hold_every_image_in_reach(pbc: Any) -> None:
    system = crystal(5).replace(pbc=pbc)
    moved = system.replace(positions=system.positions + np.array([[3, -2, 5]]) @ system.cell)
    images = np.stack(np.meshgrid(*[np.arange(-4, 5)] * 3, indexing="ij"), -1).reshape(-1, 3)
    images = np.unique(images * system.pbc, axis=0)
    for centre, cluster in enumerate(sorted(clusters_in(State([moved]), 6.0), key=_centre)):
        away = system.positions - system.positions[centre] + (images @ system.cell)[:, None]
        distance = np.linalg.norm(away, axis=-1)
        expected = np.sort(distance[distance < 6.0])
        np.testing.assert_allclose(
            np.linalg.norm(cluster.system.positions, axis=1), expected, atol=1e-9
        )
        np.testing.assert_array_equal(cluster.system.numbers, system.numbers[cluster.origin])


def _centre(cluster: Any) -> int:
    return int(cluster.origin[0])


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
        assert "Fast evaluator against the reference: forces within" in caplog.text

    def test_says_that_nobody_measured(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        said = "Without the self-check, the force error of precision fast was not measured."
        with caplog.at_level(logging.INFO, "mdgraph"):
            self.simulated(Fast(potential), check=False)
            self.simulated(Fast(potential), precision="fast")
        assert said not in caplog.messages
        assert "meV/A RMS" in caplog.text
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

    @pytest.mark.parametrize("command", ["md", "eval"])
    def test_fast_is_taken_and_measured_unless_told_not_to(
        self,
        mdgraph_command: Command,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        command: str,
    ) -> None:
        shared = [command, water_file, "--potential", tiny_potential, "--precision", "fast"]
        shared += ["--device", "cpu"] + (["--steps", 1] if command == "md" else [])
        done = mdgraph_command(*shared, "--out", tmp_path / "checked")
        assert done.status == 0, done.err
        assert done.err.count("meV/A RMS") == 1
        assert "not measured" not in done.err
        done = mdgraph_command(*shared, "--out", tmp_path / "unchecked", "--no-check")
        assert done.status == 0, done.err
        assert "meV/A RMS" not in done.err
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
            assert error["force_worst_eV_per_A"] == pytest.approx(float(force.max()))
            assert error["stress_eV_per_A3"] == pytest.approx(float(stress))
            assert error["energy_eV_per_atom"] == pytest.approx(
                float((state.energy - exact.energy).abs()) / 6
            )
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
            (["water-pbe0", "--seconds", "-1"], "--seconds is -1.0; it should be greater than 0"),
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
        monkeypatch.setattr(accuracy, "available_memory", lambda device: 1000)
        done = mdgraph_command("bench", "--verify", tiny_potential, water_file)
        assert done.status == 1
        assert "GB for 6 atoms, and" in done.err
