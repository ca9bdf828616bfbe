"""What an integrator and a barostat of OpenMM ask of the engine."""

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import openmm

from mdgraph.drivers.openmm.topology import PICOSECOND
from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    NoseHooverChains,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.errors import InputError
from mdgraph.units import BAR

logger = logging.getLogger(__name__)

LONGEST_TIMESTEP: Final = 20.0
"""fs; more than that is a number of fs that OpenMM reads as ps."""

ALL_GROUPS: Final = -1
"""Of forces, as OpenMM's bits."""

_Values = dict[str, float]


def _langevin(integrator: Any) -> _Values:
    friction = integrator.getFriction()._value
    return {"temperature": integrator.getTemperature()._value, "friction": friction}


def _nose_hoover(integrator: Any) -> _Values:
    frequency = integrator.getCollisionFrequency()._value
    if frequency <= 0.0:
        raise InputError(f"The collision frequency is {frequency} /ps; it must lie above zero.")
    relaxation = PICOSECOND / frequency
    return {"temperature": integrator.getTemperature()._value, "relaxation": relaxation}


_ENSEMBLES: Final[dict[type, tuple[type[Integrator], Callable[[Any], _Values]]]] = {
    openmm.VerletIntegrator: (VelocityVerlet, lambda _: {}),
    openmm.LangevinMiddleIntegrator: (LangevinMiddle, _langevin),
    openmm.NoseHooverIntegrator: (NoseHooverChains, _nose_hoover),
}


class Dynamics:
    """The engine's integrator for one of OpenMM, which stays the place of its parameters.

    The engine's own integrators are taken as they are.

    Attributes:
        given: the integrator that was given.
        barostat: MonteCarloBarostat, or None.
    """

    def __init__(self, integrator: Any, barostat: Any = None) -> None:
        """Checks that the engine can do this.

        Raises:
            InputError: an integrator that the engine does not have, with numbers that cannot
                be, or a barostat beside dynamics without a bath.
        """
        self.given = integrator
        self.barostat = barostat
        self.own = isinstance(integrator, Integrator)
        name = type(integrator).__name__
        if self.own and barostat is not None:
            raise InputError(
                f"A MonteCarloBarostat goes with an integrator of OpenMM, not with {name}; give "
                "the engine's StochasticCellRescaling alone."
            )
        if self.own and "timestep" not in integrator.given:
            raise InputError(
                f"{name} makes no steps in time; give dynamics, and call "
                "simulation.minimizeEnergy() to relax."
            )
        if not self.own and type(integrator) not in _ENSEMBLES:
            names = ", ".join(one.__name__ for one in _ENSEMBLES)
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
        if not self.own and integrator.getIntegrationForceGroups() != ALL_GROUPS:
            raise InputError(
                f"The {name} integrates some force groups alone, and the engine has one force; "
                "leave setIntegrationForceGroups out."
            )
        if barostat is not None and isinstance(integrator, openmm.VerletIntegrator):
            raise InputError(
                "A MonteCarloBarostat needs a bath beside it; give LangevinMiddleIntegrator or "
                "NoseHooverIntegrator, not VerletIntegrator."
            )
        if not self.own:
            self._check_timestep()

    @property
    def timestep(self) -> float:
        """Of the next step, fs."""
        if self.own:
            return float(self.given.given["timestep"].start[0])
        return float(self.given.getStepSize()._value * PICOSECOND)

    def _check_timestep(self) -> None:
        if self.timestep > LONGEST_TIMESTEP:
            raise InputError(
                f"The time step is {self.timestep:g} fs; OpenMM reads plain numbers as ps, so "
                "give a unit, as in 0.5*unit.femtoseconds."
            )

    def seed(self) -> int:
        """Of the integrator or the barostat; drawn where neither has one, as OpenMM does."""
        for one in (self.given, self.barostat):
            number = one.getRandomNumberSeed() if hasattr(one, "getRandomNumberSeed") else 0
            if number:
                return int(number) % 2**32
        return secrets.randbits(31)

    def values(self, parameters: Mapping[str, float]) -> _Values:
        """Parameters of the moment in the engine's names and units.

        Args:
            parameters: those of the Context; the barostat's are among them.

        Raises:
            InputError: a time step in another unit, bath and barostat with different
                temperatures, or a bath without friction beside a barostat.
        """
        if self.own:
            return {}
        self._check_timestep()
        found = {"timestep": self.timestep, **_ENSEMBLES[type(self.given)][1](self.given)}
        if self.barostat is None:
            return found
        bath = parameters[openmm.MonteCarloBarostat.Temperature()]
        if bath != found["temperature"]:
            raise InputError(
                f"The barostat is at {bath:g} K, the bath at {found['temperature']:g} K; set both "
                "to the same temperature."
            )
        if "friction" in found:
            if found["friction"] <= 0.0:
                raise InputError(
                    "A MonteCarloBarostat needs a bath beside it, and with a friction of 0 there "
                    "is none; give LangevinMiddleIntegrator a friction above zero."
                )
            # Friction takes kinetic energy twice as fast as velocities.
            found["relaxation"] = 0.5 * PICOSECOND / found.pop("friction")
        found["pressure"] = parameters[openmm.MonteCarloBarostat.Pressure()] * BAR
        return found

    def integrator(self, values: _Values) -> Integrator:
        """One of the engine with these values; raises InputError for values that cannot be."""
        if self.own:
            own: Integrator = self.given
            return own
        kind: type[Integrator] = _ENSEMBLES[type(self.given)][0]
        if self.barostat is not None:
            kind = StochasticCellRescaling
            logger.info(
                "MonteCarloBarostat becomes stochastic cell rescaling at %g bar, and %s its bath "
                "at %g K with a relaxation time of %g fs",
                values["pressure"] / BAR,
                type(self.given).__name__,
                values["temperature"],
                values["relaxation"],
            )
        return kind(**values)
