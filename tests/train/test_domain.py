"""What a potential was trained on, and how well its last layer knows the size of its errors."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch
from ase.calculators.emt import EMT
from ase.neighborlist import neighbor_list
from safetensors.torch import save_file
from training_sets import clusters, crystals, prepare

from mdgraph.checkpoints import load, load_domain, save
from mdgraph.data import LabelledFrame, open_dataset
from mdgraph.engine import Calculation
from mdgraph.errors import CheckpointError
from mdgraph.models import (
    Atoms,
    Domain,
    RadialBasisConfig,
    ReadoutConfig,
    TensorNetConfig,
    TensorNetPotential,
)
from mdgraph.runs.training import read_training
from mdgraph.system import System
from mdgraph.train import report
from mdgraph.train.domain import agreement, calibration_factor, lengths
from mdgraph.train.loop import train
from mdgraph.train.report import agreement_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a potential of copper and oxygen; its data and split lie beside it."""
    place = tmp_path_factory.mktemp("domain")
    path = prepare(place, [*clusters(48), *crystals(8)], steps=150, validations=3, average=0.95)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda path, *_: path.write_text(""))
        train(read_training(path, {}), quiet=True)
    return place / "out"


@pytest.fixture(scope="module")
def frames(trained: Path) -> list[LabelledFrame]:
    """Those that were trained on."""
    split = json.loads((trained / "split.json").read_text())
    with open_dataset(trained.parent / "set.h5") as dataset:
        return [dataset.frame(number) for number in split["train"]]


def domain_of(folder: Path) -> Domain:
    found = load_domain(folder)
    assert found is not None
    return found


def of_structure(potential: TensorNetPotential, system: System) -> tuple[torch.Tensor, float]:
    """Latent features (N, H), and the energy, eV."""
    now = Calculation(
        [system], potential, device="cpu", precision="double", skin=0.0, evaluator="reference"
    )
    now.compute()
    state = now.state
    atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
    with torch.no_grad():
        pairs = tuple(one.pairs(state.positions, state.cell) for one in now.lists)
        return potential.latent(atoms, pairs), float(state.energy)


def test_the_ranges_are_those_that_ase_finds(trained: Path, frames: list[LabelledFrame]) -> None:
    domain = domain_of(trained)
    cutoff = load(trained).config.cutoff
    counts: dict[int, list[float]] = {8: [], 29: []}
    forces: dict[int, list[float]] = {8: [], 29: []}
    shortest = np.full((2, 2), np.inf)
    for frame in frames:
        atoms = ase.Atoms(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc)
        first, second, distance = neighbor_list("ijd", atoms, cutoff)
        number = np.bincount(first, minlength=len(atoms))
        place = (frame.numbers == 29).astype(int)
        np.minimum.at(shortest, (place[first], place[second]), distance)
        assert frame.forces is not None
        for row, element in enumerate(frame.numbers):
            counts[int(element)].append(number[row])
            forces[int(element)].append(float(np.linalg.norm(frame.forces[row])))
    assert domain.species.tolist() == [8, 29]
    np.testing.assert_allclose(domain.shortest, shortest, rtol=1e-6)
    for row, element in enumerate((8, 29)):
        expected = np.quantile(counts[element], [0.0, 0.001, 0.999, 1.0])
        np.testing.assert_allclose(domain.neighbors[row], expected, rtol=1e-6)
        assert float(domain.forces[row, 1]) == pytest.approx(max(forces[element]), rel=1e-6)
    assert bool(torch.isinf(domain.shortest[0, 0]))
    text = " ".join(domain.lines())
    assert "never near: O-O" in text
    assert f"O-Cu {shortest[0, 1]:.3f} A, Cu-Cu {shortest[1, 1]:.3f} A" in text
    card = (trained / "card.md").read_text()
    assert text in card.replace("\n- ", " ")
    metrics = json.loads((trained / "metrics.json").read_text())
    assert agreement_text("validation", metrics["uncertainty"]["validation"]) in card


@pytest.mark.parametrize("kind", ["mlp", "gated"])
def test_the_energy_is_linear_in_the_latent_features(kind: str) -> None:
    """The gradient by the weights of the last layer is their sum, times the scale."""
    torch.manual_seed(1)
    config = TensorNetConfig(
        species=(8, 29),
        channels=8,
        layers=1,
        cutoff=4.0,
        radial_basis=RadialBasisConfig(kind="expnorm", number=6),
        readout=ReadoutConfig(kind=kind, hidden=(5,)),  # type: ignore[arg-type]
    )
    potential = TensorNetPotential(config)
    potential.scale.fill_(2.0)
    frame = clusters(1)[0]
    latent, _ = of_structure(potential, System(frame.numbers, frame.positions))
    last = potential.readout.linears[-1] if kind == "mlp" else potential.readout.values[-1]
    step = 1e-3
    for number in range(5):
        energies = []
        for sign in (-1.0, 1.0):
            with torch.no_grad():
                last.weight[0, number] += sign * step
                energies.append(of_structure(potential, System(frame.numbers, frame.positions))[1])
                last.weight[0, number] -= sign * step
        slope = (energies[1] - energies[0]) / (2.0 * step)
        assert slope == pytest.approx(2.0 * float(latent[:, number].sum()), rel=1e-8)
    if kind == "gated":
        assert latent.shape[1] == 6  # and by the bias, the gate


