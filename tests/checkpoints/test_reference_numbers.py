"""Published checkpoints give the numbers of the programs that published them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from random_networks import evaluated, lists_for

from mdgraph import load
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import TensorNetPotential
from mdgraph.state import State
from mdgraph.system import System

# Checkpoint and, after two underscores, system: the names of the files.
TORCHMDNET = (
    "aceff-1.1__ala2_explicit_pbc",
    "aceff-1.1__toluene",
    "aceff-2.0-allpairs__toluene",
    "aceff-2.0-rf12__ala2_explicit_pbc",
    "aceff-2.0-rf12__toluene",
    "o3-2l__toluene",
    "o3-2l__water_triclinic",
    "so3-1l-atomref__toluene",
    "so3-1l-atomref__water_triclinic",
)
MATGL = tuple(
    f"{checkpoint}__{system}"
    for checkpoint in ("TensorNet-MatPES-PBE-v2025.1-PES", "mgl-gauss-o3")
    for system in ("cu_slab", "ethanol_gas", "nacl64", "si2_primitive")
)
CASES = [Path("torchmdnet", name) for name in TORCHMDNET] + [Path("matgl", name) for name in MATGL]

# Type of the network; eV an atom; RMS forces at the worst atom; eV/A^3.
TOLERANCES = {
    "double": (torch.float64, 1e-10, 1e-9, 1e-10),
    "mixed": (torch.float32, 2e-6, 1e-4, 1e-6),
}


@cache
def reference_potential(folder: Path, name: str) -> TensorNetPotential:
    """What the first part of a case's name stands for."""
    if (folder / name).is_dir():
        return load(folder / name)
    if name.endswith("-rf12"):
        return load(folder / f"{name.removesuffix('-rf12')}.ckpt").with_coulomb_cutoff(12.0)
    return load(folder / f"{name.removesuffix('-allpairs')}.ckpt")


def test_every_reference_file_has_a_case(reference_folder: Path) -> None:
    found = {path.relative_to(reference_folder) for path in reference_folder.rglob("*.npz")}
    assert found == {case.with_name(f"{case.name}.npz") for case in CASES}


def published(
    reference_folder: Path, case: Path
) -> tuple[TensorNetPotential, System, Mapping[str, NDArray[Any]]]:
    """Potential, system and expected numbers of a case."""
    folder = reference_folder / case.parent
    expected = np.load(folder / f"{case.name}.npz")
    system = System(
        expected["numbers"],
        expected["positions"],
        cell=expected["cell"],
        pbc=expected["pbc"],
        charge=float(expected["charge"]) if "charge" in expected else None,
    )
    return reference_potential(folder, case.name.split("__")[0]), system, expected


# These numbers were computed before the scale and the references were rounded for the file.
UNROUNDED = ("mgl-gauss-o3", 1e-7, 1e-6, 1e-7)


# Up to a minute each of 2,269 atoms, which the fused form computes below; smaller periodic systems
# have all digits here.
LONG = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        pytest.param(
            case,
            precision,
            marks=[LONG] if case.name.endswith("explicit_pbc") else [],
            id=f"{case.name}-{precision}",
        )
        for case in CASES
        for precision in TOLERANCES
    ],
)
def test_energy_forces_and_stress_are_those_of_the_reference_files(
    reference_folder: Path, case: Path, precision: str
) -> None:
    kind, energy_error, force_error, stress_error = TOLERANCES[precision]
    if precision == "double" and case.name.startswith(UNROUNDED[0]):
        energy_error, force_error, stress_error = UNROUNDED[1:]
    potential, system, expected = published(reference_folder, case)
    state = evaluated(potential, system, kind=kind)
    assert abs(state.energy.item() - expected["energy"]) < energy_error * len(system)
    difference = np.linalg.norm(state.forces.numpy() - expected["forces"], axis=1)
    assert difference.max() < force_error * np.sqrt(np.mean(expected["forces"] ** 2))
    if "stress" in expected and system.pbc.all():
        stress = -state.virial[0].numpy() / system.volume
        np.testing.assert_allclose(stress, expected["stress"], rtol=0, atol=stress_error)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fused_form_agrees_with_the_reference_files(reference_folder: Path, case: Path) -> None:
    potential, system, expected = published(reference_folder, case)
    state = State([system])
    FusedTensorNet(potential).evaluate_(state, lists_for(state, potential))
    assert abs(state.energy.item() - expected["energy"]) < 1e-6 * len(system)
    difference = state.forces.numpy() - expected["forces"]
    scale = np.sqrt(np.mean(expected["forces"] ** 2))
    assert np.sqrt(np.mean(difference**2)) < 1e-5 * scale
    assert np.linalg.norm(difference, axis=1).max() < 1e-4 * scale
    if "stress" in expected and system.pbc.all():
        stress = -state.virial[0].numpy() / system.volume
        np.testing.assert_allclose(stress, expected["stress"], rtol=0, atol=1e-6)
