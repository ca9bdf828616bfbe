"""TorchScript modules for TorchForce, against the reference in float64."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openmm_water import EV, charged, positions

from mdgraph.checkpoints import load
from mdgraph.drivers.torchforce import export_torchforce
from mdgraph.engine import Calculation
from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.io.structures import read_system
from mdgraph.models import TensorNetPotential
from mdgraph.system import System

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def water(cell: Any = None, molecules: int = 4, **options: Any) -> System:
    periodic = cell is not None
    return System(
        numbers=[8, 1, 1] * molecules,
        positions=positions(molecules),
        cell=cell if periodic else np.zeros((3, 3)),
        pbc=[periodic] * 3,
        **options,
    )


CUBE = 7.5 * np.eye(3)
SKEW = np.array([[4.6, 0, 0], [1.4, 7.3, 0], [-2.0, 3.1, 7.6]])
"""Reached over by the cutoff in several images."""


def exported(
    potential: TensorNetPotential, system: System, folder: Path, **options: Any
) -> torch.jit.ScriptModule:
    path = folder / "potential.pt"
    path.unlink(missing_ok=True)
    export_torchforce(potential, system, path, **({"precision": "double"} | options))
    return torch.jit.load(path)


def called(module: Any, system: System, **options: Any) -> tuple[float, np.ndarray]:
    """Energy and forces as TorchForce takes them, kJ/mol and nm."""
    kind = options.get("dtype", torch.float64)
    places = torch.tensor(system.positions / 10.0, dtype=kind, requires_grad=True)
    arguments = [places]
    if system.pbc.any():
        arguments.append(torch.tensor(system.cell / 10.0, dtype=kind))
    if "charge" in options:
        arguments.append(torch.tensor(options["charge"]))
    # Each module is called a few times only, too few for TorchScript to make it faster.
    with torch.jit.optimized_execution(False):
        result = module(*arguments)
        if isinstance(result, tuple):
            return float(result[0]), result[1].numpy()
        result.backward()
    return result.item(), -places.grad.numpy()


def expected(potential: TensorNetPotential, system: System) -> tuple[float, np.ndarray]:
    calculation = Calculation(
        [system], potential, device="cpu", precision="double", evaluator="reference"
    )
    calculation.compute()
    state = calculation.state
    return float(state.energy[0]) * EV, state.forces.numpy() * EV * 10.0


def agree(found: tuple[float, np.ndarray], right: tuple[float, np.ndarray], rel: float) -> None:
    assert found[0] == pytest.approx(right[0], rel=rel)
    scale = np.abs(right[1]).max()
    assert scale > 1.0
    np.testing.assert_allclose(found[1], right[1], atol=rel * scale)


@pytest.mark.parametrize(
    ("cell", "forces"), [(CUBE, False), (SKEW, False), (SKEW, True), (None, False), (None, True)]
)
def test_energies_and_forces_are_right_wherever_the_atoms_go(
    tiny_potential: Path, tmp_path: Path, cell: Any, forces: bool
) -> None:
    """Also as OpenMM moves them: by lattice vectors, in a box of another size."""
    potential, system = load(tiny_potential), water(cell)
    module = exported(potential, system, tmp_path, forces=forces)
    generator = np.random.default_rng(6)
    for scale in (1.0, 0.95, 1.1):
        moved = scale * system.positions + generator.normal(scale=0.05, size=(12, 3))
        moved = moved + generator.integers(-2, 3, size=(12, 3)) @ system.cell * scale
        other = system.replace(positions=moved, cell=system.cell * scale)
        agree(called(module, other), expected(potential, other), 1e-9)
    agree(called(module, other, dtype=torch.float32), expected(potential, other), 1e-4)


@pytest.mark.parametrize("cutoff", [None, 5.0])
def test_the_charge_can_be_a_global_parameter(tmp_path: Path, cutoff: float | None) -> None:
    potential = charged(cutoff)
    system = water(None if cutoff is None else CUBE, charge=1.0)
    module = exported(potential, system, tmp_path)
    agree(called(module, system), expected(potential, system), 1e-9)
    neutral = system.replace(charge=0.0)
    agree(called(module, system, charge=0.0), expected(potential, neutral), 1e-9)
    assert abs(called(module, system)[0] - called(module, neutral, charge=0.0)[0]) > 0.1


def crowded() -> tuple[System, System]:
    """Molecules apart, whose slots are too few for all of them in one place."""
    system = water(40.0 * np.eye(3)).replace(positions=positions() * 5.0)
    return system, system.replace(positions=positions() * 0.3)


def shrunk() -> tuple[System, System]:
    """A box that needs more images than it did."""
    system = water(CUBE)
    return system, system.replace(cell=0.5 * CUBE)


@pytest.mark.parametrize("make", [crowded, shrunk])
@pytest.mark.parametrize("forces", [False, True])
def test_an_overflow_makes_energy_and_all_forces_nan(
    tiny_potential: Path, tmp_path: Path, make: Callable[[], Any], forces: bool
) -> None:
    """Energy and each component of each force, so that no run goes on with half of them."""
    good, bad = make()
    module = exported(load(tiny_potential), good, tmp_path, forces=forces)
    assert np.isfinite(called(module, good)[0])
    energy, found = called(module, bad)
    assert np.isnan(energy)
    assert np.isnan(found).all()


def test_an_overflow_makes_the_force_of_an_isolated_atom_nan(
    tiny_potential: Path, tmp_path: Path
) -> None:
    far = positions()
    far[0] += 100.0
    system = water().replace(positions=far)
    module = exported(load(tiny_potential), system, tmp_path)
    assert not called(module, system)[1][0].any()
    places = far.copy()
    places[5, 0] = np.nan
    module_input = torch.tensor(places / 10.0, requires_grad=True)
    energy = module(module_input)
    energy.backward()
    assert torch.isnan(energy)
    assert torch.isnan(module_input.grad).all()


def test_the_command_writes_a_module(
    mdgraph_command: Callable[..., Any], tiny_potential: Path, water_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.pt"
    arguments = ["export", tiny_potential, path, "--torchforce", "--structure", water_file]
    done = mdgraph_command(*arguments, "--forces")
    assert done.status == 0, done.err
    extra = {"mdgraph.json": ""}
    module = torch.jit.load(path, _extra_files=extra)
    assert json.loads(extra["mdgraph.json"])["atoms"] == 6
    energy, forces = called(module, read_system(water_file))
    assert np.isfinite(energy)
    assert forces.shape == (6, 3)
    assert "exists" in mdgraph_command(*arguments).err
    assert "--torchforce --structure FILE" in mdgraph_command("export", tiny_potential, "x.pt").err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pbc": [True, True, False]}, "all directions or in none"),
        ({"numbers": [6] * 12}, "does not know C"),
    ],
)
def test_invalid_structures_are_refused(
    tiny_potential: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(MDGraphError, match=message):
        exported(load(tiny_potential), water(CUBE).replace(**change), tmp_path)


def test_errors_of_the_disk_end_in_one_sentence(
    mdgraph_command: Callable[..., Any], tiny_potential: Path, water_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    options = ["--torchforce", "--structure", water_file]
    missing = mdgraph_command("export", tiny_potential, folder / "none" / "out.pt", *options)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        full = mdgraph_command("export", tiny_potential, folder / "out.pt", *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    reasons = ("there is no such file or folder", "the file would exceed the largest size allowed")
    for done, reason in zip((missing, full), reasons, strict=True):
        assert done.status == 1
        assert done.err.count("\n") == 1
        assert reason in done.err
    assert not list(folder.iterdir())


def test_too_many_atoms_and_existing_files_are_refused(
    tiny_potential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdgraph.drivers.torchforce.LARGEST", 10)
    with pytest.raises(InputError, match="12 are too many"):
        exported(load(tiny_potential), water(), tmp_path)
    (tmp_path / "there.pt").touch()
    with pytest.raises(FileError, match="exists"):
        export_torchforce(load(tiny_potential), water(), tmp_path / "there.pt")
