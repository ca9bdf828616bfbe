"""The spread of a committee and the sigma of a last layer, in files and in runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from repository import ROOT

from mdgraph.checkpoints import load, load_domain, save, save_domain
from mdgraph.drivers.ase import CommitteeCalculator, MDGraphCalculator
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.io.structures import read_system
from mdgraph.models import (
    Atoms,
    Domain,
    RadialBasisConfig,
    ReadoutConfig,
    TensorNetConfig,
    TensorNetPotential,
)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three potentials of hydrogen and oxygen; the first knows its domain."""
    place = tmp_path_factory.mktemp("ensemble")
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        config = TensorNetConfig(
            species=(1, 8),
            channels=8,
            layers=1,
            cutoff=3.0,
            radial_basis=RadialBasisConfig(number=8),
            readout=ReadoutConfig(hidden=(4,)),
            name=f"seed-{seed}",
        )
        potential = TensorNetPotential(config)
        potential.scale.fill_(3.0)
        folder = place / f"seed-{seed}"
        folder.mkdir()
        save(potential, folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    wide = torch.tensor([[0.0, 0.0, 50.0, 50.0]] * 2, dtype=torch.float64)
    domain = Domain(
        species=torch.tensor([1, 8]),
        neighbors=wide,
        shortest=torch.full((2, 2), 0.1, dtype=torch.float64),
        forces=torch.full((2, 2), 1e4, dtype=torch.float64),
        mean=random(2, 4),
        factor=random(5, 5),
        sigma=torch.full((2, 2), 1e3, dtype=torch.float64),
    )
    save_domain(domain, place / "seed-1")
    return place


def test_eval_writes_means_and_spread(
    ensemble: Path, water_file: Path, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """As three calculators give them one by one; a folder stands for its members."""
    frames = [ase.io.read(water_file) for _ in range(3)]
    generator = np.random.default_rng(0)
    for frame in frames:
        frame.positions += generator.normal(scale=0.1, size=(6, 3))
    ase.io.write(tmp_path / "frames.xyz", frames)
    members = sorted(ensemble.iterdir())
    calculators = [MDGraphCalculator(one, device="cpu", check=False) for one in members]
    options = ["--device", "cpu", "--no-check", "--overwrite", "--out", tmp_path / "found.xyz"]
    listed = [word for one in members for word in ("--committee", one)]
    for chosen in (["--committee", ensemble], listed):
        done = mdgraph_command("eval", tmp_path / "frames.xyz", *options, *chosen)
        assert done.status == 0, done.err
        found = ase.io.read(tmp_path / "found.xyz", ":")
        spreads = []
        for frame, written in zip(frames, found, strict=True):
            energies, forces, stresses = [], [], []
            for calculator in calculators:
                frame.calc = calculator
                energies.append(frame.get_potential_energy())
                forces.append(frame.get_forces())
                stresses.append(frame.get_stress())
            assert written.get_potential_energy() == pytest.approx(np.mean(energies), abs=1e-6)
            np.testing.assert_allclose(written.get_forces(), np.mean(forces, 0), atol=1e-5)
            np.testing.assert_allclose(written.get_stress(), np.mean(stresses, 0), atol=1e-6)
            expected = np.sqrt(np.var(forces, axis=0, ddof=1).sum(1))
            np.testing.assert_allclose(written.arrays["forces_std"], expected, atol=1e-5)
            spread = written.info["energy_std"]
            assert spread == pytest.approx(np.std(energies, ddof=1), abs=1e-6)
            spreads.append(expected)
        frame, atom = np.unravel_index(np.argmax(spreads), (3, 6))
        name = f"force on {frames[frame].symbols[atom]} {atom} of {tmp_path / 'frames.xyz'}"
        assert f"{name}, frame {frame}, {np.max(spreads):.3g} eV/A" in done.err


def test_eval_writes_sigma(
    ensemble: Path, water_file: Path, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    out = tmp_path / "found.xyz"
    options = ["--device", "cpu", "--no-check", "--out", out, "--sigma", "--precision", "double"]
    done = mdgraph_command("eval", water_file, *options, "--potential", ensemble / "seed-1")
    assert done.status == 0, done.err
    written = ase.io.read(out)
    potential, domain = load(ensemble / "seed-1"), load_domain(ensemble / "seed-1")
    assert domain is not None
    now = Calculation([read_system(water_file)], potential, device="cpu", precision="double")
    state = now.state
    atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
    with torch.no_grad():
        pairs = tuple(one.pairs(state.positions, state.cell) for one in now.lists)
        latent = potential.latent(atoms, pairs).numpy()
    rows = (written.numbers == 8).astype(int)
    padded = np.column_stack([latent - domain.mean.numpy()[rows], np.ones(6)])
    inverse = domain.factor.numpy().T @ domain.factor.numpy()
    expected = np.sqrt(np.einsum("ni,ij,nj->n", padded, inverse, padded))
    np.testing.assert_allclose(written.arrays["energies_sigma"], expected, rtol=1e-6)
    total = padded.sum(0)
    assert written.info["energy_sigma"] == pytest.approx(np.sqrt(total @ inverse @ total), rel=1e-6)
    assert f"least, its energy by {expected.max():.3g} eV" in done.err
    assert "0 of 1 frames hold atoms in surroundings unlike those of training" in done.err

    done = mdgraph_command(
        "eval", water_file, *options, "--overwrite", "--potential", ensemble / "seed-2"
    )
    assert done.status == 1
    assert "measure it on its training set with 'mdgraph domain'" in done.err


def test_the_committee_calculator_gives_means_and_spread(ensemble: Path, water_file: Path) -> None:
    members = sorted(ensemble.iterdir())
    options: dict[str, Any] = {"device": "cpu", "check": False}
    committee = CommitteeCalculator(members, **options)
    frame = ase.io.read(water_file)
    for shift in (0.0, 0.1):
        frame.positions[1, 0] += shift
        energies, forces, stresses = [], [], []
        for one in members:
            frame.calc = MDGraphCalculator(one, **options)
            energies.append(frame.get_potential_energy())
            forces.append(frame.get_forces())
            stresses.append(frame.get_stress())
        frame.calc = committee
        assert frame.get_potential_energy() == pytest.approx(np.mean(energies), abs=1e-9)
        np.testing.assert_allclose(frame.get_forces(), np.mean(forces, 0), atol=1e-9)
        np.testing.assert_allclose(frame.get_stress(), np.mean(stresses, 0), atol=1e-9)
        apart = np.array(forces) - np.mean(forces, 0)
        expected = np.sqrt((apart**2).sum((0, 2)) / 2)
        np.testing.assert_allclose(committee.get_property("forces_std", frame), expected, atol=1e-9)
        assert committee.results["energy_std"] == pytest.approx(np.std(energies, ddof=1))
    with pytest.raises(InputError, match="at least two members, and 1 is given"):
        CommitteeCalculator(members[:1])


def test_a_committee_needs_two_potentials(
    ensemble: Path, water_file: Path, mdgraph_command: Callable[..., Any]
) -> None:
    same = [ensemble / "seed-1", "--committee", ensemble / "seed-2" / ".." / "seed-1"]
    for members, text in (
        ([ensemble / "seed-1"], "committee has two potentials or more"),
        (same, "All members of the committee have the same weights"),
    ):
        done = mdgraph_command("eval", water_file, "--no-check", "--committee", *members)
        assert done.status == 1
        assert text in done.err


def test_a_run_with_an_invalid_committee_writes_nothing(
    ensemble: Path, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    members = [word for one in ("water-pbe0", tmp_path / "none") for word in ("--committee", one)]
    options = ["--device", "cpu", "--no-check", "--steps", "2", "--out", tmp_path / "run"]
    done = mdgraph_command("md", *members, *options)
    assert done.status == 1
    assert str(tmp_path / "none") in done.err
    asked = ["--potential", ensemble / "seed-2", "--uncertainty-interval", "2"]
    (tmp_path / "water.xyz").write_text("3\n\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n")
    done = mdgraph_command("md", tmp_path / "water.xyz", *asked, *options)
    assert done.status == 1
    assert "measure it on its training set with 'mdgraph domain'" in done.err
    assert not (tmp_path / "run").exists()


def test_a_run_writes_the_spread_and_stops_beyond_the_limit(
    ensemble: Path,
    water_file: Path,
    tmp_path: Path,
    mdgraph_command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are those of eval on the frames of the trajectory; the run itself moves as without."""
    monkeypatch.chdir(tmp_path)
    run = ["md", water_file, "--potential", ensemble / "seed-1", "--device", "cpu", "--no-check"]
    run += ["--trajectory", "extxyz", "--chunk", "5", "--trajectory-interval", "10"]
    asked = ["--committee", ensemble, "--uncertainty-interval", "10"]
    done = mdgraph_command(*run, *asked, "--steps", "30", "--out", "asked")
    assert done.status == 0, done.err
    plain = mdgraph_command(*run, "--steps", "30", "--out", "plain")
    assert plain.status == 0, plain.err
    ends = [ase.io.read(tmp_path / name / "end.extxyz") for name in ("asked", "plain")]
    np.testing.assert_array_equal(ends[0].positions, ends[1].positions)
    table = np.genfromtxt(tmp_path / "asked" / "uncertainty.csv", delimiter=",", names=True)
    assert table["step"].tolist() == [10, 20, 30]
    frames = tmp_path / "asked" / "trajectory.extxyz"
    evaluated = ["eval", frames, "--committee", ensemble, "--sigma", "--device", "cpu"]
    assert mdgraph_command(*evaluated, "--no-check", "--out", "found.xyz").status == 0
    found = ase.io.read(tmp_path / "found.xyz", ":")[1:]
    for row, frame in zip(table, found, strict=True):
        assert row["energy_std_eV"] == pytest.approx(frame.info["energy_std"], abs=1e-5)
        assert row["energy_sigma_eV"] == pytest.approx(frame.info["energy_sigma"], rel=1e-4)
        for name, column in (("force", "forces_std"), ("atom", "energies_sigma")):
            largest = frame.arrays[column].max()
            unit = "std_eV_per_A" if name == "force" else "sigma_eV"
            assert row[f"largest_{name}_{unit}"] == pytest.approx(largest, rel=1e-3)
        assert int(row["force_std_atom"]) == frame.arrays["forces_std"].argmax()
        assert int(row["sigma_atom"]) == frame.arrays["energies_sigma"].argmax()

    limit = ["--force-spread-limit-eV-per-A", "1e-9", "--on-extrapolation", "stop"]
    stopped = mdgraph_command(*run, *asked, *limit, "--steps", "30", "--out", "stopped")
    assert stopped.status == 1
    assert "At step 10 the committee is" in stopped.err
    resumed = mdgraph_command("md", "--resume", "--out", "stopped", "--on-extrapolation", "warn")
    assert resumed.status == 0, resumed.err
    again = np.genfromtxt(tmp_path / "stopped" / "uncertainty.csv", delimiter=",", names=True)
    np.testing.assert_array_equal(again, table)

    done = mdgraph_command(*run, "--steps", "5", "--force-spread-limit-eV-per-A", "1", "--out", "x")
    assert done.status == 1
    assert "needs a committee" in done.err


def test_hot_water_has_a_larger_sigma_than_the_liquid(
    tmp_path: Path, mdgraph_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped potential's last layer is sure of its start, and not of water at 3000 K."""
    monkeypatch.chdir(tmp_path)
    water = ROOT / "data" / "water27.extxyz"
    run = ["md", water, "--device", "cpu", "--no-check", "--steps", "40", "--new-velocities"]
    run += ["--uncertainty-interval", "20", "--log-interval", "20", "--trajectory-interval", "20"]
    calm = mdgraph_command(*run, "--temperature-K", "300", "--out", "calm")
    assert calm.status == 0, calm.err
    assert "unlike" not in calm.err
    hot = mdgraph_command(*run, "--temperature-K", "3000", "--out", "hot")
    assert hot.status == 0, hot.err
    assert hot.err.count("whose surroundings are unlike those of training") == 1
    sigma = [
        np.genfromtxt(tmp_path / name / "uncertainty.csv", delimiter=",", names=True)
        for name in ("calm", "hot")
    ]
    assert sigma[1]["energy_sigma_eV"][-1] > 5.0 * sigma[0]["energy_sigma_eV"][-1]
    stopped = mdgraph_command(*run, "--temperature-K", "3000", "--on-extrapolation", "stop",
                              "--no-monitor-domain", "--out", "stopped")  # fmt: skip
    assert stopped.status == 1
    assert "At step 20 the last layer is unsure of" in stopped.err


@pytest.mark.gpu
def test_captured_batches_give_the_spread_and_sigma_of_the_cpu(
    ensemble: Path, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """Enough frames for buffers and a graph of every evaluator."""
    generator = np.random.default_rng(4)
    water = ase.io.read(ROOT / "data" / "water27.extxyz")
    frames = []
    for _ in range(120):
        frames.append(water.copy())
        frames[-1].positions += generator.normal(scale=0.05, size=(81, 3))
    ase.io.write(tmp_path / "frames.xyz", frames)
    found = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.xyz"
        options = ["--committee", ensemble, "--sigma", "--device", device, "--out", out]
        done = mdgraph_command("eval", tmp_path / "frames.xyz", *options)
        assert done.status == 0, done.err
        found[device] = ase.io.read(out, ":")
    for one, other in zip(found["cpu"], found["cuda"], strict=True):
        for name in ("energy_std", "energy_sigma"):
            assert other.info[name] == pytest.approx(one.info[name], rel=1e-3, abs=1e-4)
        for name in ("forces_std", "energies_sigma"):
            np.testing.assert_allclose(other.arrays[name], one.arrays[name], rtol=1e-3, atol=1e-4)
