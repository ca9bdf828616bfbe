"""The engine's integrator for an integrator and a barostat of OpenMM."""

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import openmm

from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    NoseHooverChains,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.errors import InputError
from mdgraph.units import BAR, PICOSECOND

logger = logging.getLogger(__name__)

LONGEST_TIMESTEP: Final = 20.0
"""fs; a longer time step is a number of fs without its unit, which OpenMM reads as ps."""

ALL_GROUPS: Final = -1
"""All force groups, in OpenMM's bit mask."""

_Values = dict[str, float]


def _langevin(integrator: Any) -> _Values:
    friction = integrator.getFriction()._value
    return {"temperature": integrator.getTemperature()._value, "friction": friction}


def _nose_hoover(integrator: Any) -> _Values:
    frequency = integrator.getCollisionFrequency()._value
    if frequency <= 0.0:
        raise InputError(f"The collision frequency is {frequency} /ps; it must lie above zero.")
    tau = PICOSECOND / frequency
    return {"temperature": integrator.getTemperature()._value, "tau": tau}


_ENSEMBLES: Final[dict[type, tuple[type[Integrator], Callable[[Any], _Values]]]] = {
    openmm.VerletIntegrator: (VelocityVerlet, lambda _: {}),
    openmm.LangevinMiddleIntegrator: (LangevinMiddle, _langevin),
    openmm.NoseHooverIntegrator: (NoseHooverChains, _nose_hoover),
}


def _cell_dof(barostat: Any) -> str:
    """How the cell of a barostat varies; raises InputError for a cell that the engine has not."""
    membrane = openmm.MonteCarloMembraneBarostat
    if not isinstance(barostat, membrane):
        return "isotropic"
    words = {membrane.ZFree: "semiisotropic", membrane.ZFixed: "semiisotropic-fixed-z"}
    if barostat.getXYMode() != membrane.XYIsotropic or barostat.getZMode() not in words:
        raise InputError(
            "The engine scales x and y of a membrane together, and z alone or not at all; give "
            "MonteCarloMembraneBarostat XYIsotropic, and ZFree or ZFixed."
        )
    return words[barostat.getZMode()]


