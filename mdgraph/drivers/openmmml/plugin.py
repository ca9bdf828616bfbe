"""The implementation that openmm-ml finds under the name `mdgraph`.

openmm-ml loads every potential that is installed when it is imported, so nothing heavy and
nothing that may be missing is imported here.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import openmm
from openmm import app, unit
from openmmml.mlpotential import MLPotential, MLPotentialImpl, MLPotentialImplFactory

from mdgraph.arguments import checked, real_number, whole_numbers
from mdgraph.drivers.arguments import check_known
from mdgraph.errors import InputError, name_some

OF_EMBEDDINGS: Final = ("linkAtomDistances", "mlLongRange")
"""Arguments of openmm-ml's own embedding, which hands them on to the potential as well."""


def check_names(others: Iterable[str], taking: Callable[..., Any], mixed: bool) -> None:
    """Refuses names that neither the potential nor openmm-ml takes.

    Args:
        others: names of arguments that nobody has taken yet.
        taking: the function whose optional arguments are those of the potential.
        mixed: whether `createMixedSystem` was called, not `createSystem`.

    Raises:
        InputError: such a name, with the nearest that is known.
    """
    method = MLPotential.createMixedSystem if mixed else MLPotential.createSystem
    known = [*_optional(taking), *_optional(method), *(OF_EMBEDDINGS if mixed else ())]
    check_known(f"{method.__name__} of mdgraph", others, known)


def plain_number(name: str, value: Any, wanted: Any) -> float:
    """A number in a unit of OpenMM, in which plain numbers are taken to be.

    Raises:
        InputError: no number, or one with a unit of another kind.
    """
    try:
        number = value.value_in_unit(wanted) if isinstance(value, unit.Quantity) else value
        return real_number(number, name, f"{wanted.get_name()}s")
    except TypeError:
        raise InputError(
            f"{name}={value} is no number of {wanted.get_name()}s; give a plain number or one "
            "with its unit."
        ) from None


def _optional(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is not one.empty]


FROM_CHECKPOINT: Final = "from checkpoint"


class PotentialFactory(MLPotentialImplFactory):
    """Makes `MLPotential('mdgraph', modelPath=...)`."""

    @checked
    def createImpl(self, name: str, modelPath: str | None = None) -> MLPotentialImpl:
        """See MLPotentialImplFactory.

        Args:
            name: `mdgraph`.
            modelPath: what `mdgraph.load` takes: a path, or the name of a shipped potential.

        Raises:
            InputError: no path.
        """
        if modelPath is None:
            from mdgraph.checkpoints.native import shipped_potentials

            raise InputError(
                "Give MLPotential('mdgraph', modelPath=...) the path of a potential or a name "
                f"that comes with mdgraph: {name_some(list(shipped_potentials()))}."
            )
        return PotentialImplementation(str(modelPath))


class PotentialImplementation(MLPotentialImpl):
    """A potential of mdgraph as Forces of OpenMM."""

    def __init__(self, path: str) -> None:
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
        **others: Any,
    ) -> None:
        """See MLPotentialImpl. The arguments from `charge` on go to `createSystem`.

        Args:
            topology: elements and bonds.
            system: what the force is added to; periodic if it or the topology is.
            atoms: those of the potential, None for all.
            forceGroup: of the force.
            charge: total charge of the atoms, in e or with its unit.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`.
            evaluator: `auto`, `fused` or `reference`.
            check: compare a fast evaluator with the reference on the first positions.
            coulombCutoff: of the reaction field of a potential with Coulomb energy, in nm or
                with its unit; None sums all pairs.
            others: what openmm-ml's embedding takes; every other name is refused, an
                embedding of another package must keep its own to itself.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: names, options or atoms that the potential does not take.
        """
        from mdgraph.drivers.openmmml.force import PotentialForce, model_named

        check_names(others, self.addForces, mixed=atoms is not None)
        total = plain_number("charge", charge, unit.elementary_charge)
        if not 0 <= forceGroup < 32:
            raise InputError(f"forceGroup is {forceGroup}; OpenMM has groups from 0 to 31.")
        if coulombCutoff is not None and not (
            isinstance(coulombCutoff, str) and coulombCutoff == FROM_CHECKPOINT
        ):
            coulombCutoff = 10.0 * plain_number("coulombCutoff", coulombCutoff, unit.nanometer)
        every = list(topology.atoms())
        chosen = list(range(len(every)))
        if atoms is not None:
            chosen = whole_numbers(
                list(atoms) if isinstance(atoms, Iterable) else atoms, "The atoms of the potential"
            )
        absent = [number for number in chosen if not 0 <= number < len(every)]
        if absent:
            raise InputError(
                f"Atoms {name_some(absent)} are not in the topology, which has {len(every)}; give "
                f"indices from 0 to {len(every) - 1}."
            )
        missing = [number for number in chosen if every[number].element is None]
        if missing:
            raise InputError(
                f"Atoms {name_some(missing)} of the topology have no element; a potential of "
                "atoms does not know them."
            )
        # A force field may be periodic where the topology has no box.
        periodic = topology.getPeriodicBoxVectors() is not None
        periodic = periodic or system.usesPeriodicBoundaryConditions()
        model = model_named(self._path, device, precision, evaluator, coulombCutoff, check)
        numbers = [every[number].element.atomic_number for number in chosen]
        bonds = _bonds_within(topology, set(chosen))
        places = {atom: place for place, atom in enumerate(chosen)}
        own = [(places[one], places[other]) for one, other in bonds]
        compute = PotentialForce(model, numbers, periodic, total, own)
        compute.evaluator()  # says what is wrong before there is a Context
        force = openmm.PythonForce(compute)
        force.setForceGroup(forceGroup)
        force.setUsesPeriodicBoundaryConditions(periodic)
        if atoms is not None:
            force.setParticles(chosen)
        system.addForce(force)
        self._add_molecules(bonds, system, forceGroup, periodic)

    def getMLLongRange(self) -> bool:
        """False: interactions end at a cutoff, those of charges by a reaction field."""
        return False

    @staticmethod
    def _add_molecules(
        bonds: list[tuple[int, int]], system: Any, group: int, periodic: bool
    ) -> None:
        """Springs without strength, by which OpenMM knows molecules to wrap and to scale."""
        molecules = openmm.HarmonicBondForce()
        molecules.setForceGroup(group)
        molecules.setUsesPeriodicBoundaryConditions(periodic)
        for first, second in bonds:
            molecules.addBond(first, second, 0.0, 0.0)
        if bonds:
            system.addForce(molecules)


def _bonds_within(topology: Any, atoms: set[int]) -> list[tuple[int, int]]:
    bonds = ((one.index, other.index) for one, other in topology.bonds())
    return [bond for bond in bonds if atoms.issuperset(bond)]
