"""Random networks of TorchMD-Net and MatGL against those programs, where they are installed.

MDGRAPH_TORCHMDNET and MDGRAPH_MATGL name the Python of an environment that has the program,
since they need not share one with mdgraph.
"""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from random_networks import evaluated
from repository import SUPPORT

from mdgraph import load
from mdgraph.system import System

PEERS = {
    "torchmdnet": ("MDGRAPH_TORCHMDNET", "peers_torchmdnet.py"),
    "matgl": ("MDGRAPH_MATGL", "peers_matgl.py"),
}
NETWORKS = 60


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("peer", PEERS)
def test_random_networks_have_the_energies_of_the_peer(tmp_path: Path, peer: str) -> None:
    variable, program = PEERS[peer]
    python = os.environ.get(variable)
    if python is None:
        if importlib.util.find_spec(peer) is None:
            pytest.skip(f"{peer} is not installed; name a Python that has it in {variable}")
        python = sys.executable
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, SUPPORT / program, tmp_path, "0", str(NETWORKS)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    cases = pickle.loads((tmp_path / "cases.pkl").read_bytes())
    assert len(cases) >= 3 * NETWORKS
    for case in cases:
        potential = load(tmp_path / case["path"])
        lattice = {} if case["cell"] is None else {"cell": case["cell"], "pbc": case["pbc"]}
        charge = case["charge"] if potential.uses_charge else None
        system = System(case["numbers"], case["positions"], charge=charge, **lattice)
        state = evaluated(potential, system)
        where = f"{case['path']}, {len(system)} atoms, {potential.config.model_dump_json()[:300]}"
        assert abs(state.energy.item() - case["energy"]) < 1e-10 * len(system), where
        if case["forces"] is None:
            continue
        largest = np.abs(case["forces"]).max()
        difference = np.abs(state.forces.numpy() - case["forces"]).max()
        assert difference < 1e-11 + 1e-9 * largest, where
