"""Frames of water to write, and whether a trajectory holds them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import units

from mdgraph.io.formats import Frame, create_trajectory, read_trajectory
from mdgraph.system import System

SUFFIXES = [".h5", ".extxyz"]
both_formats = pytest.mark.parametrize("suffix", SUFFIXES)


def water(periodic: bool = True) -> System:
    return System(
        numbers=np.array([8, 1, 1, 8, 1, 1]),
        positions=np.arange(18.0).reshape(6, 3),
        cell=np.array([[9.0, 0, 0], [1.0, 9.5, 0], [0.3, 0.2, 10.0]]) * periodic,
        pbc=np.array([True, True, False]) & periodic,
        masses=np.array([15.999, 2.01410177812, 1.008, 15.999, 1.008, 1.008]),
    )


def frame(step: int, system: System | None = None, stress: bool = True) -> Frame:
    """A frame that is a function of its step, with awkward digits."""
    system = system or water()
    random = np.random.default_rng(step)
    shape = (len(system), 3)
    return Frame(
        step=step,
        time_fs=step * 0.1,
        positions=random.normal(scale=1e3, size=shape),
        velocities=random.normal(scale=1e-2, size=shape),
        forces=random.normal(size=shape) * 10.0 ** random.integers(-200, 5, size=shape),
        energy=-29944.0 - step / 3,
        kinetic_energy=step / 7,
        temperature=300.0 + step / 9,
        cell=system.cell * (1 + step * 1e-4),
        stress=random.normal(size=(3, 3)) if stress and system.volume > 0 else None,
    )


def assert_atoms(atoms: Any, expected: Frame) -> None:
    """ASE's atoms are the water of a frame, forces aside."""
    np.testing.assert_array_equal(atoms.numbers, water().numbers)
    np.testing.assert_array_equal(atoms.get_masses(), water().masses)
    np.testing.assert_array_equal(atoms.positions, expected.positions)
    np.testing.assert_array_equal(atoms.cell.array, expected.cell)
    np.testing.assert_array_equal(atoms.pbc, water().pbc)
    np.testing.assert_allclose(atoms.get_velocities(), expected.velocities / units.fs, rtol=1e-14)


def assert_same(found: Frame, expected: Frame) -> None:
    for field in dataclasses.fields(Frame):
        have, want = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "velocities":
            np.testing.assert_allclose(have, want, rtol=1e-14, atol=0)
        elif field.name == "forces":  # in another unit in H5MD
            np.testing.assert_allclose(have, want, rtol=4e-16, atol=0)
        elif want is None:
            assert have is None
        else:
            np.testing.assert_array_equal(have, want, err_msg=field.name)


def assert_holds(path: Path, steps: list[int]) -> None:
    with read_trajectory(path) as reader:
        assert reader.steps.tolist() == steps
        for found in reader:
            assert_same(found, frame(found.step))


def write(path: Path, steps: range) -> Path:
    with create_trajectory(path, water()) as writer:
        for step in steps:
            writer.append(frame(step))
    return path
