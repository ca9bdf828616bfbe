"""A sum of potentials is a potential: its numbers are those of its terms, however it runs."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_cases import CHARGED, COULOMB, clear_of_ends
from random_networks import TENSORNET, molecule, network
from toys import LennardJones

from mdgraph import Simulation, VelocityVerlet, load
from mdgraph.checkpoints import describe, save
from mdgraph.engine import Calculation
from mdgraph.errors import CheckpointError, SelfCheckError, UnknownSpeciesError
from mdgraph.evaluators import SumEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.io.structures import to_ase
from mdgraph.models import PotentialModule, SumPotential
from mdgraph.system import System

WIDE = TENSORNET | {"cutoff": 4.3, "layers": 1}


def sum_of(*settings: dict[str, Any], weights: tuple[float, ...] = ()) -> SumPotential:
    """The sum of random networks, of which the last counts as learned."""
    parts = [network(**each) for each in settings]
    for number, part in enumerate(parts):
        with torch.no_grad():
            part.scale.fill_(1.0 + number)
            part.config = part.config.model_copy(update={"name": f"part, {number}"})
    weights = weights or (1.0,) * len(parts)
    return SumPotential.of(zip(parts, weights, strict=True), learned=len(parts) - 1)


@pytest.fixture
def structure() -> System:
    return clear_of_ends(molecule, 12, 0.0, (False,) * 3)


def results(
    potential: PotentialModule, structure: System, precision: str, evaluator: str = "auto"
) -> Calculation:
    at = Calculation([structure], potential, device="cpu", precision=precision, evaluator=evaluator)
    at.compute()
    return at


@pytest.mark.parametrize(
    ("precision", "evaluator", "tolerance"),
    [("double", "reference", 1e-12), ("double", "fused", 1e-10), ("mixed", "auto", 1e-5)],
)
def test_energies_forces_and_virials_are_those_of_the_terms(
    structure: System, precision: str, evaluator: str, tolerance: float
) -> None:
    whole = sum_of(TENSORNET, WIDE, COULOMB, weights=(1.0, -0.5, 2.0))
    together = results(whole, structure, precision, evaluator).state
    apart = [results(part, structure, precision, evaluator).state for part in whole.parts]
    for name in ("energies", "energy", "forces", "virial"):
        expected = sum(
            weight * getattr(state, name).double()
            for weight, state in zip(whole.weights, apart, strict=True)
        )
        torch.testing.assert_close(
            getattr(together, name).double(), expected, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("evaluator", ["reference", "fused"])
def test_forces_are_derivatives_of_the_energy(structure: System, evaluator: str) -> None:
    whole = sum_of(TENSORNET, WIDE)
    forces = results(whole, structure, "double", evaluator).state.forces
    step = 1e-4
    for atom, axis in ((0, 0), (3, 1), (7, 2)):
        energies = []
        for sign in (1.0, -1.0):
            positions = structure.positions.copy()
            positions[atom, axis] += sign * step
            moved = structure.replace(positions=positions)
            energies.append(float(results(whole, moved, "double", evaluator).state.energy))
        slope = -(energies[0] - energies[1]) / (2.0 * step)
        assert float(forces[atom, axis]) == pytest.approx(slope, abs=1e-6)


def test_terms_of_equal_cutoff_share_a_list(structure: System) -> None:
    at = results(sum_of(TENSORNET, CHARGED, WIDE), structure, "mixed")
    assert len(at.lists) == 2
    evaluator = at.evaluator
    assert isinstance(evaluator, SumEvaluator)
    assert all(isinstance(term, FusedTensorNet) for term in evaluator.terms)
    assert at.list_of("network").cutoff == 4.3  # of the learned term


def test_a_term_without_a_fused_form_leaves_the_others_fast(
    structure: System, caplog: pytest.LogCaptureFixture
) -> None:
    slow = TENSORNET | {"activation": "softexp", "activation_parameter": 0.1}
    at = results(sum_of(TENSORNET, slow), structure, "mixed")
    assert isinstance(at.evaluator, SumEvaluator)
    assert [isinstance(term, FusedTensorNet) for term in at.evaluator.terms] == [True, False]
    assert caplog.text.count("The slower reference evaluator runs.") == 1


def test_a_simulation_conserves_energy_and_tells_the_terms(structure: System) -> None:
    run = Simulation(
        structure, sum_of(TENSORNET, WIDE), VelocityVerlet(0.25), device="cpu", temperature=100.0
    )
    before = run.observables()
    assert list(before.term_energies) == ["part, 0", "part, 1"]
    run.run(200)
    after = run.observables()
    drift = float((after.conserved_energy - before.conserved_energy)[0])
    assert abs(drift) < 1e-4 * len(structure)
    total = sum(float(energy[0]) for energy in after.term_energies.values())
    assert total == pytest.approx(float(after.potential_energy[0]), abs=1e-9)
    assert abs(float(after.potential_energy - before.potential_energy)) > 1e-4


def test_a_file_keeps_the_terms(tmp_path: Path, structure: System) -> None:
    whole = sum_of(TENSORNET, COULOMB, weights=(1.0, 0.25))
    path = tmp_path / "sum.safetensors"
    save(whole, path)
    again = load(path)
    assert isinstance(again, SumPotential)
    assert again.config == whole.config
    states = [results(each, structure, "double").state for each in (whole, again)]
    assert torch.equal(states[0].forces, states[1].forces)
    about = describe(path)
    assert about["architecture"] == "Sum"
    assert about["terms"][1].startswith("0.25 times part, 1: TensorNet2")
    assert about["parameters"] == sum(part.parameter_count for part in whole.parts)


def test_sums_of_sums_are_flat() -> None:
    inner = sum_of(TENSORNET, WIDE, weights=(0.5, 2.0))
    whole = SumPotential.of([(inner, 3.0), (network(**CHARGED), 1.0)], learned=1)
    assert whole.weights == (1.5, 6.0, 1.0)
    assert whole.config.learned == 2
    assert whole.uses_charge


def test_the_range_of_coulomb_energies_is_that_of_every_term() -> None:
    whole = sum_of(TENSORNET, COULOMB)
    assert 7.0 in whole.with_coulomb_cutoff(7.0).cutoffs
    assert 7.0 not in whole.cutoffs


def test_a_term_that_errs_fails_the_self_check(
    structure: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum_of(TENSORNET, WIDE)
    at = results(whole, structure, "mixed")
    assert isinstance(at.evaluator, SumEvaluator)
    wrong = at.evaluator.terms[1]
    plain = wrong.evaluate_

    def evaluate_(state: Any, lists: Any) -> None:
        plain(state, lists)
        state.forces[2] *= 1.05

    monkeypatch.setattr(wrong, "evaluate_", evaluate_)
    with pytest.raises(SelfCheckError, match="differs from the reference"):
        Simulation(structure, at.evaluator, VelocityVerlet(0.5), device="cpu", check=True)


def test_elements_are_those_that_all_terms_know() -> None:
    first = network(**TENSORNET | {"species": (1, 6, 8)})
    second = network(**TENSORNET | {"species": (6, 7, 8)})
    assert SumPotential.of([(first, 1.0), (second, 1.0)]).species == (6, 8)
    with pytest.raises(UnknownSpeciesError, match="No element is known to all terms"):
        SumPotential.of([(first, 1.0), (network(**TENSORNET | {"species": (29,)}), 1.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terms": []}, "terms"),
        ({"learned": 5}, "learned is no place of a term"),
        ({"species": [1, 92]}, "a term lacks the element of number 92"),
        ({"terms": [{"weight": 1.0, "potential": {"architecture": "sum"}}]}, "no sum itself"),
        ({"terms": [{"weight": 1.0, "potential": {"architecture": "x"}}]}, "no architecture 'x'"),
        ({"terms": [{"weight": 1.0, "potential": 3}]}, "needs the configuration of a potential"),
        ({"terms": [{"weight": "nan"}]}, "terms"),
    ],
)
def test_a_damaged_description_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    from mdgraph.io.tensor_files import read_tensors, serialize

    path, damaged = tmp_path / "sum.safetensors", tmp_path / "damaged.safetensors"
    save(sum_of(TENSORNET, WIDE), path)
    tensors, metadata = read_tensors(path, "a potential")
    import json

    config = json.loads(metadata["mdgraph"]) | change
    damaged.write_bytes(serialize(tensors, {"mdgraph": json.dumps(config)}))
    with pytest.raises(CheckpointError, match=message):
        load(damaged)


def test_the_command_line_runs_it_and_logs_every_term(
    tmp_path: Path, structure: System, mdgraph_command: Callable[..., Any]
) -> None:
    path, file, out = tmp_path / "sum.safetensors", tmp_path / "in.extxyz", tmp_path / "run"
    save(sum_of(TENSORNET, WIDE), path)
    to_ase(structure).write(file)
    options = ["--potential", path, "--device", "cpu", "--temperature-K", 100, "--timestep-fs", 0.2]
    done = mdgraph_command("md", file, *options, "--steps", 20, "--log-interval", 5, "--out", out)
    assert done.status == 0, done.err
    with (out / "log.csv").open() as log:
        rows = list(csv.DictReader(log))
    names = [name for name in rows[0] if name.startswith("part")]
    assert names == ["part_0_energy_eV", "part_1_energy_eV"]
    for row in rows:
        total = sum(float(row[name]) for name in names)
        assert total == pytest.approx(float(row["potential_energy_eV"]), abs=1e-9)
    done = mdgraph_command("md", "--resume", "--steps", 40, "--out", out)
    assert done.status == 0, done.err
    once = tmp_path / "once"
    done = mdgraph_command("md", file, *options, "--steps", 40, "--log-interval", 5, "--out", once)
    assert done.status == 0, done.err
    with (out / "log.csv").open() as first, (once / "log.csv").open() as second:
        for row, other in zip(csv.DictReader(first), csv.DictReader(second), strict=True):
            assert {k: v for k, v in row.items() if k != "ns_per_day"} == {
                k: v for k, v in other.items() if k != "ns_per_day"
            }
    assert np.isfinite(float(rows[-1]["temperature_K"]))


def test_other_potentials_have_no_terms(structure: System) -> None:
    at = results(network(**TENSORNET), structure, "mixed")
    assert at.evaluator.term_energies(at.state) == {}
    assert LennardJones(0.01, 3.4, 6.0).species is None
