"""The self-check: what it compares, on all atoms and on samples."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from random_networks import TENSORNET2, crystal, molecule, network
from verified_networks import Fast, Fault, steep_network

from mdgraph import load
from mdgraph.engine import Calculation
from mdgraph.errors import SelfCheckError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused import verification
from mdgraph.fused.agreement import TOLERANCES, Agreement
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.verification import clusters_in, self_check, verify
from mdgraph.io.structures import from_ase
from mdgraph.models import TensorNetPotential
from mdgraph.precision import PRECISIONS
from mdgraph.state import State
from mdgraph.system import System


@pytest.fixture(scope="module")
def potential() -> TensorNetPotential:
    return steep_network()


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
        with caplog.at_level(logging.INFO, "mdgraph.fused.verification"):
            found = checked(at)
        assert found is not None
        assert (found.atoms, found.systems, found.how) == (13, 2, "all")
        assert 0.0 < found.relative_rms < found.relative_worst < 1e-4
        (said,) = caplog.messages
        assert said == (
            f"Fast evaluator against the reference: forces err by {found.force_rms:.1e} eV/A RMS "
            f"and {found.force_worst:.1e} eV/A on the worst atom, where their RMS is "
            f"{found.force_scale:.2g} eV/A, and energies by {found.energy:.0e} eV/atom "
            "(13 atoms, all)."
        )
        assert all(bool((one == before[name]).all()) for name, one in at.state.tensors().items())

    def test_fast_is_said_in_figures(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        def shifted(state: State) -> None:
            state.forces[3, 1] += 1e-3

        at = computed(Fast(potential, torch.float64, shifted), crystal(), precision="fast")
        with caplog.at_level(logging.INFO, "mdgraph.fused.verification"):
            found = checked(at)
        assert found is not None
        assert found.force_rms == pytest.approx(1e-3 / math.sqrt(18), rel=1e-4)
        (said,) = caplog.messages
        assert "forces err by 2.4e-04 eV/A RMS and 1.0e-03 eV/A on the worst atom" in said

    @pytest.mark.parametrize(("size", "verdict"), [(2e-3, ""), (6e-3, "warned"), (0.6, "no")])
    def test_fast_may_err_by_a_few_thousandths(
        self,
        potential: TensorNetPotential,
        size: float,
        verdict: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Tenths are refused; molecules that a network never saw err by hundredths."""
        exact = computed(AutogradEvaluator(potential), crystal(), precision="double")
        scale = max(1.0, float(exact.state.forces.square().mean().sqrt()))

        def noisy(state: State) -> None:
            state.forces += size * scale * torch.tensor([[1.0], [-1.0]] * 3)

        at = computed(Fast(potential, torch.float64, noisy), crystal(), precision="fast")
        if verdict == "no":
            with pytest.raises(SelfCheckError, match=r"force.*run with --precision mixed"):
                checked(at)
            return
        with caplog.at_level(logging.WARNING, "mdgraph"):
            assert checked(at) is not None
        assert ("differs from the reference by" in caplog.text) == (verdict == "warned")
        assert ("--precision mixed" in caplog.text) == (verdict == "warned")

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
            (lambda state: state.forces.add_(6e-3), "1.04e-02 eV/A in the force on atom"),
            (lambda state: state.energy.add_(1e-3), "1.54e-04 eV/atom in the energy"),
            (lambda state: state.virial[1, 0, 1].add_(4e-3), "5.71e-04 eV/atom in the virial"),
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
            verification.Workload(
                potential, 1, [one.capacity for one in at.lists], PRECISIONS["double"], at.device
            )
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

    @pytest.mark.parametrize("make", [steep_network, lambda: network(**TENSORNET2)])
    @pytest.mark.parametrize(
        ("name", "factor", "sentence"),
        [
            ("energies", 1.0001, "in the energy"),
            ("energy", 1.0001, "eV/atom in the energy"),
            ("forces", -3.0, "eV/atom between its energies and the work"),
            ("forces", 0.98, "eV/atom between its energies and the work"),
            ("virial", 5.0, "eV/atom between its energies and the work"),
            ("virial", 0.8, "eV/atom between its energies and the work"),
        ],
    )
    def test_a_fault_at_full_size_alone_is_found(
        self, make: Callable[[], TensorNetPotential], name: str, factor: float, sentence: str
    ) -> None:
        """Wrong on all atoms wherever a direction is periodic, as none of a cluster is."""

        def fault(state: State) -> None:
            if state.pbc.any():
                getattr(state, name).mul_(factor)

        at = computed(Fast(make(), fault=fault), crystal())
        with pytest.raises(SelfCheckError, match=sentence):
            checked(at, seconds=0.0)

    @pytest.mark.parametrize("seconds", [0.0, 5.0])
    def test_a_table_that_is_wrong_where_no_atom_is_yet_is_refused(self, seconds: float) -> None:
        evaluator = FusedTensorNet(steep_network())
        layer = evaluator.tables.layers[0]
        swapped = layer.coefficients.clone()
        place = int(layer.grid.locate(torch.tensor([2.0]))[0])
        swapped[[place, place + 1]] = swapped[[place + 1, place]]
        wrong = replace(
            evaluator.tables,
            layers=(replace(layer, coefficients=swapped), *evaluator.tables.layers[1:]),
        )
        at = computed(evaluator, molecule(1))
        evaluator.tables = wrong
        with pytest.raises(SelfCheckError, match="times what its tables may err by"):
            checked(at, seconds=seconds)

    def test_atoms_that_nearly_touch_pass_at_full_size(self) -> None:
        """Forces change by more than themselves on the way, and Simpson's rule errs by eV."""
        system = System(np.array([6, 8]), np.array([[0.0, 0.0, 0.0], [0.24, 0.32, 0.6]]))
        for precision in ("mixed", "double"):
            evaluator = FusedTensorNet(load("acac-pbe"), precision)
            at = computed(evaluator, system, precision=precision)
            found = checked(at, seconds=0.0)
            assert found is not None
            assert found.works[0][1] > 0.1

    def test_full_size_leaves_the_state_as_it_was(self, potential: TensorNetPotential) -> None:
        at = computed(FusedTensorNet(potential), crystal(), molecule())
        before = at.state.snapshot()
        assert checked(at, seconds=0.0) is not None
        assert all(bool((one == before[name]).all()) for name, one in at.state.tensors().items())
        at.compute()
        assert all(bool((one == before[name]).all()) for name, one in at.state.tensors().items())

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


