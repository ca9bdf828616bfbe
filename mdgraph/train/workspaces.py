"""How much memory cuBLAS may set aside."""

import os
from typing import Final

_SIZES: Final = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2", "CUBLASLT_WORKSPACE_SIZE": "1024"}
"""By environment variable: 8 MiB as two pieces of 4096 KiB, and 1024 KiB of cuBLASLt."""


def keep_workspaces_small() -> None:
    """Bounds the workspaces of cuBLAS for this process, unless the user has.

    torch keeps one for every stream that a thread multiplies matrices on, of 32 MiB on an H200,
    where weights, their means and moments are 12 MB. What needs them are sums over atoms cut into
    pieces that are added in the end, and of the largest product of a step, 384 by 256 weights,
    8 MiB hold 21. Must come before the first product on the device.
    """
    for name, size in _SIZES.items():
        os.environ.setdefault(name, size)
