"""Devices by their names."""

import torch

from mdgraph.errors import InputError


def device_named(name: str | torch.device) -> torch.device:
    """The torch device for a name; `auto` is CUDA where there is one.

    Raises:
        InputError: no such device here.
    """
    if str(name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"Unknown device '{name}'; choose cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"mdgraph does not run on '{device.type}'; choose cpu or cuda.")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= (device.index or 0):
            have = f"has {count} CUDA device(s)" if count else "has no CUDA device"
            raise InputError(f"Asked for {device}, but this machine {have}; choose another.")
    return device
