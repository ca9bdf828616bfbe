"""The script behind water-pbe0: its clusters, the sets it makes, and how it counts neighbors."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import numpy as np
import pytest
from repository import ROOT

from mdgraph.data import (
    LabelledFrame,
    Provenance,
    Split,
    open_dataset,
    read_split,
    write_dataset,
)
from mdgraph.data.splits import write_split

CLUSTERS = ROOT / "potentials/water-pbe0/clusters.extxyz"


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("water_pbe0")


def test_clusters_that_ship_are_those_that_the_script_draws(module: ModuleType) -> None:
    clusters = ase.io.read(CLUSTERS, ":")
    rest = clusters[0].get_potential_energy()
    for atoms in clusters:
        assert atoms.get_potential_energy() - len(atoms) // 3 * rest <= module.HIGHEST
        assert np.abs(atoms.get_forces().sum(0)).max() < 0.05  # of a grid
    random = np.random.default_rng(7)
    drawn = list(module.molecules(random))
    alone = [atoms.positions for atoms in clusters if len(atoms) == 3]
    np.testing.assert_allclose(alone[1:], drawn, atol=1e-7)
    pairs = [atoms.positions for atoms in clusters if len(atoms) == 6]
    assert len(pairs) == 40
    following = (module.pair(random) for _ in range(60))
    left = list(pairs)
    for positions in following:
        if left and np.allclose(left[0], positions, atol=1e-7):
            left.pop(0)
    assert not left


def test_clusters_of_the_small_potential_are_what_its_teacher_says(
    module: ModuleType, tmp_path: Path
) -> None:
    options = argparse.Namespace(clusters=tmp_path / "clusters.extxyz", potential="water-pbe0")
    module.taught(options)
    shipped = ase.io.read(ROOT / "potentials/water-pbe0-small/clusters.extxyz", ":")
    drawn = ase.io.read(options.clusters, ":")
    assert len(drawn) == len(shipped) == 136
    for one, other in zip(drawn, shipped, strict=True):
        np.testing.assert_allclose(one.positions, other.positions, atol=1e-6)
        np.testing.assert_allclose(one.get_forces(), other.get_forces(), atol=1e-3)
        assert one.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-4)
        assert one.info["kind"] == other.info["kind"]


def test_energies_of_one_potential_stay_what_they_are(module: ModuleType, tmp_path: Path) -> None:
    clusters = ROOT / "potentials/water-pbe0-small/clusters.extxyz"
    first, *_ = ase.io.read(clusters, ":")
    frame = LabelledFrame(
        first.numbers, first.positions, energy=-7.0, forces=np.zeros((3, 3)), group="liquid"
    )
    data, split = tmp_path / "set.h5", tmp_path / "split.json"
    write_dataset(data, [([frame] * 3, Provenance("liquid", licence="LGPL-3.0"))])
    with open_dataset(data) as liquid:
        parts = (np.array([0]), np.array([1, 2]), np.array([], dtype=np.int64))
        write_split(Split(*parts, "by hand", liquid.sha256()), split)
    options = argparse.Namespace(data=data, split=split, clusters=clusters, copies=4)
    options.as_labelled = True
    module.add(options)
    with open_dataset(tmp_path / "set-4.h5") as whole:
        assert len(whole) == 3 + 4 * 136
        assert whole.frame(3).energy == pytest.approx(first.get_potential_energy(), abs=1e-9)
        assert {source.licence for source in whole.sources} == {"LGPL-3.0"}
        assert read_split(tmp_path / "set-4.json", whole).validation.tolist() == [1, 2]


def test_clusters_lie_above_the_liquid_by_what_vaporization_takes(
    module: ModuleType,
    datasets_folder: Path,
    tmp_path: Path,
    mdgraph_command: Callable[..., Any],
) -> None:
    data = tmp_path / "water.h5"
    source = datasets_folder / "water_pbe0" / "train.extxyz.gz"
    assert mdgraph_command("data", "convert", source, data).status == 0
    split = ROOT / "potentials/water-pbe0/split.json"
    module.add(
        argparse.Namespace(data=data, split=split, clusters=CLUSTERS, copies=2, as_labelled=False)
    )
    with open_dataset(data) as liquid, open_dataset(tmp_path / "water-2.h5") as whole:
        assert len(whole) == len(liquid) + 2 * 201
        mean = np.mean([frame.energy / 64 for frame in liquid.frames(np.arange(len(liquid)))])
        first, again, second = whole.frames(np.arange(len(liquid), len(liquid) + 3))
        assert first.energy - mean == pytest.approx(0.43, abs=1e-6)
        assert again.energy == first.energy < second.energy
        parts = read_split(tmp_path / "water-2.json", whole)
        assert parts.validation.tolist() == read_split(split, liquid).validation.tolist()
        assert len(parts.train) == 256 + 2 * 201


def test_one_command_makes_the_whole_chain_and_goes_on(
    module: ModuleType, datasets_folder: Path, tmp_path: Path
) -> None:
    every = list(module.chain(datasets_folder, tmp_path, "cpu"))
    said = [[Path(word).name for word in words if not word.startswith("-")] for words in every]
    assert [words[3] for words in said if words[2] == "data"] == ["convert", "split", "check"]
    assert [words[-1] for words in said if words[2] == "add"] == ["20", "5"]
    trained = [words[3] for words in said if words[2] == "train"]
    assert trained == ["train.yaml", "molecules.yaml", "liquid.yaml", "references.yaml"]
    assert all(Path(words[4]).is_file() for words in every if words[3] == "train")
    assert str(CLUSTERS) in every[3]
    # A training that is done is left out, and one that was stopped goes on.
    for name in ("water.h5", "water.json", "water-20.json", "water-first/report.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    stopped = tmp_path / "water-molecules/checkpoint.safetensors"
    stopped.parent.mkdir()
    stopped.touch()
    check, add, molecules, liquid, references = module.chain(datasets_folder, tmp_path, "cpu")
    assert "check" in check
    assert add[-1] == "5"
    assert molecules[4:6] == [str(stopped.with_name("train.yaml")), "--resume"]
    assert liquid[4].endswith("liquid.yaml")
    assert references[4].endswith("references.yaml")


def test_an_ideal_gas_has_no_structure(module: ModuleType) -> None:
    random = np.random.default_rng(1)
    frames = [
        LabelledFrame(
            np.full(20, 8), random.uniform(0, 12.0, (20, 3)), 12.0 * np.eye(3), np.full(3, True)
        )
        for _ in range(400)
    ]
    counted = module.g_oo(frames)[40:]
    assert counted.mean() == pytest.approx(1.0, abs=0.02)


def test_distance_of_two_sets_is_told_without_what_their_scatter_makes(module: ModuleType) -> None:
    random = np.random.default_rng(2)
    step = np.where(np.arange(200) % 20 < 10, 0.05, -0.05)
    one, other = random.normal(1.0, 0.1, (16, 200)), random.normal(1.0, 0.1, (8, 200))
    equal = module.distance(one, other)
    assert equal.of_scatter == pytest.approx(0.043, rel=0.05)
    assert equal.seen == pytest.approx(equal.of_scatter, rel=0.15)
    assert equal.interval[0] == 0.0 < equal.interval[1] < 0.04
    apart = module.distance(one + step, other)
    assert 0.02 < apart.interval[0] < 0.05 < apart.interval[1] < 0.06
    assert apart.beyond == pytest.approx(0.05, rel=0.1)
    assert apart.seen**2 == pytest.approx(apart.beyond**2 + apart.of_scatter**2)


def test_frames_scatter_as_stretches_of_their_time(
    module: ModuleType,
    datasets_folder: Path,
    tmp_path: Path,
    mdgraph_command: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, out = tmp_path / "water.h5", tmp_path / "liquid.npz"
    source = datasets_folder / "water_pbe0" / "train.extxyz.gz"
    assert mdgraph_command("data", "convert", source, data).status == 0
    with open_dataset(data) as liquid:
        mean = module.g_oo(list(liquid.frames(np.arange(len(liquid)))))
    record = {"g_oo": np.stack([mean] * 3)[None], "kelvin": np.array([330.0]), "steps": 1000}
    np.savez(out, **record)
    split = ROOT / "potentials/water-pbe0/split.json"
    module.liquid(
        argparse.Namespace(data=data, split=split, out=out, kelvin=[330.0], starts=3, pictures=None)
    )
    fine, coarse = (line for line in capsys.readouterr().out.splitlines() if "scatter" in line)
    # Frames shuffled over the stretches have 0.021 and 0.014.
    assert "bins of 0.05 A: 0.0000 RMS" in fine
    assert "scatter makes 0.029" in fine
    assert "scatter makes 0.023" in coarse
