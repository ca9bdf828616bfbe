"""Resumes that fail leave every byte of their folder; others bring all that a run leaves."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.runs.config import MDConfig, MinimizeConfig
from mdgraph.runs.md import resume, start

pytestmark = pytest.mark.usefixtures("without_picture")

Damage = Callable[[Path], object]


def everything(folder: Path) -> dict[str, tuple[str, int]]:
    """Hashes and inodes of all files, by their paths."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_ino,
        )
        for path in sorted(folder.rglob("*"))
    }


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path: Path) -> None:
    path.write_bytes(
        bytes(np.random.default_rng(0).integers(0, 256, path.stat().st_size, np.uint8))
    )


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 0x40
    path.write_bytes(content)


def without_line(number: int) -> Damage:
    def damage(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))

    return damage


def replaced(before: bytes, after: bytes) -> Damage:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        assert before in content
        path.write_bytes(content.replace(before, after, 1))

    return damage


def without_frames(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["particles/all/position/step"].resize(3, axis=0)


GENERAL: list[Damage] = [Path.unlink, empty, halve, garble, replace_by_folder, replace_by_zeros]
"""What may happen to any file that a run goes on from."""

FILES = {
    "h5md": ["run.json", "checkpoint.safetensors", "start.extxyz", "log.csv", "trajectory.h5md"],
    "extxyz": ["trajectory.extxyz"],
    "replicas": [
        "exchanges.csv",
        "replica-1/log.csv",
        "replica-1/trajectory.h5md",
        "replica-2/start.extxyz",
    ],
}

OTHER = ["checkpoint.safetensors", "log.csv", "trajectory.h5md", "start.extxyz", "run.json"]

SPECIAL: list[tuple[str, str, Damage]] = [
    ("h5md", "checkpoint.safetensors", flip),
    ("h5md", "log.csv", without_line(0)),
    ("h5md", "log.csv", without_line(3)),
    ("h5md", "log.csv", replaced(b",", b";")),
    ("h5md", "trajectory.h5md", without_frames),
    ("h5md", "run.json", replaced(b'"charge_e": 0.0', b'"charge_e": "x"')),
    ("h5md", "run.json", replaced(b'"sha256"', b'"sha"')),
    ("h5md", "run.json", replaced(b'"nvt-langevin"', b'"nvt"')),
    ("h5md", "start.extxyz", replaced(b"\nH ", b"\nO ")),
    ("h5md", "end.extxyz", replace_by_folder),
    ("extxyz", "trajectory.extxyz", replaced(b"step=4", b"step=5")),
    ("replicas", "exchanges.csv", without_line(2)),
    ("replicas", "exchanges.csv", replaced(b"\n0,0,1,2", b"\n0,0,1,1")),
]


def cases() -> list[Any]:
    found = [
        (kind, name, damage) for kind in FILES for name in FILES[kind] for damage in GENERAL
    ] + SPECIAL
    return [
        pytest.param(*one, id=f"{one[1]}-{getattr(one[2], '__name__', 'damage')}-{number}")
        for number, one in enumerate(found)
    ]


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, tiny_potential: Path, water_file: Path
) -> Any:
    """Folders of finished runs, by what they are."""
    root = tmp_path_factory.mktemp("finished")

    def run(name: str, **options: Any) -> None:
        start(
            MDConfig(
                structure=(str(water_file),),
                potential=str(tiny_potential),
                out=str(root / name),
                **{
                    "steps": 20,
                    "trajectory_interval": 4,
                    "log_interval": 3,
                    "checkpoint_interval": 7,
                    "observe": "rdf:2",
                    **options,
                },
            )
        )

    run("h5md")
    run("extxyz", trajectory="extxyz")
    run("replicas", replicas=3, temperatures_K="300:400", exchange=5)
    run("other", seed=7, temperature_K=500.0)
    return root


