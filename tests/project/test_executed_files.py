"""How many files a reader meets who follows a default run from `main()` to its end."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "executed_files.py"
BOUND = 97
"""Some only tell a run at its start that it does not use them: added terms, domains, two time
steps and the level of theory that files state; and numba's cache with the loops of lists."""


@pytest.mark.slow
def test_a_default_run_executes_few_files() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, check=True, timeout=600
    )
    lines = done.stdout.splitlines()
    assert int(lines[-1].removesuffix(" files")) <= BOUND, done.stdout
    name = "engine/replicas/exchange.py"
    assert not any(line.endswith(f" {name}") for line in lines), f"{name} of one system"