def test_sigma_is_that_of_a_linear_regression() -> None:
    """Errors drawn from a linear model of known noise are found again, and so is their spread."""
    generator = np.random.default_rng(5)
    size, noise = 6, 0.3
    scales = np.array([3.0, 1.0, 0.3, 0.1, 0.02, 0.0])
    made = [
        np.column_stack([scales[:-1] * generator.normal(size=(n, 5)), np.ones(n)])
        for n in (4000, 3000, 3000)
    ]
    covariance = made[0].T @ made[0] / 4000
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    errors = [noise * (x @ root * generator.normal(size=x.shape)).sum(1) for x in made[1:]]
    factor = calibration_factor(made[0], made[1], errors[0])
    exact = noise * np.sqrt(np.einsum("ni,ij,nj->n", made[2], np.linalg.inv(covariance), made[2]))
    np.testing.assert_allclose(lengths(made[2], factor), exact, rtol=0.06)
    fit = agreement(lengths(made[2], factor), errors[1], np.ones(3000))
    assert fit["z_spread"] == pytest.approx(1.0, abs=0.06)
    assert fit["within_1_sigma"] == pytest.approx(0.683, abs=0.03)
    assert fit["within_2_sigma"] == pytest.approx(0.954, abs=0.02)
    assert fit["rank_correlation"] > 0.1
    assert factor.shape == (size, size)
    assert np.isnan(calibration_factor(made[0], made[1][:0], errors[0][:0])).all()


def test_sigma_grows_with_the_error(trained: Path) -> None:
    """Clusters rattled by more and more: sigma rises with them, and ranks their errors."""
    potential, domain = load(trained), domain_of(trained)
    generator = np.random.default_rng(7)
    base = clusters(2)
    sigma, error = [], []
    for rattle in np.linspace(0.0, 0.5, 60):
        frame = base[len(sigma) % 2]
        atoms = ase.Atoms(frame.numbers, frame.positions, calculator=EMT())
        atoms.positions += generator.normal(scale=rattle, size=atoms.positions.shape)
        latent, energy = of_structure(potential, System(atoms.numbers, atoms.positions))
        projected = domain.projected(latent, torch.from_numpy(atoms.numbers))
        sigma.append(float(projected.sum(0).norm()))
        error.append(abs(energy - atoms.get_potential_energy()))
    assert np.mean(sigma[40:]) > 2.0 * np.mean(sigma[:20])
    assert agreement(np.array(sigma), np.array(error), np.ones(60))["rank_correlation"] > 0.4


def test_the_command_measures_what_the_training_did(
    trained: Path, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    (folder / "domain.safetensors").unlink()
    assert load_domain(folder) is None
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps(metrics | {"uncertainty": None}))
    data = trained.parent / "set.h5"
    file = folder / "model.safetensors"
    refused = mdgraph_command("domain", file, data, folder / "split.json")
    assert refused.status == 1
    assert "give the folder of a training" in refused.err
    done = mdgraph_command("domain", folder, data, folder / "split.json", "--device", "cpu")
    assert done.status == 0, done.err
    assert "shortest distances: O-Cu" in done.out
    first, second = domain_of(trained), domain_of(folder)
    for field in fields(first):
        torch.testing.assert_close(
            getattr(first, field.name), getattr(second, field.name), rtol=1e-3, atol=1e-4
        )
    written = json.loads((folder / "metrics.json").read_text())
    assert written.keys() == metrics.keys()
    fit = written["uncertainty"]["validation"]
    assert fit == pytest.approx(metrics["uncertainty"]["validation"], rel=1e-3)
    assert fit["z_spread"] ** 2 + fit["z_mean"] ** 2 == pytest.approx(1.0, abs=0.01)


def test_a_domain_of_other_weights_or_a_damaged_one_is_not_taken(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    other = load(folder)
    other.shift.add_(1.0)
    save(other, folder / "model.safetensors", overwrite=True)
    with caplog.at_level(logging.WARNING):
        assert load_domain(folder / "model.safetensors") is None
    assert "belongs to other weights" in caplog.text
    save_file({}, folder / "domain.safetensors", {"mdgraph-domain": "2"})
    with pytest.raises(CheckpointError, match="of a kind that this mdgraph does not read"):
        load_domain(folder)
    (folder / "domain.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="measure it again with 'mdgraph domain'"):
        load_domain(folder)
