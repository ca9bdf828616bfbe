"""Dynamics classes of ASE for each ensemble: VelocityVerlet to StochasticCellRescaling."""

import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, Final

from ase import Atoms, units

from mdgraph import engine
from mdgraph.arguments import checked, real_number, renamed_keywords
from mdgraph.drivers.ase.dynamics import EngineDynamics, choose_seed, in_fs, kelvin
from mdgraph.ensembles import ENSEMBLES
from mdgraph.errors import InputError, MDGraphFutureWarning

_PER_PS: Final = 1e3 * units.fs
"""1/ps, of a friction of 1 in ASE's unit, the inverse of its unit of time."""


class VelocityVerlet(EngineDynamics):
    """Constant energy, by `mdgraph.engine.VelocityVerlet`; takes what EngineDynamics takes."""

    def _integrator(self) -> engine.Integrator:
        return engine.VelocityVerlet(in_fs(self.dt, "timestep"))


class Langevin(EngineDynamics):
    """Constant temperature by friction and noise, by `mdgraph.engine.LangevinMiddle`.

    Momenta of `atoms` are those of the middle of the step, where they have their canonical
    averages.
    """

    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        temperature: float | None = None,
        friction: float | None = None,
        fixcm: bool = True,
        *,
        temperature_K: float | None = None,
        rng: None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Takes what `ase.md.langevin.Langevin` takes.

        Args:
            atoms: to be moved.
            timestep: in ASE's unit of time.
            temperature: eV; ASE has deprecated it.
            friction: in 1 over ASE's unit of time.
            fixcm: holds the centre of mass as FixCom does, unless atoms are fixed.
            temperature_K: K.
            rng: None; give `seed`.
            seed: key of the random numbers; drawn from NumPy unless given.
            options: see EngineDynamics.

        Raises:
            InputError: see EngineDynamics.
        """
        if friction is None:
            raise InputError("Langevin dynamics need a friction; 1e-3 / ase.units.fs is 1/ps.")
        self.temperature_K = kelvin(temperature, temperature_K, "eV")
        self.friction = friction
        seed = choose_seed(seed, rng)
        super().__init__(atoms, timestep, seed=seed, fixcm=fixcm, **options)

    def _integrator(self) -> engine.Integrator:
        friction = self.friction * _PER_PS
        return engine.LangevinMiddle(in_fs(self.dt, "timestep"), self.temperature_K, friction)

    @checked
    def set_temperature(
        self, temperature: float | None = None, temperature_K: float | None = None
    ) -> None:
        """Takes another temperature, K, from the next step on."""
        self.temperature_K = kelvin(temperature, temperature_K, "eV")

    @checked
    def set_friction(self, friction: float) -> None:
        """Takes another friction, in 1 over ASE's unit of time, from the next step on."""
        self.friction = friction

    def todict(self) -> dict[str, Any]:
        """See EngineDynamics."""
        own = {"temperature_K": self.temperature_K, "friction": self.friction}
        return super().todict() | own | {"fixcm": self.fixcm}


class Bussi(EngineDynamics):
    """Constant temperature by stochastic rescaling of velocities.

    See `mdgraph.engine.StochasticVelocityRescaling`. Momenta of `atoms` are those of the middle
    of the step. The class has the setters of `ase.md.nvtberendsen.NVTBerendsen`.
    """

    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        temperature_K: float,
        taut: float,
        rng: None = None,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Takes what `ase.md.bussi.Bussi` takes.

        Args:
            atoms: to be moved.
            timestep: in ASE's unit of time.
            temperature_K: K.
            taut: coupling time of the thermostat, in ASE's unit of time.
            rng: None; give `seed`.
            seed: key of the random numbers; drawn from NumPy unless given.
            options: see EngineDynamics.

        Raises:
            InputError: see EngineDynamics.
        """
        self.temperature_K = temperature_K
        self.taut = taut
        super().__init__(atoms, timestep, seed=choose_seed(seed, rng), **options)

    def _integrator(self) -> engine.Integrator:
        return engine.StochasticVelocityRescaling(
            in_fs(self.dt, "timestep"), self.temperature_K, in_fs(self.taut, "taut")
        )

    @checked
    def set_temperature(
        self, temperature: float | None = None, *, temperature_K: float | None = None
    ) -> None:
        """Takes another temperature, K under either name, from the next step on."""
        self.temperature_K = kelvin(temperature, temperature_K, "K")

    def get_temperature(self) -> float:
        """K, of the bath."""
        return self.temperature_K

    @checked
    def set_taut(self, taut: float) -> None:
        """Takes another coupling time, in ASE's unit of time, from the next step on."""
        self.taut = taut

    def get_taut(self) -> float:
        """Coupling time of the thermostat, in ASE's unit of time."""
        return self.taut


