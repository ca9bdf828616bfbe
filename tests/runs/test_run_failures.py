"""Runs that go wrong: what they leave behind, and what they say."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from run_folders import content, folder_of, rows

from mdgraph.checkpoints import load, save
from mdgraph.errors import FileError, InputError, MDGraphError, SimulationError
from mdgraph.io.log import read_log
from mdgraph.runs.config import MDConfig
from mdgraph.runs.md import resume, start


@pytest.mark.usefixtures("without_picture")
class TestFailures:
    def test_a_runaway_leaves_the_last_good_state(
        self, configured: Callable[..., MDConfig]
    ) -> None:
        configuration = configured(
            steps=1000, friction_per_ps=200.0, temperature_K=3000.0, maximum_temperature_K=3500.0
        )
        with pytest.raises(SimulationError, match=r"ran beyond 3500 K, led by atoms") as caught:
            start(configuration)
        folder = folder_of(configuration)
        last = caught.value.step - 1
        assert f"the checkpoint in {folder.path}, step {last}." in str(caught.value)
        log = read_log(folder.log)
        assert log["step"][-1] <= last < log["step"][-1] + 3
        assert (log["temperature_K"] <= 3500.0).all()
        with pytest.raises(SimulationError) as again:
            resume(folder.path)
        assert again.value.step == caught.value.step
        assert again.value.atoms == caught.value.atoms

    @pytest.mark.parametrize("trajectory", ["h5md", "extxyz"])
    def test_a_full_disk_ends_the_run_and_spoils_nothing(
        self, configured: Callable[..., MDConfig], tmp_path: Path, trajectory: str
    ) -> None:
        often = {"steps": 130, "trajectory": trajectory, "trajectory_interval": 1}
        whole = configured(out=str(tmp_path / "whole"), **often)
        start(whole)
        parted = configured(**{**often, "steps": 20})
        start(parted)
        path = folder_of(parted).trajectory(trajectory)
        with (
            files_no_larger_than(path.stat().st_size + 4000),
            pytest.raises(FileError, match=r"Cannot write .*trajectory.*: the file would exceed"),
        ):
            resume(Path(parted.out), {"steps": 130})
        assert rows(Path(parted.out) / "log.csv") < 40
        resume(Path(parted.out))
        assert content(parted) == content(whole)

    @pytest.mark.parametrize("limit", [10, 3000])
    def test_a_full_disk_at_the_start_leaves_nothing(
        self, configured: Callable[..., MDConfig], tmp_path: Path, limit: int
    ) -> None:
        with files_no_larger_than(limit), pytest.raises(FileError, match="would exceed"):
            start(configured())
        assert list(tmp_path.iterdir()) == []

    def test_another_process_in_the_folder(self, configured: Callable[..., MDConfig]) -> None:
        configuration = configured(steps=4)
        start(configuration)
        before = content(configuration)
        with (
            folder_of(configuration).lock(),
            pytest.raises(InputError, match="Another process is running in"),
        ):
            resume(Path(configuration.out), {"steps": 8})
        assert content(configuration) == before

    def test_another_potential(self, configured: Callable[..., MDConfig], tmp_path: Path) -> None:
        configuration = configured(steps=4)
        start(configuration)
        changed = load(configuration.potential)
        changed.shift += 1.0
        save(changed, tmp_path / "changed.safetensors")
        before = content(configuration)
        with pytest.raises(InputError, match=r"is not the one that the run in .* began with"):
            resume(Path(configuration.out), {"potential": str(tmp_path / "changed.safetensors")})
        assert content(configuration) == before

    def test_a_potential_that_was_moved(
        self, configured: Callable[..., MDConfig], tmp_path: Path, tiny_potential: Path
    ) -> None:
        here = tmp_path / "here.safetensors"
        here.write_bytes(tiny_potential.read_bytes())
        configuration = configured(steps=4, potential=str(here))
        start(configuration)
        there = here.rename(tmp_path / "there.safetensors")
        with pytest.raises(FileError, match="There is no file or folder"):
            resume(Path(configuration.out), {"steps": 8})
        resume(Path(configuration.out), {"steps": 8, "potential": str(there)})
        kept = folder_of(configuration).read_record()["configuration"]
        assert (kept["steps"], kept["potential"]) == (8, str(there))

    def test_less_than_was_done(self, configured: Callable[..., MDConfig]) -> None:
        configuration = configured(steps=8)
        start(configuration)
        with pytest.raises(InputError, match="has done 8 steps already, which is more than 5"):
            resume(Path(configuration.out), {"steps": 5})

    def test_another_machine_is_said(
        self, configured: Callable[..., MDConfig], caplog: pytest.LogCaptureFixture
    ) -> None:
        configuration = configured(steps=4)
        start(configuration)
        folder = folder_of(configuration)
        record = folder.read_record()
        record["environment"]["torch"] = "1.0"
        folder.write_record(record)
        resume(folder.path, {"steps": 8})
        assert "the last bits may differ: torch 1.0 then" in caplog.text

    @pytest.mark.parametrize(
        ("name", "damage", "sentence"),
        [
            ("run.json", b"{", "run.json is damaged"),
            ("run.json", b'{"format": 99}', "has format 99"),
            ("run.json", b'{"format": 1}', "run.json is damaged"),
            ("run.json", None, r"this mdgraph does not take \(ensemble: did you mean nve\?\)"),
            ("checkpoint.safetensors", b"", "is not a whole safetensors file"),
            ("trajectory.h5md", b"", "trajectory.h5md"),
            ("log.csv", b"", "is not a log of a run"),
            ("start.extxyz", b"2\nnothing\n", "start.extxyz"),
        ],
    )
    def test_damaged_files(
        self, configured: Callable[..., MDConfig], name: str, damage: bytes | None, sentence: str
    ) -> None:
        configuration = configured(steps=4, ensemble="nve")
        start(configuration)
        path = Path(configuration.out) / name
        path.write_bytes(
            damage if damage is not None else path.read_bytes().replace(b'"nve"', b'"nvp"')
        )
        with pytest.raises(MDGraphError, match=sentence):
            resume(Path(configuration.out), {"steps": 8})

    @pytest.mark.parametrize("name", ["checkpoint.safetensors", "trajectory.h5md", "log.csv"])
    def test_missing_files(self, configured: Callable[..., MDConfig], name: str) -> None:
        configuration = configured(steps=4)
        start(configuration)
        (Path(configuration.out) / name).unlink()
        with pytest.raises(FileError, match=rf"Cannot read .*{name}: "):
            resume(Path(configuration.out), {"steps": 8})


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """What the process sees of a disk without space, but for the number of the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
