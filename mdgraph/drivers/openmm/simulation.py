"""Simulation: OpenMM's, with its reporters and files, at the engine's speed."""

from math import inf
from pathlib import Path
from typing import Any

import openmm
import torch
from openmm import app

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.drivers.openmm.context import EngineContext, EngineForce, EngineIntegrator
from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.making import EngineMaker, Options
from mdgraph.drivers.openmm.mirror import Mirror, logger
from mdgraph.drivers.openmm.particles import particles_of
from mdgraph.drivers.openmm.states import state_of
from mdgraph.drivers.turns import EVALUATING
from mdgraph.engine import Simulation as Engine
from mdgraph.engine.potentials import as_evaluator, check_charge, uses_charge
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.models import Potential, check_species
from mdgraph.precision import Precision, precision_named


class Simulation(app.Simulation):
    """`openmm.app.Simulation` whose steps are the engine's.

    Reporters, states, checkpoints and minimisation are OpenMM's own. The Context lies on the
    host and is brought up to date when somebody looks; steps in between cost what they cost
    in `mdgraph.engine`.

    Attributes:
        topology, system, integrator, context, reporters: see OpenMM. The System is a copy
            with the engine's force in it.
    """

    @checked
    def __init__(
        self,
        topology: app.Topology,
        potential: str | Path | Potential | Evaluator,
        integrator: Any,
        system: Any = None,
        platform: Any = None,
        platformProperties: Any = None,
        *,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        charge: float | None = None,
        seed: int | None = None,
        skin: float | None = None,
        graph: str = "auto",
        evaluator: str = "auto",
        check: bool = True,
        state: str | None = None,
    ) -> None:
        """Loads the potential and checks everything that needs no positions.

        Args:
            topology: its elements are the atoms, its bonds the molecules that are written
                whole, its box makes the system periodic.
            potential: path, name of a shipped potential, Potential or Evaluator.
            integrator: OpenMM's VerletIntegrator, LangevinMiddleIntegrator or
                NoseHooverIntegrator, or one of `mdgraph.engine`.
            system: masses, where they are not the standard ones, 0 for fixed atoms; a
                CMMotionRemover; a MonteCarloBarostat, which becomes stochastic cell
                rescaling at the same pressure. Anything else in it is refused.
            platform: refused; the engine runs where `device` says.
            platformProperties: refused.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            charge: total charge, e.
            seed: of random numbers; None takes the integrator's, or draws one.
            skin: A, of the neighbor lists; None chooses.
            graph: `auto`, `on` or `off`; see `mdgraph.engine.Simulation`.
            evaluator: `auto`, `fused` or `reference`.
            check: compare a fast evaluator with the reference at the start, in about 5 s.
            state: path of a State in XML to start from.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: anything above that cannot be, or that the engine would not apply.
        """
        if not hasattr(openmm, "PythonForce"):
            raise InputError("This needs OpenMM 8.5 or later; update it with pip.")
        _check_order(potential, system, platformProperties if platform is None else platform)
        particles = particles_of(topology, system)
        dynamics = Dynamics(integrator, particles.barostat)
        wanted = precision_named(precision)
        compute = as_evaluator(potential, wanted, device_named(device), evaluator)
        model = getattr(compute, "potential", None)
        check_species(getattr(model, "species", None), particles.numbers.tolist())
        check_charge(compute, charge or 0.0)
        if particles.box is not None and inf in compute.cutoffs:
            raise InputError(
                "The potential's Coulomb energy runs over all pairs, which have no end in a "
                "periodic system; give mdgraph.load(path).with_coulomb_cutoff(12.0)."
            )
        if charge is None and uses_charge(compute):
            logger.info("No charge is given; the total charge is taken as 0.")
        options = Options(device, wanted.name, charge, seed, skin, graph, check)
        mirror = Mirror(EngineMaker(particles, dynamics, compute, options))
        force = EngineForce()
        _add_forces(particles.system, force, particles.bonds.tolist(), particles.box is not None)
        stepping = EngineIntegrator(dynamics)
        platform = openmm.Platform.getPlatformByName("Reference")
        super().__init__(topology, particles.system, stepping, platform)
        # OpenMM makes the Context by itself; the class adds methods and no data of C++.
        self.context.__class__ = EngineContext
        mirror.context = self.context
        self.context.mirror = stepping.mirror = force.mirror = mirror
        if state is not None:
            self.loadState(state)

    @property
    def engine(self) -> Engine:
        """The engine, with everything that was set here; needs positions."""
        self.context.mirror.catch_up()
        engine: Engine = self.context.mirror.engine()
        return engine

    def step(self, steps: int) -> None:
        """Advances by so many steps, with reports in between."""
        super().step(steps)
        self.context.mirror.catch_up()

    def loadState(self, file: Any) -> None:
        """Goes on from a State in XML, a path or an open file; FileError for other files."""
        self.context.setState(state_of(file))

    def minimizeEnergy(self, *args: Any, **kwargs: Any) -> None:
        """See OpenMM, whose minimiser asks the engine for energies and forces."""
        mirror = self.context.mirror
        with EVALUATING:
            mirror.catch_up()
            mirror.engine()
            mirror.show()
            super().minimizeEnergy(*args, **kwargs)
            mirror.edits.add("moved")


def _check_order(potential: Any, system: Any, platform: Any) -> None:
    """Raises InputError for arguments as OpenMM's own Simulation takes them."""
    if isinstance(potential, openmm.System):
        raise InputError(
            "The second argument is a System, and the potential comes there: give "
            "Simulation(topology, potential, integrator, system)."
        )
    if platform is not None or isinstance(system, openmm.Platform):
        raise InputError(
            "The engine runs on no Platform of OpenMM; leave it out and give device='cuda', "
            "or 'cpu'."
        )
    if system is not None and not isinstance(system, openmm.System):
        raise InputError(
            f"The fourth argument is of type {type(system).__name__}, no System; give "
            "Simulation(topology, potential, integrator, system)."
        )


def _add_forces(system: Any, compute: Any, bonds: list[list[int]], periodic: bool) -> None:
    """The engine's force, and springs without strength that tell OpenMM what a molecule is."""
    force = openmm.PythonForce(compute)
    force.setUsesPeriodicBoundaryConditions(periodic)
    system.addForce(force)
    molecules = openmm.HarmonicBondForce()
    molecules.setUsesPeriodicBoundaryConditions(periodic)
    for first, second in bonds:
        molecules.addBond(first, second, 0.0, 0.0)
    if bonds:
        system.addForce(molecules)
    elif periodic:
        logger.info(
            "The topology has no bonds, so each atom is wrapped by itself; "
            "topology.createStandardBonds() makes those of known residues"
        )
