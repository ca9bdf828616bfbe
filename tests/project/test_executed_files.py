"""How many files a reader meets who follows a default run from `main()` to its end."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "executed_files.py"
BOUND = 97
"""85 once, and two more where kernels are compiled. Ten came with what a run asks once at its start
and does not use then: whether terms are added, whether the system is divided, whether steps are of
two lengths, which level of theory files state, and numba's cache with the loops of lists."""


@pytest.mark.slow
def test_a_default_run_executes_few_files() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, check=True, timeout=600
    )
    lines = done.stdout.splitlines()
    assert int(lines[-1].removesuffix(" files")) <= BOUND, done.stdout
    name = "engine/replicas/exchange.py"
    assert not any(line.endswith(f" {name}") for line in lines), f"{name} of one system"
