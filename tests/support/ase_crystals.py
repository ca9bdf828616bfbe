"""Crystals of argon under dynamics with ASE's interface, and who counts their evaluations."""

from collections.abc import Callable

import numpy as np
import torch
from ase import Atoms, units
from toys import LennardJones, argon

from mdgraph import engine
from mdgraph.drivers.ase import (
    Bussi,
    IsotropicMTKNPT,
    Langevin,
    MDGraphCalculator,
    NoseHooverChainNVT,
    SemiisotropicMTKNPT,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.drivers.ase.dynamics import EngineDynamics
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.structures import to_ase

FS = units.fs
STEP = 4.0 * FS


class Counting(AutogradEvaluator):
    """Counts its evaluations; forces are not finite from one of them on, if asked."""

    def __init__(self, broken_from: int | None = None) -> None:
        super().__init__(LennardJones(0.0104, 3.4, 5.5))
        self.count = 0
        self.broken_from = broken_from

    def evaluate_(self, state, lists) -> None:
        self.count += 1
        super().evaluate_(state, lists)
        if self.broken_from is not None and int(state.step) >= self.broken_from:
            state.forces[3] = torch.nan


def crystal(evaluator: Counting | None = None, *, drifting: bool = False, seed: int = 1) -> Atoms:
    """32 atoms of argon at about 60 K with a calculator of their own."""
    atoms = to_ase(argon(2))
    width = np.sqrt(60.0 * units.kB * atoms.get_masses()[0])
    momenta = np.random.default_rng(seed).normal(scale=width, size=(32, 3))
    atoms.set_momenta(momenta if drifting else momenta - momenta.mean(axis=0))
    atoms.calc = MDGraphCalculator(evaluator or Counting(), device="cpu", precision="double")
    return atoms


def evaluations(atoms: Atoms) -> int:
    return atoms.calc._evaluator.count


ENSEMBLES: dict[str, tuple[Callable[[Atoms], EngineDynamics], engine.Integrator, int]] = {
    "nve": (lambda atoms: VelocityVerlet(atoms, STEP), engine.VelocityVerlet(4.0), 0),
    "langevin": (
        lambda atoms: Langevin(
            atoms, STEP, temperature_K=80, friction=0.002 / FS, fixcm=False, seed=5
        ),
        engine.LangevinMiddle(4.0, 80.0, 0.002 / FS * 1e3 * FS),
        5,
    ),
    "bussi": (
        lambda atoms: Bussi(atoms, STEP, 80, 128 * FS, seed=6),
        engine.StochasticVelocityRescaling(4.0, 80.0, 128.0),
        6,
    ),
    "nose-hoover": (
        lambda atoms: NoseHooverChainNVT(atoms, STEP, temperature_K=80, tdamp=256 * FS),
        engine.NoseHooverChains(4.0, 80.0, 256.0),
        0,
    ),
    "mtk": (
        lambda atoms: IsotropicMTKNPT(atoms, STEP, 80, 1e-3, 256 * FS, 1024 * FS),
        engine.MartynaTobiasKlein(4.0, 80.0, 1e-3, tau=256.0, tau_p=1024.0),
        0,
    ),
    "mtk, semiisotropic": (
        lambda atoms: SemiisotropicMTKNPT(atoms, STEP, 80, 1e-3, 256 * FS, 1024 * FS),
        engine.MartynaTobiasKlein(
            4.0, 80.0, 1e-3, tau=256.0, tau_p=1024.0, cell_dof="semiisotropic"
        ),
        0,
    ),
    "rescaling": (
        lambda atoms: StochasticCellRescaling(
            atoms,
            STEP,
            temperature_K=80,
            pressure_au=1e-3,
            taut=128 * FS,
            taup=512 * FS,
            compressibility_au=50.0,
            cell_dof="axes",
            seed=7,
        ),
        engine.StochasticCellRescaling(
            4.0,
            80.0,
            1e-3,
            tau=128.0,
            tau_p=512.0,
            compressibility=50.0,
            cell_dof="axes",
        ),
        7,
    ),
}
