"""Under which conditions a number was measured: hardware, versions, date."""

import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mdgraph import __version__


def processor() -> str:
    """Name of the CPU, where the system tells it."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def hardware(device: torch.device) -> str:
    """Name of what runs."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.get_num_threads()} threads"


def installed(package: str) -> str | None:
    """Its version, or None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def conditions(device: torch.device, precision: str) -> dict[str, Any]:
    """What stands beside every number."""
    return {
        "hardware": hardware(device),
        "mdgraph": __version__,
        "torch": torch.__version__,
        "triton": installed("triton"),
        "date": date.today().isoformat(),
        "precision": precision,
    }
