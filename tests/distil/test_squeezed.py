"""Squeezed lattices continue a teacher's energies by Vinet's equation of state."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from mdgraph.distil.config import SamplingConfig
from mdgraph.distil.squeezed import GROUP, Compression, squeezed
from mdgraph.evaluators import Evaluator
from mdgraph.io.structures import from_ase
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

CPU = torch.device("cpu")


class VinetLattice(Evaluator):
    """Each cell of volume V has Vinet's energy of V / V0, without forces.

    Lattices squeezed beyond `end` pull, as a network's may.
    """

    modulus, eta, volume = 0.9, 5.0, 12.0

    def __init__(self, end: float = 0.0, force: float = 0.0) -> None:
        self.cutoffs = (5.0,)
        self.end, self.force = end, force

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        volumes = torch.linalg.det(state.cell.double()).abs()
        atoms = state.grouping.counts.double()
        x = (volumes / atoms / self.volume) ** (1 / 3)
        state.energy.copy_(atoms * torch.where(x < self.end, -x, vinet_energy(x)))
        pressure = 3 * self.modulus * (1 - x) / x**2 * torch.exp(self.eta * (1 - x))
        pressure = torch.where(x < self.end, -pressure, pressure)
        eye = torch.eye(3, dtype=state.virial.dtype)
        state.virial.copy_((pressure * volumes)[:, None, None].to(eye.dtype) * eye)
        state.forces.fill_(self.force)


def vinet_energy(x: torch.Tensor) -> torch.Tensor:
    """eV an atom above rest."""
    eta, scale = VinetLattice.eta, 9.0 * VinetLattice.modulus * VinetLattice.volume
    return scale / eta**2 * (1.0 - (1.0 - eta * (1.0 - x)) * torch.exp(eta * (1.0 - x)))


def crystal(scale: float = 1.0) -> System:
    atoms = bulk("Cu", "fcc", a=scale * (4 * VinetLattice.volume) ** (1 / 3), cubic=True)
    return from_ase(atoms)


def test_energies_go_on_as_those_of_a_solid() -> None:
    """The teacher ends at 0.87; what is asked of it above gives the curve that it had below."""
    config = SamplingConfig(squeezed=12, believed_to=0.88, squeezed_to=0.6, squeezed_weight=0.05)
    frames = squeezed([crystal(1.02)], [VinetLattice(end=0.87)], config, CPU, seed=1)
    assert len(frames) == 12
    scales = np.array([(abs(np.linalg.det(f.cell)) / 48.0) ** (1 / 3) for f in frames])
    assert scales.min() > 0.6
    assert scales.max() < 0.88
    assert np.diff(np.sort(scales)).max() < 2 * 0.28 / 12
    expected = 4 * vinet_energy(torch.tensor(scales)).numpy()
    np.testing.assert_allclose([frame.energy for frame in frames], expected, rtol=2e-3)
    assert {(frame.group, frame.weight) for frame in frames} == {(GROUP, 0.05)}
    assert not any(np.any(frame.forces) for frame in frames)


def test_a_lattice_is_squeezed_once_however_often_it_is_given() -> None:
    config = SamplingConfig(squeezed=9)
    starts = [crystal(1.0), crystal(1.03), crystal(0.97)]
    frames = squeezed(starts, [VinetLattice(), VinetLattice()], config, CPU, seed=1)
    assert len(frames) == 9


@pytest.mark.parametrize(
    ("start", "teacher"),
    [
        (crystal(1.2), VinetLattice()),
        (crystal(), VinetLattice(force=0.2)),
        (crystal(), VinetLattice(end=0.92)),
        (from_ase(Atoms("Cu2", [[0, 0, 0], [0, 0, 2.2]])), VinetLattice()),
    ],
    ids=["far from rest", "with forces", "that softens before", "of no lattice"],
)
def test_structures_that_are_left_out(
    start: System, teacher: VinetLattice, caplog: pytest.LogCaptureFixture
) -> None:
    config = SamplingConfig(squeezed=5)
    assert squeezed([start], [teacher], config, CPU, seed=1) == []
    assert "No structure is a lattice at rest" in caplog.text


def test_pressures_are_continuous_and_slopes_of_energies() -> None:
    curve = Compression(crystal(), 0.88, -3.0, 0.7, 4.0)
    assert curve.pressures(np.array([0.88]))[0] == pytest.approx(0.7)
    assert curve.energies(np.array([0.88]))[0] == pytest.approx(-3.0)
    x, step = np.linspace(0.5, 0.87, 9), 1e-5
    slope = (curve.energies(x + step) - curve.energies(x - step)) / (2 * step)
    volumes = 3 * curve.crystal.volume * x**2
    np.testing.assert_allclose(-slope / volumes, curve.pressures(x), rtol=1e-6)
    assert (np.diff(curve.pressures(x)) < 0).all()