class Dynamics:
    """The engine's integrator for one of OpenMM, whose parameters stay on OpenMM's object.

    An integrator of the engine is used as it is.

    Attributes:
        source: the integrator of the user, of OpenMM or of the engine.
        barostat: one of `BAROSTATS`, or None.
        native: whether `source` is an integrator of the engine.
    """

    def __init__(self, integrator: Any, barostat: Any = None) -> None:
        """Checks that the engine has such dynamics.

        Raises:
            InputError: an integrator that the engine does not have, or that has invalid
                parameters; a barostat without a thermostat, or one of another cell.
        """
        self.source = integrator
        self.barostat = barostat
        self.native = isinstance(integrator, Integrator)
        name = type(integrator).__name__
        if barostat is not None:
            self._cell_dof = _cell_dof(barostat)
        if self.native and barostat is not None:
            raise InputError(
                f"A {type(barostat).__name__} goes with an integrator of OpenMM, not with "
                f"{name}; give the engine's StochasticCellRescaling alone."
            )
        if self.native and "timestep" not in integrator.parameters:
            raise InputError(
                f"{name} makes no steps in time; give dynamics, and call "
                "simulation.minimizeEnergy() to relax."
            )
        if not self.native and type(integrator) not in _ENSEMBLES:
            names = ", ".join(integrator_type.__name__ for integrator_type in _ENSEMBLES)
            raise InputError(
                f"The engine has no {name}; give {names}, or an integrator of mdgraph.engine."
            )
        if isinstance(integrator, openmm.NoseHooverIntegrator) and (
            integrator.hasSubsystemThermostats()
            or integrator.getNumThermostats() != 1
            or integrator.getThermostat(0).getChainLength() != 3
        ):
            raise InputError(
                "The engine has one Nose-Hoover chain of 3 for all atoms, no others; make the "
                "integrator as NoseHooverIntegrator(temperature, frequency, timestep)."
            )
        if not self.native and integrator.getIntegrationForceGroups() != ALL_GROUPS:
            raise InputError(
                f"The {name} integrates some force groups alone, and the engine has one force; "
                "leave setIntegrationForceGroups out."
            )
        if barostat is not None and isinstance(integrator, openmm.VerletIntegrator):
            raise InputError(
                f"A {type(barostat).__name__} needs a bath beside it; give "
                "LangevinMiddleIntegrator or NoseHooverIntegrator, not VerletIntegrator."
            )
        if not self.native:
            self._check_timestep()

    @property
    def timestep(self) -> float:
        """The time step, fs."""
        if self.native:
            return float(self.source.parameters["timestep"].start[0])
        return float(self.source.getStepSize()._value * PICOSECOND)

    def _check_timestep(self) -> None:
        if self.timestep > LONGEST_TIMESTEP:
            raise InputError(
                f"The time step is {self.timestep:g} fs; OpenMM reads plain numbers as ps, so "
                "give a unit, as in 0.5*unit.femtoseconds."
            )

    def seed(self) -> int:
        """The seed of the integrator or the barostat; drawn if neither has one, as in OpenMM."""
        for owner in (self.source, self.barostat):
            seed = owner.getRandomNumberSeed() if hasattr(owner, "getRandomNumberSeed") else 0
            if seed:
                return int(seed) % 2**32
        return secrets.randbits(31)

    def values(self, parameters: Mapping[str, float]) -> _Values:
        """The current parameters, by the engine's names and in its units.

        Args:
            parameters: of the Context, which holds those of the barostat.

        Raises:
            InputError: a time step in another unit, different temperatures of integrator and
                barostat, a friction of 0 with a barostat, or a surface tension.
        """
        if self.native:
            return {}
        self._check_timestep()
        values = {"timestep": self.timestep, **_ENSEMBLES[type(self.source)][1](self.source)}
        if self.barostat is None:
            return values
        barostat = type(self.barostat)
        temperature = parameters[barostat.Temperature()]
        if temperature != values["temperature"]:
            raise InputError(
                f"The barostat is at {temperature:g} K, the bath at {values['temperature']:g} K; "
                "set both to the same temperature."
            )
        if "friction" in values:
            if values["friction"] <= 0.0:
                raise InputError(
                    f"A {barostat.__name__} needs a bath beside it, and with a friction of 0 "
                    "there is none; give LangevinMiddleIntegrator a friction above zero."
                )
            # Friction damps the kinetic energy twice as fast as the velocities.
            values["tau"] = 0.5 * PICOSECOND / values.pop("friction")
        if barostat is openmm.MonteCarloMembraneBarostat:
            tension = parameters[barostat.SurfaceTension()]
            if tension:
                raise InputError(
                    f"The membrane has a surface tension of {tension:g} bar nm, and the engine's "
                    "barostat none; give a tension of 0."
                )
        values["pressure"] = parameters[barostat.Pressure()] * BAR
        return values

    def integrator(self, values: _Values) -> Integrator:
        """The engine's integrator with these parameters; raises InputError for invalid ones."""
        if self.native:
            native: Integrator = self.source
            return native
        integrator_class: type[Integrator] = _ENSEMBLES[type(self.source)][0]
        if self.barostat is not None:
            logger.info(
                "%s becomes stochastic cell rescaling (%s) at %g bar, and %s its bath at %g K with "
                "a relaxation time of %g fs",
                type(self.barostat).__name__,
                self._cell_dof,
                values["pressure"] / BAR,
                type(self.source).__name__,
                values["temperature"],
                values["tau"],
            )
            return StochasticCellRescaling(cell_dof=self._cell_dof, axes=None, **values)
        return integrator_class(**values)
