"""The implementation that openmm-ml loads by the name `mdgraph`.

openmm-ml loads every installed potential when it is imported, so this module imports nothing
heavy and nothing that may be missing.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import openmm
from openmm import app, unit
from openmmml.mlpotential import MLPotential, MLPotentialImpl, MLPotentialImplFactory

from mdgraph.arguments import checked, real_number, whole_numbers
from mdgraph.drivers.arguments import FROM_CHECKPOINT, check_known
from mdgraph.errors import InputError, name_some

OF_EMBEDDINGS: Final = ("linkAtomDistances", "mlLongRange")
"""Arguments of openmm-ml's own embedding, which passes them to the potential too."""


def check_names(others: Iterable[str], taking: Callable[..., Any], mixed: bool) -> None:
    """Refuses arguments that neither the potential nor openmm-ml takes.

    Args:
        others: the arguments in question.
        taking: the function whose optional arguments are those of the potential.
        mixed: whether `createMixedSystem` was called, not `createSystem`.

    Raises:
        InputError: an unknown argument; it proposes the nearest known one.
    """
    if {"inner_potential", "inner_steps", "innerPotential", "innerSteps"} & set(others):
        raise InputError(
            "Here OpenMM integrates, and two potentials share the steps of mdgraph's own dynamics "
            "alone; give inner_potential to mdgraph.drivers.openmm.Simulation."
        )
    method = MLPotential.createMixedSystem if mixed else MLPotential.createSystem
    known = [*_optional(taking), *_optional(method), *(OF_EMBEDDINGS if mixed else ())]
    check_known(f"{method.__name__} of mdgraph", others, known)


def number_in(expected: Any, name: str, value: Any) -> float:
    """A number in an OpenMM unit, from a Quantity or from a plain number in that unit.

    Raises:
        InputError: not a number, or a Quantity of another dimension.
    """
    try:
        number = value.value_in_unit(expected) if isinstance(value, unit.Quantity) else value
        return real_number(number, name, f"{expected.get_name()}s")
    except TypeError:
        raise InputError(
            f"{name}={value} is not a number of {expected.get_name()}s; give a plain number or one "
            "with its unit."
        ) from None


def _optional(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is not parameter.empty]


class PotentialFactory(MLPotentialImplFactory):
    """Makes `MLPotential('mdgraph', modelPath=...)`."""

    @checked
    def createImpl(self, name: str, modelPath: str | None = None) -> MLPotentialImpl:
        """See MLPotentialImplFactory.

        Args:
            name: `mdgraph`.
            modelPath: what `mdgraph.load` takes: a path, or the name of a shipped potential.

        Raises:
            InputError: no modelPath.
        """
        if modelPath is None:
            from mdgraph.shipped import shipped_potentials

            raise InputError(
                "Give MLPotential('mdgraph', modelPath=...) the path of a potential or a name "
                f"that comes with mdgraph: {name_some(list(shipped_potentials()))}."
            )
        return PotentialImplementation(str(modelPath))


class PotentialImplementation(MLPotentialImpl):
    """Adds a potential of mdgraph to Systems, as a PythonForce."""

    def __init__(self, path: str) -> None:
        """Keeps the path or name of the potential; `addForces` loads it."""
        self._path = path

    @checked
    def addForces(
        self,
        topology: app.Topology,
        system: openmm.System,
        atoms: Iterable[int] | None,
        forceGroup: int,
        charge: Any = 0.0,
        device: str = "auto",
        precision: str = "mixed",
        evaluator: str = "auto",
        check: bool = True,
        coulombCutoff: Any = FROM_CHECKPOINT,
        terms: str | Sequence[str] = (),
        **others: Any,
    ) -> None:
        """See MLPotentialImpl. Users pass the arguments from `charge` on to `createSystem`.

        Args:
            topology: gives elements and bonds.
            system: gets the force, which is periodic if the system or the topology is.
            atoms: indices of the atoms of the potential; None takes all.
            forceGroup: of the force, 0 to 31.
            charge: total charge of the atoms, in e or with its unit.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`.
            evaluator: `auto`, `fused` or `reference`.
            check: compare a fast evaluator with the reference on the first positions.
            coulombCutoff: of the reaction field of a potential with Coulomb energy, in nm or
                with its unit; None sums all pairs.
            terms: texts of terms to add to the potential, such as `["d3bj:pbe"]`.
            others: the arguments of openmm-ml's own embedding; every other name is refused,
                those of an embedding of another package too.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: names, options or atoms that the potential does not take.
        """
        from mdgraph.drivers.openmm.topology import add_molecules, numbers_of
        from mdgraph.drivers.openmmml.force import PotentialForce, model_named

        check_names(others, self.addForces, mixed=atoms is not None)
        total = number_in(unit.elementary_charge, "charge", charge)
        if not 0 <= forceGroup < 32:
            raise InputError(f"forceGroup is {forceGroup}; OpenMM has groups from 0 to 31.")
        if coulombCutoff is not None and not (
            isinstance(coulombCutoff, str) and coulombCutoff == FROM_CHECKPOINT
        ):
            coulombCutoff = 10.0 * number_in(unit.nanometer, "coulombCutoff", coulombCutoff)
        count = topology.getNumAtoms()
        chosen = list(range(count))
        if atoms is not None:
            chosen = whole_numbers(
                list(atoms) if isinstance(atoms, Iterable) else atoms, "The atoms of the potential"
            )
        absent = [atom for atom in chosen if not 0 <= atom < count]
        if absent:
            raise InputError(
                f"Atoms {name_some(absent)} are not in the topology, which has {count}; give "
                f"indices from 0 to {count - 1}."
            )
        numbers = numbers_of(topology, chosen).tolist()
        # A force field may be periodic where the topology has no box.
        periodic = topology.getPeriodicBoxVectors() is not None
        periodic = periodic or system.usesPeriodicBoundaryConditions()
        model = model_named(self._path, device, precision, evaluator, coulombCutoff, check, terms)
        bonds = _bonds_within(topology, set(chosen))
        places = {atom: place for place, atom in enumerate(chosen)}
        own = [(places[first], places[second]) for first, second in bonds]
        evaluate = PotentialForce(model, numbers, periodic, total, own)
        evaluate.evaluator()  # raises here, before there is a Context
        force = openmm.PythonForce(evaluate)
        force.setForceGroup(forceGroup)
        force.setUsesPeriodicBoundaryConditions(periodic)
        if atoms is not None:
            force.setParticles(chosen)
        system.addForce(force)
        add_molecules(system, bonds, periodic, forceGroup)

    def getMLLongRange(self) -> bool:
        """False: all interactions end at a cutoff; Coulomb energy has a reaction field."""
        return False


def _bonds_within(topology: Any, atoms: set[int]) -> list[tuple[int, int]]:
    bonds = ((first.index, second.index) for first, second in topology.bonds())
    return [bond for bond in bonds if atoms.issuperset(bond)]
