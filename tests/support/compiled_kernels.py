"""Compiles every kernel of fused evaluations for an H200 by its real launch, without a GPU.

    python tests/support/compiled_kernels.py [CASE ...]

The interpreter runs more than the compiler takes, and what one version of Triton compiles an older
one may refuse: Triton 3.6 takes no text as the default of an argument of a device function. So run
this with the Triton of the machine with the GPU before a new or changed kernel goes there; another
one, from `pip install --target FOLDER --no-deps triton==...`, comes first with PYTHONPATH. A case
takes a minute or two on one core, less where kernels lie in Triton's cache.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

os.environ.pop("TRITON_INTERPRET", None)  # Triton reads it when it is imported

import torch
import triton
from random_networks import TENSORNET2, lists_for
from triton.backends.compiler import GPUTarget
from triton.errors import TritonError
from triton.runtime import driver

from mdgraph.fused.cuda import workspace
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu import triton_jit
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.runs.bench import water
from mdgraph.state import State

_PLAIN: Final[dict[str, Any]] = {
    "species": (1, 8),
    "channels": 128,
    "layers": 2,
    "cutoff": 5.0,
    "radial_basis": {"number": 32},
    "readout": {"hidden": (64,)},
    "charge_factor": True,
}

LAYERLESS: Final[dict[str, Any]] = {
    "channels": 32,
    "layers": 0,
    "radial_basis": {"number": 12},
    "readout": {"hidden": (32,)},
}

CASES: Final[dict[str, tuple[dict[str, Any], str, int]]] = {
    "24 atoms": (_PLAIN, "mixed", 24),
    "648 atoms": (_PLAIN, "mixed", 648),
    "24000 atoms": (_PLAIN, "mixed", 24_000),
    "fast": (_PLAIN, "fast", 24_000),
    "double": (_PLAIN, "double", 24),
    "layerless": (_PLAIN | LAYERLESS, "mixed", 3000),
    "tensornet2": (TENSORNET2 | {"coulomb": {"cutoff": 5.2}}, "mixed", 24),
    "tensornet2 double": (TENSORNET2 | {"coulomb": {"cutoff": 5.2}}, "double", 24_000),
}
"""Settings of the network, precision, and for how many atoms block sizes are chosen."""


class NoDriver:
    """Tells Triton of an H200 that is not there."""

    launcher_cls = None
    utils = None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def compiled(settings: dict[str, Any], precision: str, atoms: int) -> tuple[int, list[str]]:
    """Number of kernels, and what those say that do not compile.

    Args:
        settings: of the network; its weights are random.
        precision: by name.
        atoms: for how many block sizes are chosen; 24 are evaluated.
    """
    driver.set_active(NoDriver())
    kernels: set[str] = set()
    errors: list[str] = []
    run: Callable[..., Any] = triton_jit._Kernel.run

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        try:
            made = run(kernel, *arguments, grid=grid, warmup=True, **options)
        except (TritonError, RuntimeError) as error:
            errors.append(f"{kernel.fn.__name__}: {str(error).splitlines()[-1]}")
        else:
            kernels.add(made.hash)

    shapes, ahead = workspace.shapes, workspace.launching_ahead
    pdl = {"USE_PDL": True, "launch_pdl": True}
    triton_jit._Kernel.run = compile_only
    workspace.shapes = lambda channels, _, *others: shapes(channels, atoms, *others)
    workspace.launching_ahead = lambda *_: pdl if atoms < 5000 else {}
    try:
        torch.manual_seed(1)
        potential = TensorNetPotential(TensorNetConfig.model_validate(settings))
        evaluator = FusedTensorNet(potential, precision, "cpu", "triton")
        state = State([water(24, periodic=False, seed=1)], torch.device("cpu"))
        evaluator.evaluate_(state, lists_for(state, evaluator.potential))
    finally:
        triton_jit._Kernel.run = run
        workspace.shapes, workspace.launching_ahead = shapes, ahead
    return len(kernels), errors


def main() -> int:
    """Compiles the cases named, or all; returns 1 if one does not compile."""
    failed = False
    for name in sys.argv[1:] or CASES:
        begun = time.perf_counter()
        number, errors = compiled(*CASES[name])
        seconds = time.perf_counter() - begun
        print(
            f"{name}: {number} kernels by Triton {triton.__version__}, {seconds:.0f} s",
            *errors,
            sep="\n  ",
            flush=True,
        )
        failed |= bool(errors) or number < (4 if name == "layerless" else 25)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