class NoseHooverChainNVT(EngineDynamics):
    """Constant temperature, deterministic; see `mdgraph.engine.NoseHooverChains`."""

    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        temperature_K: float,
        tdamp: float,
        tchain: int = 3,
        tloop: int = 1,
        **options: Any,
    ) -> None:
        """Takes what `ase.md.nose_hoover_chain.NoseHooverChainNVT` takes.

        Args:
            atoms: to be moved.
            timestep: in ASE's unit of time.
            temperature_K: K.
            tdamp: coupling time of the chain, in ASE's unit of time.
            tchain: 3.
            tloop: 1.
            options: see EngineDynamics.

        Raises:
            InputError: other chains, and see EngineDynamics.
        """
        check_chains(tchain=tchain, tloop=tloop)
        self.temperature_K = temperature_K
        self.tdamp = tdamp
        super().__init__(atoms, timestep, **options)

    def _integrator(self) -> engine.Integrator:
        return engine.NoseHooverChains(
            in_fs(self.dt, "timestep"), self.temperature_K, in_fs(self.tdamp, "tdamp")
        )


def check_chains(**numbers: int) -> None:
    """Raises InputError for chains and loops that the engine's Nose-Hoover chains do not have."""
    for name, number in numbers.items():
        only = 3 if name.endswith("chain") else 1
        if not isinstance(number, Real) or number != only:
            raise InputError(
                f"{name} is {number}, and the engine's Nose-Hoover chains have {only}; "
                f"leave {name} out."
            )


_BAR: Final = 1e5 * units.Pascal
"""eV/A^3."""

_DEFAULTS: Final = ENSEMBLES["npt"].defaults
_WATER: Final = float(_DEFAULTS["compressibility_per_bar"]) / _BAR
"""Compressibility of water, A^3/eV."""


class IsotropicMTKNPT(EngineDynamics):
    """Constant temperature and pressure, deterministic, in a cell that keeps its shape.

    See `mdgraph.engine.MartynaTobiasKlein`.
    """

    _cell_dof = "isotropic"

    @checked
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
            tdamp: coupling time of the chain, in ASE's unit of time.
            pdamp: coupling time of the cell, in ASE's unit of time.
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
            in_fs(self.dt, "timestep"),
            self.temperature_K,
            self.pressure_au,
            tau=in_fs(self.tdamp, "tdamp"),
            tau_p=in_fs(self.pdamp, "pdamp"),
            cell_dof=self._cell_dof,
        )


class SemiisotropicMTKNPT(IsotropicMTKNPT):
    """IsotropicMTKNPT for a cell whose x and y scale together, and z alone or not at all.

    ASE has no such class. See `mdgraph.engine.MartynaTobiasKlein`.
    """

    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        temperature_K: float,
        pressure_au: float,
        tdamp: float,
        pdamp: float,
        *,
        fixed_z: bool = False,
        **options: Any,
    ) -> None:
        """Takes what IsotropicMTKNPT takes.

        Args:
            atoms: to be moved; the first two cell vectors lie in the xy plane.
            timestep: in ASE's unit of time.
            temperature_K: K.
            pressure_au: eV/A^3.
            tdamp: coupling time of the chain, in ASE's unit of time.
            pdamp: coupling time of the cell, in ASE's unit of time.
            fixed_z: whether the cell keeps its z, as for a slab in a vacuum.
            options: see EngineDynamics.

        Raises:
            InputError: another cell, a gap along z that is not fixed, and see EngineDynamics.
        """
        self._cell_dof = "semiisotropic-fixed-z" if fixed_z else "semiisotropic"
        super().__init__(atoms, timestep, temperature_K, pressure_au, tdamp, pdamp, **options)


