"""Continuous integration asks links to other sites where a network answers, and else says so."""

import re
import subprocess
from pathlib import Path

import pytest
from repository import ROOT

PYTHON = """#!/bin/sh
echo "$@" >> asked
case "$2" in *urlopen*) exit {network};; *) exit {links};; esac
"""
"""Stands in for the environment's Python: of the probe and of Sphinx, the exit status alone."""


@pytest.mark.parametrize(("network", "links", "status"), [(0, 0, 0), (0, 1, 1), (1, 0, 0)])
def test_links_are_asked_with_a_network_alone(
    network: int, links: int, status: int, tmp_path: Path
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(network=network, links=links), encoding="utf-8")
    python.chmod(0o755)
    source = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    functions = re.findall(
        r"^(?:run|check_links)\(\) \{\n.*?^\}\n", source, re.DOTALL | re.MULTILINE
    )
    assert len(functions) == 2
    script = f"set -euo pipefail\nscratch=there\n{''.join(functions)}check_links\n"
    done = subprocess.run(
        ["bash", "-c", script], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (status, "")
    probe, *others = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert "urlopen" in probe
    command = "-m sphinx -b linkcheck -D nb_execution_mode=off --quiet docs there/links"
    assert others == ([] if network else [command])
    assert ("as there is no network" in done.stdout) == bool(network)
    called = re.findall(r"^(\w+)\(\) \{\n(?:(?!^\}).*\n)*? +check_links\n\}", source, re.MULTILINE)
    assert len(called) == 1
    assert re.search(rf"^{called[0]} .*&$", source, re.MULTILINE)
