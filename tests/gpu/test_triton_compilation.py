"""Kernels compiled ahead of their first launch, of which nothing runs; when compiling is told."""

import ast
import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import mdgraph
from mdgraph.gpu import triton_jit
from mdgraph.gpu.triton_jit import compiling_ahead, kernel


@kernel
def add_one_kernel(numbers, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    tl.store(numbers + place, tl.load(numbers + place) + 1)


def test_launches_within_it_only_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    only_compiled = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        only_compiled.append(warmup)

    monkeypatch.setattr(triton.JITFunction, "run", run)
    compiled = triton_jit._Kernel(add_one_kernel.fn)

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


@pytest.mark.parametrize("module", ["mdgraph.models.kernels.messages", "someone.else"])
def test_compiling_is_logged_unless_the_cache_has_the_kernel(module: str, tmp_path: Path) -> None:
    """In a process of its own: the interpreter, once used, stays in Triton's language."""
    code = (
        f"import test_triton_compilation as here; print(here.told({module!r}, {str(tmp_path)!r}))"
    )
    paths = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == str([module.startswith("mdgraph."), False])


def told(module: str, cache: str) -> list[bool]:
    """Whether compiling is told, by a first and a second process as far as Triton knows."""
    triton.knobs.cache.dir = cache
    triton.knobs.compilation.listener = triton_jit.NOTICE
    jitted = triton.JITFunction(add_one_kernel.fn)
    jitted.__module__ = module
    results = []
    for _ in range(2):
        triton_jit.NOTICE.has_logged = False
        text = io.StringIO()
        logger = logging.getLogger("mdgraph")
        logger.setLevel(logging.INFO)
        logger.handlers = [logging.StreamHandler(text)]
        source = ASTSource(jitted, {"numbers": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 32})
        triton.compile(source, GPUTarget("cuda", 90, 32))
        results.append("compiles kernels" in text.getvalue())
    return results


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


def test_no_kernel_casts_an_argument_that_may_be_one() -> None:
    """Triton makes an integer argument of 1 a Python number, which has no `to`."""
    found, seen = [], 0
    for path in sorted(Path(mdgraph.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            if not any(ast.unparse(item) == "kernel" for item in function.decorator_list):
                continue
            seen += 1
            arguments = {item.arg for item in function.args.args if item.annotation is None}
            found += [
                f"{path.name}:{call.lineno} {call.value.id}"
                for call in ast.walk(function)
                if isinstance(call, ast.Attribute) and call.attr == "to"
                if isinstance(call.value, ast.Name) and call.value.id in arguments
            ]
    assert seen > 50
    assert found == []
