"""How much memory this machine has left, and demands that it cannot meet."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mdgraph.errors import CapacityError

_CGROUP: Final = "/sys/fs/cgroup"
"""Where a container finds its limits."""


def available_host_memory() -> int:
    """Bytes that the system, or the container, would give without swapping."""
    available = 1024 * _table("/proc/meminfo", ":")["MemAvailable"]
    limit = Path(_CGROUP, "memory.max")
    if limit.exists() and (text := limit.read_text(encoding="ascii").strip()) != "max":
        used = int(Path(_CGROUP, "memory.current").read_text(encoding="ascii"))
        reclaimable = _table(f"{_CGROUP}/memory.stat", " ")["inactive_file"]
        available = min(available, int(text) - used + reclaimable)
    return max(available, 0)


@contextmanager
def bounded_growth(room: int) -> Iterator[None]:
    """Within the block the process may reserve no more than `room` bytes beside what it has.

    For other people's parsers, which take what a file declares on trust. What goes beyond raises
    MemoryError, also in other threads.
    """
    now = resource.getpagesize() * int(Path("/proc/self/statm").read_text("ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [now + room, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_fits(needed: int, available: int, what: str, advice: str) -> None:
    """Refuses a demand that memory cannot meet, before any of it is taken.

    Args:
        needed: bytes, as estimated.
        available: bytes, of `available_host_memory` or `mdgraph.memory.available_memory`.
        what: the subject of the sentence, such as `64 replicas`.
        advice: what to do instead.

    Raises:
        CapacityError: more is needed than there is.
    """
    if needed > available:
        raise CapacityError(
            f"{what} would take about {_gigabytes(needed)} GB of memory, and "
            f"{_gigabytes(available)} GB are free; {advice}."
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f}" if size < 10**15 else f"{size / 1e9:.0e}"


def _table(path: str, separator: str) -> dict[str, int]:
    """Name and number of each line of a file of the kernel."""
    lines = Path(path).read_text(encoding="ascii").splitlines()
    pairs = (line.split(separator) for line in lines)
    return {name: int(rest.split()[0]) for name, rest in pairs}
