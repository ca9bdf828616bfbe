"""The probe that pulls hydrogens off carbons moves what it says, and ranks potentials."""

import json
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mdgraph.errors import InputError
from mdgraph.system import System
from mdgraph.validate.probes import falls, stretched_copies


def ethanol() -> System:
    atoms = molecule("CH3CH2OH")
    return System(atoms.numbers, atoms.positions)


def test_hydrogens_of_carbons_move_along_their_bonds() -> None:
    system, lengths = ethanol(), np.array([1.0, 1.6])
    copies = stretched_copies(system, lengths, 6)
    assert len(copies) == 5 * len(lengths)  # not that of the oxygen
    for copy, length in zip(copies, np.tile(lengths, 5), strict=True):
        (moved,) = np.flatnonzero(np.abs(copy.positions - system.positions).max(1))
        assert copy.numbers[moved] == 1
        before, after = (
            one.positions[one.numbers == 6] - one.positions[moved] for one in (system, copy)
        )
        carbon = np.linalg.norm(before, axis=1).argmin()
        assert np.linalg.norm(after[carbon]) == pytest.approx(length)
        assert np.linalg.norm(np.cross(before[carbon], after[carbon])) < 1e-9


def test_the_shipped_ethanol_holds_its_hydrogens(
    printed: Callable[..., str], ethanol_file: Path
) -> None:
    options = ["--frames", 1, "--device", "cpu", "--json"]
    told = json.loads(printed("validate", "stretching", "ethanol-pbe", ethanol_file, *options))
    assert told["bonds"] == 5
    assert told["barrier_eV"] > 2.5
    assert told["barrier_eV"] <= max(told["median_eV"])
    assert told["least_eV"][told["length_A"].index(1.1)] == 0.0
    # A fall of less than kT at 600 K is no way out.
    assert told["deep"] == 0
    assert told["deepest_dip_eV"] < 0.05


def test_its_hydrogen_on_oxygen_falls_off(printed: Callable[..., str], ethanol_file: Path) -> None:
    """As the card says."""
    options = ["--frames", 1, "--device", "cpu", "--json", "--element", "O", "--to", 4]
    told = json.loads(printed("validate", "stretching", "ethanol-pbe", ethanol_file, *options))
    assert (told["bonds"], told["deep"]) == (1, 1)
    assert told["deepest_of"] == [0, "H 3", "O 2"]


def test_a_dip_is_a_fall_after_a_rise() -> None:
    rows = np.array([[2.0, 0.0, 1.0, 0.4, 3.0, 2.9], [0.5, 0.0, 1.0, 2.0, 3.0, 4.0]])
    fallen = falls(rows)
    np.testing.assert_allclose(fallen, [[0.0, 0.0, 0.0, 0.6, 0.0, 0.1], [0.0] * 6])


def test_molecules_without_a_ch_bond_are_refused(
    printed: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "water.xyz"
    ase.io.write(path, molecule("H2O"))
    with pytest.raises(InputError, match="has no bond of C to H; give organic molecules"):
        printed("validate", "stretching", "water-pbe0", path)
