"""The fused kernels compile for a GPU, which the interpreter does not tell."""

import ast
import os
import subprocess
import sys

import pytest
from repository import ROOT

SCRIPT = ROOT / "tests" / "support" / "compiled_kernels.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "case", ["24 atoms", "24000 atoms", "fast", "layerless", "tensornet2", "tensornet2 double"]
)
def test_every_kernel_compiles_without_a_gpu(case: str) -> None:
    pytest.importorskip("triton")
    made = subprocess.run(
        [sys.executable, SCRIPT, case],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert made.returncode == 0, made.stdout + made.stderr[-2000:]


def test_no_device_function_has_text_as_a_default() -> None:
    """Triton 3.6, which comes with torch 2.11, compiles none; 3.7 and the interpreter do."""
    functions = [
        (path, node)
        for path in sorted((ROOT / "mdgraph").rglob("*.py"))
        if "triton" in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one) in ("triton.jit", "kernel") for one in node.decorator_list)
    ]
    assert len(functions) > 100
    for path, function in functions:
        defaults = [one for one in function.args.defaults if isinstance(one, ast.Constant)]
        text = [one.value for one in defaults if isinstance(one.value, str)]
        assert not text, f"{path}: {function.name} has {text}"
