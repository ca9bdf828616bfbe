"""Potentials on the Hugging Face Hub, which a server on this machine plays."""

import functools
import hashlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import Hub, serving
from prepared import ended

from mdgraph.checkpoints import load, load_domain, shipped_potentials
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.checkpoints.location import locate
from mdgraph.errors import CheckpointError, FileError, InputError

NAME = "ethanol-pbe"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub from which huggingface_hub downloads to an empty cache."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    with serving() as hub:
        there = functools.partial(
            huggingface_hub.snapshot_download, endpoint=hub.address, cache_dir=tmp_path / "cache"
        )
        monkeypatch.setattr(huggingface_hub, "snapshot_download", there)
        yield hub


def folder_files(name: str = NAME) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shipped_potentials()[name].iterdir()}


def test_a_folder_on_the_hub_is_the_potential_that_was_uploaded(hub: Hub) -> None:
    files = folder_files()
    hub.push("somebody/alcohols", {f"small/{name}": data for name, data in files.items()})
    for address in (
        "hf://somebody/alcohols/small",
        "hf://somebody/alcohols/small/",
        "hf://somebody/alcohols@main/small/model.safetensors",
    ):
        loaded = load(address)
        assert loaded.config == load(NAME).config
        assert all(
            torch.equal(ours, theirs)
            for ours, theirs in zip(loaded.parameters(), load(NAME).parameters(), strict=True)
        )
        domain = load_domain(address)
        assert domain is not None
        assert potential_sha256(address) == potential_sha256(NAME)
    fetched = {path.rpartition("/")[2] for path in hub.requests if path.startswith("GET /somebody")}
    assert fetched == {"model.safetensors", "domain.safetensors", "metrics.json", "start.extxyz"}


def test_a_commit_is_recorded_and_stays(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    first = hub.push("somebody/water", folder_files("water-pbe0"))
    location = locate("hf://somebody/water")
    assert location.reference == f"hf://somebody/water@{first}"
    hub.push("somebody/water", folder_files())
    assert load(location.reference).config.name == "water-pbe0"
    assert load("hf://somebody/water").config.name == NAME
    hub.commits.clear()  # what has a commit needs no answer any more
    assert load(location.reference).config.name == "water-pbe0"
    caplog.clear()
    with caplog.at_level("INFO", "mdgraph"):
        locate(location.reference)
    assert not caplog.records


def test_a_run_records_commit_and_hash_and_goes_on_with_them(
    hub: Hub,
    tmp_path: Path,
    tiny_potential: Path,
    water_file: Path,
    mdgraph_command: Callable[..., Any],
) -> None:
    content = tiny_potential.read_bytes()
    commit = hub.push("somebody/tiny", {"model.safetensors": content})
    run = tmp_path / "run"
    options = ("--potential", "hf://somebody/tiny", "--evaluator", "reference", "--device", "cpu")
    done = mdgraph_command("md", water_file, *options, "--steps", 2, "--out", run)
    assert done.status == 0, done.err
    assert f"hf://somebody/tiny@{commit}" in done.err
    record = json.loads((run / "run.json").read_text())["potential"]
    assert record["reference"] == f"hf://somebody/tiny@{commit}"
    assert record["sha256"] == hashlib.sha256(content).hexdigest()
    hub.push("somebody/tiny", folder_files())
    assert mdgraph_command("md", "--resume", "--steps", 4, "--out", run).status == 0


def test_files_of_the_hub_run_no_code(hub: Hub, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "trapped"),)

    hub.push("somebody/trap", {"model.ckpt": pickle.dumps(Trap()), "mdgraph.py": b"1 / 0"})
    with pytest.raises(CheckpointError):
        load("hf://somebody/trap/model.ckpt")
    assert not (tmp_path / "trapped").exists()
    assert not list((tmp_path / "cache").rglob("*.py"))


def test_the_hash_does_not_depend_on_what_else_was_downloaded(hub: Hub) -> None:
    files = {name: name.encode() for name in ("model.json", "model.pt", "state.pt", "README.md")}
    commit = hub.push("somebody/matgl", files)
    location = locate("hf://somebody/matgl")
    assert [path.name for path in location.files()] == ["model.json", "model.pt", "state.pt"]
    before = potential_sha256(location.reference)
    locate(f"hf://somebody/matgl@{commit}/README.md")
    assert potential_sha256(location.reference) == before


def test_each_failure_is_one_sentence(hub: Hub) -> None:
    hub.push("somebody/water", {"model.ckpt": b""})
    hub.push("somebody/closed", {"model.ckpt": b""})
    hub.gated.add("somebody/closed")
    for address, sentence in {
        "hf://somebody/nothing": "There is no somebody/nothing on the Hugging Face Hub that you",
        "hf://somebody/water@v2": "somebody/water on the Hugging Face Hub has no revision v2",
        "hf://somebody/water/gone.ckpt": "no potential gone.ckpt in somebody/water",
        "hf://somebody/water": r"no potential model.safetensors in somebody/water",
        "hf://somebody/closed/model.ckpt": "open only to those who ask",
    }.items():
        with pytest.raises(FileError, match=sentence) as raised:
            load(address)
        assert "\n" not in str(raised.value)


def test_without_a_network_the_cache_is_used_or_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    real = huggingface_hub.snapshot_download
    nobody = functools.partial(real, endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "cache")
    with serving() as hub:
        commit = hub.push("somebody/ethanol", folder_files())
        real("somebody/ethanol", endpoint=hub.address, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", nobody)
    assert locate("hf://somebody/ethanol").reference == f"hf://somebody/ethanol@{commit}"
    with pytest.raises(FileError, match="was not downloaded before and the Hugging Face Hub"):
        load("hf://somebody/water")


@pytest.mark.parametrize(
    "address",
    [
        "hf://",
        "hf://water",
        "hf://a/b/../c",
        "hf://../b/c",
        "hf://a/b@/c",
        "hf://a/b@v1@v2/c",
        "hf://a/b/*.ckpt",
        "hf://a/b//c",
        "hf://a/b/c\\d",
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_asked(address: str) -> None:
    with pytest.raises(InputError, match=r"is not an address on the Hugging Face Hub; write hf://"):
        load(address)


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"install it with: pip install 'mdgraph\[hub\]'$"):
        load("hf://somebody/water")


def test_the_variables_of_the_hub_are_obeyed(hub: Hub, processes: Any, tmp_path: Path) -> None:
    hub.push("somebody/ethanol", folder_files())
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    words = ["-m", "mdgraph", "inspect", "hf://somebody/ethanol"]
    done = ended(processes, words, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert f"name:             {NAME}\n" in done.stdout
    assert "domain:           not known" not in done.stdout
    assert len(done.stderr.splitlines()) == 1  # the commit
