"""Dynamics in a cell that rests, named and parametrised as in `ase.md`."""

from numbers import Real
from typing import Any, Final

from ase import Atoms, units

from mdgraph import engine
from mdgraph.arguments import checked
from mdgraph.drivers.ase.arguments import in_fs, kelvin
from mdgraph.drivers.ase.dynamics import EngineDynamics, drawn_seed
from mdgraph.errors import InputError

_PER_PS: Final = 1e3 * units.fs
"""Frictions in ASE's unit times this are in 1/ps."""


class VelocityVerlet(EngineDynamics):
    """Constant energy; see `mdgraph.engine.VelocityVerlet` and, for arguments, EngineDynamics."""

    def _integrator(self) -> engine.Integrator:
        return engine.VelocityVerlet(in_fs(self.dt, "timestep"))


class Langevin(EngineDynamics):
    """Constant temperature by friction and noise; see `mdgraph.engine.LangevinMiddle`.

    Momenta belong to the middle of the step, where they have their canonical averages.
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
        seed = drawn_seed(seed, rng)
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

    See `mdgraph.engine.StochasticVelocityRescaling`. Momenta belong to the middle of the step.
    It has the setters of `ase.md.nvtberendsen.NVTBerendsen`.
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
            taut: relaxation time of the kinetic energy, in ASE's unit of time.
            rng: None; give `seed`.
            seed: key of the random numbers; drawn from NumPy unless given.
            options: see EngineDynamics.

        Raises:
            InputError: see EngineDynamics.
        """
        self.temperature_K = temperature_K
        self.taut = taut
        super().__init__(atoms, timestep, seed=drawn_seed(seed, rng), **options)

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
        """Takes another relaxation time, in ASE's unit of time, from the next step on."""
        self.taut = taut

    def get_taut(self) -> float:
        """Relaxation time of the kinetic energy, in ASE's unit of time."""
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
            tdamp: time of the chain, in ASE's unit of time.
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
        wanted = 3 if name.endswith("chain") else 1
        if not isinstance(number, Real) or number != wanted:
            raise InputError(
                f"{name} is {number}, and the engine's Nose-Hoover chains have {wanted}; "
                f"leave {name} out."
            )
