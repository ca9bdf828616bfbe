"""Workspaces of cuBLAS, which torch keeps. Imports no torch, as they are set before it starts."""

import os


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