class StochasticCellRescaling(Bussi):
    """Constant temperature and pressure by random factors, in place of NPTBerendsen.

    The class has the arguments and setters of `ase.md.nptberendsen.NPTBerendsen`. Unlike
    Berendsen's barostat, it samples the NPT ensemble. See
    `mdgraph.engine.StochasticCellRescaling`. Momenta of `atoms` are those of the middle of the
    step.
    """

    @renamed_keywords(ways="cell_dof")
    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        temperature: float | None = None,
        *,
        temperature_K: float | None = None,
        pressure: float | None = None,
        pressure_au: float | None = None,
        taut: float = float(_DEFAULTS["tau_fs"]) * units.fs,
        taup: float = float(_DEFAULTS["tau_p_fs"]) * units.fs,
        compressibility: float | None = None,
        compressibility_au: float | None = None,
        fixcm: bool = True,
        cell_dof: str = "isotropic",
        axes: Sequence[bool] | None = None,
        rng: None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Takes what `ase.md.nptberendsen.NPTBerendsen` takes, and how the cell may change.

        Args:
            atoms: to be moved.
            timestep: in ASE's unit of time.
            temperature: K, as ASE has it; or give `temperature_K`.
            temperature_K: K.
            pressure: bar; ASE has deprecated it.
            pressure_au: eV/A^3.
            taut: coupling time of the thermostat, in ASE's unit of time.
            taup: coupling time of the barostat, in ASE's unit of time.
            compressibility: 1/bar; ASE has deprecated it.
            compressibility_au: A^3/eV; that of water unless given.
            fixcm: removes the momentum at the start and holds the centre of mass.
            cell_dof: `isotropic`, `semiisotropic`, `semiisotropic-fixed-z`, `axes` or `full`; see
                `mdgraph.engine.kinetics`.
            axes: which cell vectors change their length, for `axes`.
            rng: None; give `seed`.
            seed: key of the random numbers; drawn from NumPy unless given.
            options: see EngineDynamics.

        Raises:
            InputError: a pressure or compressibility in both units, and see EngineDynamics.
        """
        if compressibility is None and compressibility_au is None:
            compressibility_au = _WATER
        self.pressure_au = _one_of("pressure", pressure, _BAR, pressure_au)
        self.taup = taup
        self.compressibility_au = _one_of(
            "compressibility", compressibility, 1.0 / _BAR, compressibility_au
        )
        self._cell_dof = cell_dof, axes
        bath = kelvin(temperature, temperature_K, "K")
        super().__init__(atoms, timestep, bath, taut, rng, seed=seed, fixcm=fixcm, **options)

    def _integrator(self) -> engine.Integrator:
        cell_dof, axes = self._cell_dof
        return engine.StochasticCellRescaling(
            in_fs(self.dt, "timestep"),
            self.temperature_K,
            self.pressure_au,
            tau=in_fs(self.taut, "taut"),
            tau_p=in_fs(self.taup, "taup"),
            compressibility=self.compressibility_au,
            cell_dof=cell_dof,
            axes=axes,
        )

    @checked
    def set_pressure(self, *, pressure_au: float) -> None:
        """Takes another pressure, eV/A^3, from the next step on."""
        self.pressure_au = pressure_au

    def get_pressure(self) -> float:
        """eV/A^3, that the cell is under."""
        return self.pressure_au

    @checked
    def set_taup(self, taup: float) -> None:
        """Takes another coupling time, in ASE's unit of time, from the next step on."""
        self.taup = taup

    def get_taup(self) -> float:
        """Coupling time of the barostat, in ASE's unit of time."""
        return self.taup

    @checked
    def set_compressibility(self, *, compressibility_au: float) -> None:
        """Takes another compressibility, A^3/eV, from the next step on."""
        self.compressibility_au = compressibility_au

    def get_compressibility(self) -> float:
        """A^3/eV."""
        return self.compressibility_au


def _one_of(name: str, older: float | None, unit: float, number: float | None) -> float:
    """A number in ASE's unit, or the one in an older unit times that; see NPTBerendsen.

    Raises InputError where both are given, or neither.
    """
    if older is None and number is not None:
        return number
    if older is None or number is not None:
        times = "nowhere" if older is None else "twice"
        raise InputError(f"The {name} is given {times}; give {name}_au alone.")
    older = real_number(older, f"The {name}", "its unit in ASE")
    message = f"{name} is deprecated by ASE; give {name}_au={older * unit:g}."
    warnings.warn(message, MDGraphFutureWarning, stacklevel=3)
    return older * unit
