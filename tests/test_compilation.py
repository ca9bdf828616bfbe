"""Kernels compiled ahead of their first launch, of which nothing runs; when compiling is told."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mdgraph.neighbors import compilation
from mdgraph.neighbors.compilation import compiling_ahead, kernel


@kernel
def add_one_kernel(numbers, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    tl.store(numbers + place, tl.load(numbers + place) + 1)


def test_launches_within_it_only_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    only_compiled = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        only_compiled.append(warmup)

    monkeypatch.setattr(triton.JITFunction, "run", run)
    compiled = compilation._Kernel(add_one_kernel.fn)

    def fail() -> None:
        with compiling_ahead():
            compiled[(1,)]()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    compiled[(1,)]()
    with compiling_ahead():
        compiled[(1,)]()
    assert only_compiled == [True, False, True]


@pytest.mark.parametrize("module", ["mdgraph.neighbors.kernels", "someone.else"])
def test_compiling_is_told_unless_the_cache_has_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.compilation, "listener", compilation.NOTICE)
    jitted = triton.JITFunction(add_one_kernel.fn)
    monkeypatch.setattr(jitted, "__module__", module)
    told = []
    for _ in range(2):
        monkeypatch.setattr(compilation.NOTICE, "given", False)
        caplog.clear()
        with caplog.at_level(logging.INFO, "mdgraph"):
            source = ASTSource(jitted, {"numbers": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 32})
            triton.compile(source, GPUTarget("cuda", 90, 32))
        told.append("compiles kernels" in caplog.text)
    assert told == [module.startswith("mdgraph."), False]


@pytest.mark.gpu
def test_numbers_stay_until_the_first_launch_outside() -> None:
    numbers = torch.zeros(32, device="cuda")
    for _ in range(2):
        with compiling_ahead():
            add_one_kernel[(1,)](numbers, 32)
            numbers += 2.0  # other work goes on
    assert bool((numbers == 4.0).all())
    add_one_kernel[(1,)](numbers, 32)
    assert bool((numbers == 5.0).all())