class TestYardstick:
    """What rounding does on the same atoms is no disagreement, and all beyond it is."""

    @pytest.fixture
    def stiff(self) -> tuple[TensorNetPotential, System]:
        """Forces of 1e5 eV/A, which float32 rounds to 1e-2."""
        potential = steep_network()
        potential.scale.fill_(4e6)
        return potential, crystal()

    def test_rounding_of_a_steep_network_passes(
        self, stiff: tuple[TensorNetPotential, System], caplog: pytest.LogCaptureFixture
    ) -> None:
        potential, system = stiff
        with caplog.at_level(logging.WARNING, "mdgraph"):
            for seconds in (0.0, 5.0):
                found = checked(computed(FusedTensorNet(potential), system), seconds=seconds)
        assert found is not None
        assert not caplog.messages

    def test_a_fault_in_a_steep_network_is_refused(
        self, stiff: tuple[TensorNetPotential, System]
    ) -> None:
        def fault(state: State) -> None:
            state.forces[2] *= 1.01

        with pytest.raises(SelfCheckError, match="in the force on atom 2"):
            checked(computed(Fast(stiff[0], fault=fault), stiff[1]))

    def test_between_the_two_it_warns(
        self, potential: TensorNetPotential, caplog: pytest.LogCaptureFixture
    ) -> None:
        exact = computed(AutogradEvaluator(potential), crystal(), precision="double").state.forces
        scale = max(1.0, float(exact.square().mean().sqrt()))
        for size, words in ((5e-5, None), (2.5e-4, "more than rounding explains"), (1e-3, "")):

            def fault(state: State, size: float = size) -> None:
                state.forces[2, 0] += size * scale

            caplog.clear()
            at = computed(Fast(potential, torch.float64, fault), crystal())
            if words == "":
                with pytest.raises(SelfCheckError, match="in the force on atom 2"):
                    checked(at)
                continue
            with caplog.at_level(logging.WARNING, "mdgraph"):
                checked(at)
            assert bool(caplog.messages) == (words is not None)
            assert words is None or words in caplog.text

    def test_what_is_wrong_from_the_second_evaluation_on_is_refused(
        self, potential: TensorNetPotential
    ) -> None:
        """A sum that is never cleared, and an atom whose force is never written."""
        calls: list[int] = []

        def growing(state: State) -> None:
            calls.append(1)
            state.forces[1] += 0.1 * (len(calls) - 1)

        with pytest.raises(SelfCheckError, match="in the force on atom 1"):
            checked(computed(Fast(potential, torch.float64, growing), crystal()))

        known: list[torch.Tensor] = []

        def unwritten(state: State) -> None:
            if not known:
                known.append(state.forces[4].clone())
            else:
                state.forces[4] = math.nan

        with pytest.raises(SelfCheckError, match="nan eV/A in the force on atom 4"):
            checked(computed(Fast(potential, torch.float64, unwritten), crystal()))

    def test_a_crystal_at_rest_is_not_measured_by_its_forces(
        self, potential: TensorNetPotential
    ) -> None:
        """Relaxed structures, whose forces vanish, are what people start from."""

        def rounding(state: State) -> None:
            state.forces += 3e-5

        perfect = from_ase(bulk("CO", "rocksalt", a=4.2, cubic=True))
        assert checked(computed(Fast(potential, torch.float64, rounding), perfect)) is not None
