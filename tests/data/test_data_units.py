"""Units that the check suspects, and those that it says it cannot tell."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from copper_frames import BOHR, HARTREE, copper, labelled, written

from mdgraph.data import LabelledFrame
from mdgraph.data.checks import Finding, check_dataset, energy_force_consistency, similar_pairs

KCAL = 0.0433641042374


def strewn(count: int = 20, size: float = 0.3) -> list[LabelledFrame]:
    """Copper clusters so unlike that the work of the forces is only roughly the energy."""
    return [labelled(one) for one in copper(2 * count, seed=1, size=size)[0::2]]


def units_found(tmp_path: Path, frames: list[LabelledFrame]) -> list[Finding]:
    (tmp_path / "set.h5").unlink(missing_ok=True)
    said = "work of the forces", "cannot be told", "root mean square a component"
    with written(tmp_path / "set.h5", frames) as dataset:
        found = check_dataset(dataset)
    return [one for one in found if any(part in one.text for part in said)]


@pytest.mark.parametrize(
    ("energy", "force", "said"),
    [
        (1.0, -1.0, "wrong sign"),
        (1.0, BOHR / HARTREE, "hartree/bohr"),
        (1.0 / KCAL, 1.0, "kcal/mol"),
    ],
)
def test_units_are_suspected_where_the_slope_is_blurred(
    tmp_path: Path, energy: float, force: float, said: str
) -> None:
    frames = strewn()
    assert units_found(tmp_path, frames) == []
    turned = [replace(one, energy=energy * one.energy, forces=force * one.forces) for one in frames]
    with written(tmp_path / "turned.h5", turned) as dataset:
        assert abs(energy_force_consistency(dataset, similar_pairs(dataset)).correlation) < 0.9
    (found,) = units_found(tmp_path, turned)
    assert found.wrong
    assert said in found.text


def test_what_cannot_be_told_is_said(tmp_path: Path, mdgraph_command: Callable[..., Any]) -> None:
    for frames in (
        strewn(3),
        strewn(40, size=0.8),
        [replace(one, forces=None) for one in strewn()],
    ):
        (found,) = units_found(tmp_path, frames)
        assert (found.wrong, "cannot be told" in found.text) == (False, True)
    ase.io.write(tmp_path / "few.xyz", copper(6)[0::2], format="extxyz")
    data = tmp_path / "few.h5"
    assert mdgraph_command("data", "convert", tmp_path / "few.xyz", data).status == 0
    done = mdgraph_command("data", "check", data)
    assert (done.status, "Nothing is wrong" in done.out) == (0, False)
    assert "note: Whether energies and forces are in the same units" in done.out


@pytest.mark.parametrize(("factor", "unit"), [(KCAL, "kcal/mol/A"), (0.0103642696562, "kJ/mol/A")])
def test_energies_and_forces_both_in_another_unit_are_noted(
    tmp_path: Path, factor: float, unit: str
) -> None:
    frames = [labelled(one) for one in copper(80, seed=3, size=0.05)[0::2]]
    usual = float(np.median([np.sqrt((frame.forces**2).mean()) for frame in frames]))
    scale = 1.0 / usual / factor
    turned = [replace(one, energy=scale * one.energy, forces=scale * one.forces) for one in frames]
    (found,) = units_found(tmp_path, turned)
    assert not found.wrong
    assert f"may be in {unit} or k" in found.text
    assert "which would make it 1 or" in found.text


def test_energies_of_one_atom_are_suspected(tmp_path: Path) -> None:
    """Of frames of 5 atoms alone, and of frames of 5 and of 10 atoms."""
    frames = [labelled(one) for one in copper(80, seed=3, size=0.05)[0::2]]
    doubled = [
        replace(
            one,
            numbers=np.tile(one.numbers, 2),
            positions=np.concatenate([one.positions, one.positions + 50.0]),
            forces=np.tile(one.forces, (2, 1)),
            energy=2.0 * one.energy,
        )
        for one in frames[:20]
    ]
    for some in (frames, frames[20:] + doubled):
        assert units_found(tmp_path, some) == []
        turned = [replace(one, energy=one.energy / len(one)) for one in some]
        (found,) = units_found(tmp_path, turned)
        assert found.wrong
        assert "energies are those of one atom" in found.text
