"""Data sets: what goes in comes out, what is wrong stays out, and commands make them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.db
import ase.io
import h5py
import numpy as np
import pytest
from copper_frames import copper, labelled, written
from prepared import ended

from mdgraph.data import LabelledFrame, Provenance, open_dataset, write_dataset
from mdgraph.errors import FileError, InputError


def test_everything_comes_back_and_more_can_be_added(tmp_path: Path) -> None:
    path, generator = tmp_path / "set.h5", np.random.default_rng(1)
    full = LabelledFrame(
        numbers=np.array([14, 8]),
        positions=generator.normal(size=(2, 3)),
        cell=generator.normal(size=(3, 3)),
        pbc=np.array([True, False, True]),
        energy=-1234.5678901234567,
        forces=generator.normal(size=(2, 3)),
        stress=generator.normal(size=(3, 3)),
        dipole=generator.normal(size=3),
        charge=-1.0,
        weight=0.25,
        force_weights=np.array([0.5, 0.0]),
        group="glass",
    )
    frames = [labelled(one) for one in copper()]
    with written(path, frames) as dataset:
        before = dataset.sha256()
        for index, frame in enumerate(frames):
            np.testing.assert_array_equal(dataset.frame(index).forces, frame.forces)
        assert np.isnan(dataset.stress).all()
    assert write_dataset(path, [([full], Provenance("glass.xyz", licence="MIT"))], append=True) == 1
    with open_dataset(path) as dataset:
        assert dataset.sha256() != before
        assert [source.file for source in dataset.sources] == ["made", "glass.xyz"]
        assert dataset.sources[1].licence == "MIT"
        assert len(dataset) == len(frames) + 1
        last = dataset.frame(len(frames))
        for name, value in vars(full).items():
            np.testing.assert_array_equal(getattr(last, name), value)
        for chosen in ([1, 0], [2, 3, 5, 12, 4, 4], [], [12, 0]):
            for index, frame in zip(chosen, dataset.frames(chosen), strict=True):
                for name, value in vars(dataset.frame(index)).items():
                    np.testing.assert_array_equal(getattr(frame, name), value)
        assert dataset.frame(0).energy == frames[0].energy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"forces": np.zeros((3, 3))}, "forces of shape"),
        ({"positions": np.full((5, 3), np.nan)}, "not finite"),
        ({"pbc": np.array([True, False, False])}, "periodic along a vector"),
        ({"numbers": np.array([29, 29, 29, 29, 0])}, "atomic number 0"),
        ({"force_weights": np.ones(4)}, "force_weights of shape"),
        ({"force_weights": -np.ones(5)}, "not a number from 0 on"),
        ({"weight": np.nan}, "not a number from 0 on"),
    ],
)
def test_frames_that_cannot_be_are_refused_whole(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    good, bad = copper(3)[0::2]
    with pytest.raises(InputError, match=said):
        written(tmp_path / "set.h5", [labelled(good), labelled(bad, **change)])
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_no_data_sets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = 1
    with pytest.raises(FileError, match="no data set of mdgraph"):
        open_dataset(tmp_path / "other.h5")
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(FileError, match="no data set of mdgraph; make one"):
        open_dataset(tmp_path / "text.h5")
    written(tmp_path / "set.h5", [labelled(copper(3)[0])])
    content = (tmp_path / "set.h5").read_bytes()
    (tmp_path / "half.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match="damaged"):
        open_dataset(tmp_path / "half.h5")


@pytest.mark.parametrize(
    "size", [20_000, *(pytest.param(size, marks=pytest.mark.slow) for size in (1_000, 60_000))]
)
def test_a_full_disk_leaves_what_was_there(processes: Any, tmp_path: Path, size: int) -> None:
    """In a process of its own: the library brought it down when it was told of a refused write."""
    ase.io.write(tmp_path / "a.xyz", copper(300), format="extxyz")
    code = f"import resource as r, mdgraph.cli; r.setrlimit(r.RLIMIT_FSIZE, ({size}, {size})); "
    command = ["-c", code + "mdgraph.cli.main()", "data", "convert", "a.xyz", "set.h5"]
    for before, more in ((False, []), (True, ["--append"])):
        if before:
            written(tmp_path / "set.h5", [labelled(copper(3)[0])]).close()
        held = {path: path.read_bytes() for path in tmp_path.iterdir()}
        done = ended(processes, [*command, *more], cwd=tmp_path)
        assert done.returncode == 1
        said = "mdgraph: error: Cannot write set.h5: the file would exceed the largest size"
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == 1
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == held


def test_weights_that_change_nothing_keep_the_hash(tmp_path: Path) -> None:
    """Also of a data set from before there were any, which takes them when frames are added."""
    path, frames = tmp_path / "set.h5", [labelled(one) for one in copper(3)]
    with written(path, frames) as dataset:
        whole = dataset.sha256()
    with h5py.File(path, "a") as file:
        del file["atoms/force_weights"]
    with open_dataset(path) as dataset:
        assert dataset.sha256() == whole
        assert (dataset.frame(1).force_weights == 1.0).all()
    heavy = labelled(copper(1)[0], force_weights=np.full(5, 2.0))
    write_dataset(path, [([heavy], Provenance("more"))], append=True)
    with open_dataset(path) as dataset:
        assert [frame.force_weights.mean() for frame in dataset.frames()] == [1.0, 1.0, 1.0, 2.0]
        heavier = dataset.sha256()
    with h5py.File(path, "a") as file:
        del file["atoms/force_weights"]
    with open_dataset(path) as dataset:
        assert dataset.sha256() != heavier


def test_commands_from_a_file_to_a_checked_split(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    ase.io.write(tmp_path / "a.xyz", copper(20), format="extxyz")
    ase.io.write(tmp_path / "b.xyz", copper(10, seed=5), format="extxyz")
    data, split = tmp_path / "set.h5", tmp_path / "split.json"
    done = mdgraph_command("data", "convert", tmp_path / "a.xyz", data, "--licence", "MIT")
    assert done.status == 0, done.err
    assert mdgraph_command("data", "convert", tmp_path / "a.xyz", data).status == 1
    assert mdgraph_command("data", "convert", tmp_path / "b.xyz", data, "--append").status == 0
    picture = tmp_path / "a.png"
    said = mdgraph_command("data", "inspect", data, "--picture", picture).out
    assert "30 (30 with energy, 30 with forces" in said
    assert "a.xyz, level of theory not stated, MIT" in said
    assert picture.stat().st_size > 1000
    done = mdgraph_command("data", "inspect", data, "--picture", tmp_path / "a.pictures")
    assert (done.status, "Pictures are .png, .pdf, .svg files" in done.err) == (1, True)
    options = ["--method", "file", "--test-file", "b.xyz", "--validation", 4]
    assert mdgraph_command("data", "split", data, split, *options).status == 0
    assert [
        len(json.loads(split.read_text())[part]) for part in ("train", "validation", "test")
    ] == [
        16,
        4,
        10,
    ]
    assert mdgraph_command("data", "check", data, "--split", split).out == "Nothing is wrong.\n"
    assert mdgraph_command("data", "convert", tmp_path / "b.xyz", data, "--append").status == 0
    done = mdgraph_command("data", "check", data, "--split", split)
    assert (done.status, "changed since the split" in done.err) == (1, True)
    assert mdgraph_command("data", "convert", tmp_path / "no.xyz", tmp_path / "no.h5").status == 1
