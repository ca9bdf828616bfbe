"""Folders of runs, and everything in them that must not depend on how a run was done."""

from pathlib import Path
from typing import Any

import numpy as np

from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.runs.config import MDConfig
from mdgraph.runs.folder import RunDirectory


def folder_of(configuration: MDConfig) -> RunDirectory:
    return RunDirectory(Path(configuration.out))


def content(configuration: MDConfig) -> dict[str, Any]:
    """Everything in a run folder that must not depend on how the run was done."""
    folder = folder_of(configuration)
    path = folder.trajectory(configuration.trajectory)
    with read_trajectory(path) as trajectory:
        frames = [vars(frame) for frame in trajectory]
    log = read_log(folder.log)
    del log["ns_per_day"]
    arrays = {
        f"{number}.{name}": np.asarray(value)
        for number, frame in enumerate(frames)
        for name, value in frame.items()
    }
    arrays |= log
    return {
        "checkpoint": folder.checkpoint.read_bytes(),
        "trajectory": path.read_bytes() if configuration.trajectory == "extxyz" else b"",
        "steps": [frame["step"] for frame in frames],
        "arrays": {name: (value.dtype, value.tobytes()) for name, value in arrays.items()},
    }


def rows(log: Path) -> int:
    return log.read_bytes().count(b"\n") - 1 if log.exists() else -1