@pytest.mark.parametrize(("kind", "name", "damage"), cases())
def test_a_resume_that_fails_leaves_every_byte(
    finished: Path, tmp_path: Path, kind: str, name: str, damage: Damage
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished / kind, folder)
    damage(folder / name)
    before = everything(folder)
    with pytest.raises(MDGraphError) as caught:
        resume(folder, {"steps": 40})
    assert everything(folder) == before
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", OTHER[:3])
def test_files_of_another_run_of_the_same_atoms(finished: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished / "h5md", folder)
    shutil.copyfile(finished / "other" / name, folder / name)
    before = everything(folder)
    with pytest.raises(MDGraphError, match=r"another run|was written with"):
        resume(folder, {"steps": 40})
    assert everything(folder) == before


@pytest.mark.parametrize("name", OTHER)
def test_files_of_another_system(
    finished: Path, tmp_path: Path, name: str, configured: Callable[..., MDConfig]
) -> None:
    text = "2\npbc='F F F'\nO 0 0 0\nH 0.97 0 0\n"
    (tmp_path / "radical.xyz").write_text(text)
    strange = configured(
        structure=str(tmp_path / "radical.xyz"), out=str(tmp_path / "strange"), steps=20
    )
    start(strange)
    folder = tmp_path / "run"
    shutil.copytree(finished / "h5md", folder)
    shutil.copyfile(tmp_path / "strange" / name, folder / name)
    before = everything(folder)
    with pytest.raises(MDGraphError):
        resume(folder, {"steps": 40})
    assert everything(folder) == before


def test_what_was_lost_of_the_products_is_made_again(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished / "h5md", folder)
    for name in ("rdf.csv", "rdf.png"):
        (folder / name).unlink()
    before = everything(folder)
    resume(folder)
    after = everything(folder)
    assert set(after) - set(before) == {"rdf.csv", "rdf.png"}
    assert (folder / "rdf.csv").read_bytes() == (finished / "h5md" / "rdf.csv").read_bytes()
    opened = {"trajectory.h5md", "run.json"}  # the folder has moved
    assert all(after[name] == before[name] for name in set(before) - opened)
    (folder / "end.extxyz").unlink()  # as where a kill fell while pictures were drawn
    (folder / ".rdf.mdgraph-01234567.png").write_bytes(b"half a picture")
    resume(folder)
    assert set(everything(folder)) == set(after)


def test_a_minimisation(
    tmp_path: Path, tiny_potential: Path, water_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    options = {"structure": (str(water_file),), "potential": str(tiny_potential)}
    start(MinimizeConfig(**options, out=str(out), steps=20, trajectory_interval=4))
    (out / "log.csv").write_bytes(b"")
    before = everything(out)
    with pytest.raises(MDGraphError, match=r"log\.csv is not a log of a run"):
        resume(out, {"steps": 40})
    assert everything(out) == before


@pytest.mark.parametrize("changes", [{"steps": -5}, {"steps": "many"}, {"time_ps": 1e30}], ids=str)
def test_what_is_given_to_a_resume_is_not_called_a_damaged_file(
    finished: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Nobody is sent to put back an original that the run never wrote."""
    folder = tmp_path / "run"
    shutil.copytree(finished / "h5md", folder)
    before = everything(folder)
    with pytest.raises(InputError, match="A run cannot continue with") as caught:
        resume(folder, changes)
    assert next(iter(changes)) in str(caught.value)
    assert "put back" not in str(caught.value)
    assert everything(folder) == before


def test_a_folder_of_another_program_has_no_original(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": "mine"}')
    with pytest.raises(
        FileError, match="not a record of a run of mdgraph; give the folder"
    ) as caught:
        resume(tmp_path)
    assert "put back" not in str(caught.value)
    (tmp_path / "run.json").write_bytes((finished / "h5md" / "run.json").read_bytes()[:-9])
    with pytest.raises(FileError, match=r"run\.json is damaged; put back the original"):
        resume(tmp_path)
