"""Devices by name, and the process group that torchrun starts."""

import atexit
import contextlib
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch

from mdgraph.errors import InputError, LostRankError
from mdgraph.signals import signals_ignored


def device_named(name: str | torch.device) -> torch.device:
    """The torch device for a name; `auto` is CUDA where there is one.

    Raises:
        InputError: no such device here, or CUDA in a process that was forked too late.
    """
    if str(name) == "auto":
        check_fork()
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        raise InputError(f"Unknown device '{name}'; choose cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"mdgraph does not run on '{device.type}'; choose cpu or cuda.")
    if device.type == "cuda":
        check_fork()
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= (device.index or 0):
            have = f"has {count} CUDA device(s)" if count else "has no CUDA device"
            raise InputError(f"Asked for {device}, but this machine {have}; choose another.")
    return device


def hardware_name(device: torch.device) -> str:
    """Name of the GPU, or of the processor with its threads, as reports have it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"


def check_fork(error: BaseException | None = None) -> None:
    """Raises InputError where CUDA was started before this process was forked.

    Args:
        error: what CUDA raised of it.
    """
    if torch.cuda._is_in_bad_fork():
        raise InputError(
            "CUDA was started before this process was forked, and cannot be used in it; "
            "start processes by the method 'spawn' of multiprocessing."
        ) from error


def finish_gpu_work(patience: float = 3.0) -> bool:
    """Waits until all GPUs have done what this process gave them; does nothing without one.

    Under NVIDIA's Multi-Process Service a process that ends with kernels in flight can end all
    others of that service, with an illegal memory access. Work that hangs is not waited for any
    longer than `patience`, s; signals that come meanwhile are ignored, as all ends already. Returns
    whether all is done.
    """
    if not torch.cuda.is_initialized():
        return True

    def wait() -> None:
        for number in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(number):  # type: ignore[attr-defined]
                with contextlib.suppress(RuntimeError):  # it failed: nothing is in flight
                    torch.cuda.synchronize(number)

    thread = threading.Thread(target=wait, daemon=True)
    with signals_ignored():
        thread.start()
        thread.join(patience)
    return not thread.is_alive()


_STREAMS = threading.local()


def shared_stream(device: torch.device, role: str, priority: int = 0) -> torch.cuda.Stream:
    """The stream of a CUDA device and a role, the same one at every call of a thread.

    A card serves the streams that a process has used through few queues. Once there are more
    streams than queues every graph is slower: by 7 % at 24 atoms on an H200.
    """
    streams = _STREAMS.__dict__
    with torch.cuda.device(device):
        key = f"{role} {torch.cuda.current_device()}"
        if key not in streams:
            streams[key] = torch.cuda.Stream(priority=priority)
    stream: torch.cuda.Stream = streams[key]
    return stream


def forget_streams() -> None:
    """Leaves this thread's shared streams as they are and takes new ones from here on."""
    _STREAMS.__dict__.clear()


def _leave_group() -> None:
    """Ends the threads of gloo, which free tensors of Python and must not outlive it."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def is_first_rank() -> bool:
    """Whether this process speaks for its job: rank 0 of torchrun's, or a process of its own."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class ProcessRank:
    """The place of this process among those of a job.

    Attributes:
        rank: its number.
        count: how many there are.
        local: its number on its own machine, which is that of its GPU.
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    def __str__(self) -> str:
        return f"Rank {self.rank} of {self.count}"

    @classmethod
    def joined(cls, backend: str, timeout: float | None = None) -> Self:
        """Joins the job that torchrun's variables name; alone without them.

        A group that exists already is taken as it is; one of gloo that is made here is left when
        the process ends.

        Args:
            backend: of torch.distributed.
            timeout: s, that a rank is waited for; None leaves it to the backend.

        Raises:
            InputError: variables that no torchrun has set, or ranks that do not find each other.
        """
        names = {"RANK": None, "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        given = {name: os.environ.get(name, usual) for name, usual in names.items()}
        if given["WORLD_SIZE"] == "1":
            return cls()
        from torch import distributed

        try:
            rank = cls(*(int(number or "") for number in given.values()))
        except ValueError:
            raise InputError(
                f"The environment says {given}, which are no valid ranks; start them with "
                "torchrun, or unset WORLD_SIZE."
            ) from None
        if not distributed.is_initialized():
            limit = None if timeout is None else timedelta(seconds=timeout)
            try:
                distributed.init_process_group(backend, timeout=limit)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"Rank {rank.rank} of {rank.count} finds no others ({error}); start all of "
                    "them with torchrun."
                ) from error
            if backend == "gloo":
                atexit.register(_leave_group)
        return rank

    @contextmanager
    def naming_lost(self, advice: str) -> Iterator[None]:
        """Raises LostRankError, which ends with the advice, where a message fails in the block."""
        try:
            yield
        except RuntimeError as error:
            raise LostRankError(f"{self} lost another one{advice}") from error


def device_names(devices: str) -> list[str]:
    """Names with commas between them, or of `all`, which is every GPU or else a CPU."""
    if devices != "all":
        return devices.split(",")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{number}" for number in range(count)] or ["cpu"]


def ranks_of(devices: str) -> list[str]:
    """The device of each rank; see `device_names`.

    Raises:
        InputError: there is no such device, or they are of two kinds or named twice.
    """
    devices_named = [device_named(name.strip()) for name in device_names(devices.strip())]
    names = ["cpu" if one.type == "cpu" else f"cuda:{one.index or 0}" for one in devices_named]
    kinds = {one.type for one in devices_named}
    if len(kinds) > 1 or (kinds == {"cuda"} and len({*names}) < len(names)):
        raise InputError(
            f"--devices is {devices}; give GPUs, each of them once, or a cpu for each rank."
        )
    return names
