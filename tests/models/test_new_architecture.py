"""A pair potential of ten lines is an architecture by name, and no file of mdgraph is touched."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from ase.calculators.lj import LennardJones as Oracle
from ase.io import read
from torch import Tensor
from toys import argon

from mdgraph import Simulation, VelocityVerlet, load
from mdgraph.checkpoints import describe, save
from mdgraph.engine import Calculation
from mdgraph.errors import CheckpointError, InputError
from mdgraph.io.structures import to_ase
from mdgraph.models import Architecture, Atoms, PotentialConfig, PotentialModule, register
from mdgraph.models.architectures import ARCHITECTURES
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors import Pairs
from mdgraph.system import System
from mdgraph.train.setup import trainable

WORD = "lennard-jones"


class LennardJonesConfig(PotentialConfig):
    architecture: Literal["lennard-jones"] = "lennard-jones"
    cutoff: float


class LennardJones(PotentialModule):
    config: LennardJonesConfig

    def __init__(self, config: LennardJonesConfig) -> None:
        super().__init__(config)
        self.epsilon = torch.nn.Parameter(torch.tensor(0.01, dtype=torch.float64))
        self.sigma = torch.nn.Parameter(torch.tensor(3.4, dtype=torch.float64))

    @property
    def cutoffs(self) -> tuple[float, ...]:
        return (self.config.cutoff,)

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        energies = pairs[0].vectors[0].new_zeros(len(atoms.numbers))
        for block in pairs[0].blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            ratio, end = self.sigma / distance, self.sigma / self.config.cutoff
            energy = 4.0 * self.epsilon * (ratio**12 - ratio**6 - end**12 + end**6)
            inside = block.valid & (distance < self.config.cutoff)
            energies = energies + 0.5 * sum_slots(torch.where(inside, energy, 0.0))
        return energies.double()


@pytest.fixture
def lennard_jones(tmp_path: Path) -> Iterator[Path]:
    """A file of the architecture, which is known while a test runs."""
    register(Architecture(WORD, "Lennard-Jones", LennardJonesConfig, LennardJones))
    potential = LennardJones(LennardJonesConfig(species=(18,), cutoff=6.0, name="argon"))
    path = tmp_path / "argon.safetensors"
    save(potential, path)
    yield path
    del ARCHITECTURES[WORD]


@pytest.fixture
def structure() -> System:
    return argon(3)


def test_energies_and_forces_are_those_of_ase(lennard_jones: Path, structure: System) -> None:
    at = Calculation([structure], lennard_jones, device="cpu", precision="double")
    at.compute()
    atoms = to_ase(structure)
    atoms.calc = Oracle(epsilon=0.01, sigma=3.4, rc=6.0, smooth=False)
    np.testing.assert_allclose(float(at.state.energy[0]), atoms.get_potential_energy(), rtol=1e-10)
    np.testing.assert_allclose(at.state.forces.numpy(), atoms.get_forces(), atol=1e-12)


def test_a_simulation_conserves_energy(
    lennard_jones: Path, structure: System, caplog: pytest.LogCaptureFixture
) -> None:
    run = Simulation(structure, lennard_jones, VelocityVerlet(1.0), device="cpu", temperature=20.0)
    assert "Lennard-Jones has no fused form. The slower reference evaluator runs." in caplog.text
    before = run.observables().conserved_energy
    run.run(50)
    drift = run.observables().conserved_energy - before
    assert abs(float(drift[0])) < 1e-4 * len(structure)


def test_it_is_described_and_loaded_by_its_word(lennard_jones: Path) -> None:
    about = describe(lennard_jones)
    assert about["architecture"] == "Lennard-Jones"
    assert about["species"] == ["Ar"]
    assert about["cutoff_A"] == 6.0
    assert about["parameters"] == 2
    loaded = load(lennard_jones)
    assert isinstance(loaded, LennardJones)
    assert loaded.sigma.item() == 3.4


def test_an_unknown_word_is_refused_with_the_known_ones(
    lennard_jones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.delitem(ARCHITECTURES, WORD)
        message = "no architecture 'lennard-jones', only .*, tensornet2, .*; import the module"
        with pytest.raises(CheckpointError, match=message):
            load(lennard_jones)


def test_the_command_line_runs_it(
    lennard_jones: Path, structure: System, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    file, out = tmp_path / "argon.extxyz", tmp_path / "run"
    to_ase(structure).write(file)
    common = [file, "--potential", lennard_jones, "--device", "cpu"]
    options = ["--ensemble", "nve", "--temperature-K", 20, "--steps", 20, "--out", out]
    done = mdgraph_command("md", *common, *options)
    assert done.status == 0, done.err
    assert "About " in done.err
    record = json.loads((out / "run.json").read_text())
    assert record["potential"]["architecture"] == "Lennard-Jones"
    done = mdgraph_command("md", "--resume", "--steps", 30, "--out", out)
    assert done.status == 0, done.err
    energies = tmp_path / "energies.extxyz"
    assert mdgraph_command("eval", *common, "--out", energies).status == 0
    evaluated = read(energies)
    at = Calculation([structure], lennard_jones, device="cpu")
    at.compute()
    assert evaluated.get_potential_energy() == pytest.approx(float(at.state.energy[0]), rel=1e-6)


def test_what_it_lacks_is_said(
    lennard_jones: Path, structure: System, mdgraph_command: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match=r"Lennard-Jones has no fused form\. Choose the evaluator"):
        Calculation([structure], lennard_jones, device="cpu", evaluator="fused")
    with pytest.raises(InputError, match="is of the architecture lennard-jones, which is not"):
        trainable(load(lennard_jones), "argon")
    with pytest.raises(InputError, match="There is an architecture 'lennard-jones' already"):
        register(Architecture(WORD, "Another", LennardJonesConfig, LennardJones))
