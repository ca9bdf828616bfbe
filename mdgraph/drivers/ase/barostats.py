"""Dynamics in a cell that moves, named and parametrised as in `ase.md`."""

from collections.abc import Sequence
from typing import Any, Final

from ase import Atoms, units

from mdgraph import engine
from mdgraph.drivers.ase.dynamics import EngineDynamics, drawn_seed
from mdgraph.drivers.ase.thermostats import check_chains

_WATER: Final = 4.5e-5 / (1e5 * units.Pascal)
"""Compressibility of water, A^3/eV."""


class IsotropicMTKNPT(EngineDynamics):
    """Constant temperature and pressure, deterministic, in a cell that keeps its shape.

    See `mdgraph.engine.MartynaTobiasKlein`.
    """

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        temperature_K: float,
        pressure_au: float,
        tdamp: float,
        pdamp: float,
        tchain: int = 3,
        pchain: int = 3,
        tloop: int = 1,
        ploop: int = 1,
        **options: Any,
    ) -> None:
        """Takes what `ase.md.nose_hoover_chain.IsotropicMTKNPT` takes.

        Args:
            atoms: to be moved; with three periodic directions.
            timestep: in ASE's unit of time.
            temperature_K: K.
            pressure_au: eV/A^3.
            tdamp: time of the chain, in ASE's unit of time.
            pdamp: time of the cell, in ASE's unit of time.
            tchain: 3.
            pchain: 3.
            tloop: 1.
            ploop: 1.
            options: see EngineDynamics.

        Raises:
            InputError: other chains, and see EngineDynamics.
        """
        check_chains(tchain=tchain, pchain=pchain, tloop=tloop, ploop=ploop)
        self.temperature_K = temperature_K
        self.pressure_au = pressure_au
        self.tdamp = tdamp
        self.pdamp = pdamp
        super().__init__(atoms, timestep, **options)

    def _integrator(self) -> engine.Integrator:
        return engine.MartynaTobiasKlein(
            self.dt / units.fs,
            self.temperature_K,
            self.pressure_au,
            relaxation=self.tdamp / units.fs,
            cell_relaxation=self.pdamp / units.fs,
        )


class StochasticCellRescaling(EngineDynamics):
    """Constant temperature and pressure by random factors, in place of NPTBerendsen.

    It has the arguments of `ase.md.nptberendsen.NPTBerendsen` and samples the ensemble, which
    that does not. See `mdgraph.engine.StochasticCellRescaling`. Momenta belong to the middle
    of the step.
    """

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        *,
        temperature_K: float,
        pressure_au: float,
        taut: float = 100.0 * units.fs,
        taup: float = 1000.0 * units.fs,
        compressibility_au: float = _WATER,
        ways: str = "isotropic",
        axes: Sequence[bool] | None = None,
        rng: None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Takes what `ase.md.nptberendsen.NPTBerendsen` takes, and how the cell may change.

        Args:
            atoms: to be moved.
            timestep: in ASE's unit of time.
            temperature_K: K.
            pressure_au: eV/A^3.
            taut: relaxation time of the kinetic energy, in ASE's unit of time.
            taup: relaxation time of the volume, in ASE's unit of time.
            compressibility_au: A^3/eV; that of water unless given.
            ways: `isotropic`, `axes` or `full`; see `mdgraph.engine.deformation`.
            axes: which cell vectors change their length, for `axes`.
            rng: None; give `seed`.
            seed: key of the random numbers; drawn from NumPy unless given.
            options: see EngineDynamics.

        Raises:
            InputError: see EngineDynamics.
        """
        self.temperature_K = temperature_K
        self.pressure_au = pressure_au
        self.taut = taut
        self.taup = taup
        self.compressibility_au = compressibility_au
        self._ways = ways, axes
        super().__init__(atoms, timestep, seed=drawn_seed(seed, rng), **options)

    def _integrator(self) -> engine.Integrator:
        ways, axes = self._ways
        return engine.StochasticCellRescaling(
            self.dt / units.fs,
            self.temperature_K,
            self.pressure_au,
            relaxation=self.taut / units.fs,
            cell_relaxation=self.taup / units.fs,
            compressibility=self.compressibility_au,
            ways=ways,
            axes=axes,
        )
