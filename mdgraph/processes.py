"""Processes of commands: what they set before torch starts, ranks, and Python with these modules.

No torch at import, as workers that parse and format do without.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from mdgraph.signals import SIGNALS

SAME_MODULES: Final = ("-P",)
"""Options of Python: a folder in which a command runs is none to import from."""


def module_path() -> str:
    """PYTHONPATH of a process that shall import what this one imports."""
    return os.pathsep.join(dict.fromkeys(str(Path(path or ".").resolve()) for path in sys.path))


def keep_workspaces_small(pieces: str = ":1024:1") -> None:
    """Limits the workspaces of cuBLAS in this process, unless the user set them.

    torch keeps a workspace for each stream on which a thread multiplies matrices: 32 MiB on an
    H200, and up to three of them in a run that starts with the self-check. Must be called before
    the first product on a device.

    Args:
        pieces: sizes in KiB and how many there are of each, as CUBLAS_WORKSPACE_CONFIG has them.
            Products that add up over many rows keep partial sums there; evaluations have none.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", pieces)
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "1024")


_LAUNCHER: Final = "MDGRAPH_LAUNCHER"
"""Variable of the environment of a rank: the process that started it, and all devices."""

_POLL: Final = 1.0
"""s between two looks of a rank for the process that started it."""


def launched_devices() -> str | None:
    """Devices of the ranks among which `launch` started this process; None of another one."""
    return os.environ.get(_LAUNCHER, "").partition(" ")[2] or None


def end_with_launcher() -> None:
    """Sends this rank SIGTERM once the process that started it is gone, so that none is left."""
    launcher = int(os.environ[_LAUNCHER].partition(" ")[0])

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(_POLL)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def launch(devices: Sequence[str], arguments: Sequence[str]) -> tuple[int, signal.Signals | None]:
    """Runs mdgraph in a rank for each device until all have ended; signals go to all of them.

    Args:
        devices: of the ranks, all GPUs by `cuda:N` or all `cpu`.
        arguments: of the command line of each.

    Returns:
        The exit status of rank 0, or of the first rank that failed without it; and the signal that
        ended all.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // len(devices))))
    os.environ[_LAUNCHER] = f"{os.getpid()} {','.join(devices)}"
    if devices[0].startswith("cuda:"):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own = visible.split(",") if visible else [str(n) for n in range(1024)]
        chosen = [own[int(name.removeprefix("cuda:"))] for name in devices]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    os.environ["PYTHONPATH"] = module_path()
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("torch.distributed"):  # rank 0 says what is wrong
            logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(devices),
        run_id=str(uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle=",".join(number.name for number in SIGNALS),
    )
    start: Any = elastic_launch(config, sys.executable)
    try:
        start(*SAME_MODULES, "-m", "mdgraph", *arguments)
    except SignalException as error:
        return 128 + error.sigval, signal.Signals(error.sigval)
    except ChildFailedError as error:
        failure = error.failures.get(0) or error.get_first_failure()[1]
        status = failure.exitcode
        return (status if status >= 0 else 128 - status), None
    return 0, None
