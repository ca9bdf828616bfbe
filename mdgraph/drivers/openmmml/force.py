"""PotentialForce: the callable of openmm-ml's PythonForce, stored by path and hash.

OpenMM's XML names `Model` and `PotentialForce` with their fields: they must keep their names.
"""

import contextlib
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from mdgraph.checkpoints import load
from mdgraph.checkpoints.location import locate
from mdgraph.devices import device_named, shared_stream
from mdgraph.drivers.arguments import with_coulomb_cutoff
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.drivers.openmm.topology import FORCE, Array, check_unit
from mdgraph.engine import Calculation
from mdgraph.engine.calculation import as_evaluator, check_charge
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.models import PotentialModule, check_coulomb_range, check_species, with_terms
from mdgraph.models.terms import term_texts
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.units import KILOJOULE_PER_MOLE, NANOMETRE


@dataclass(frozen=True)
class Model:
    """A potential and how it is evaluated.

    Attributes:
        source: name of a shipped potential, or absolute path.
        digest: SHA-256 of its files.
        device, precision, evaluator: see `mdgraph.engine.Calculation`.
        coulomb_cutoff: see `MDGraphCalculator`.
        check: whether a fast evaluator is compared with the reference.
        terms: texts of terms that are added, see `mdgraph.models.terms`.
    """

    source: str
    digest: str
    device: str
    precision: str
    evaluator: str
    coulomb_cutoff: float | str | None
    check: bool
    terms: tuple[str, ...] = ()


def model_named(
    path: str,
    device: str,
    precision: str,
    evaluator: str,
    coulomb_cutoff: float | str | None,
    check: bool,
    terms: str | Sequence[str] = (),
) -> Model:
    """A Model with the absolute path and the hash of a potential.

    Raises:
        FileError: there is no such potential.
        InputError: unknown device or precision.
    """
    device_named(device)
    precision = precision_named(precision).name
    source = locate(path).reference
    digest = _digest(source)
    texts = term_texts(terms)
    return Model(source, digest, str(device), precision, evaluator, coulomb_cutoff, check, texts)


# Few, as each holds its weights and tables for as long as the process lives.
@functools.lru_cache(maxsize=4)
def evaluator_of(model: Model) -> Evaluator:
    """The evaluator of a model, shared by all Forces of the process.

    Raises:
        FileError: the files are missing, or have changed.
        CheckpointError: they are not a potential.
    """
    digest = _digest(model.source)
    if digest != model.digest:
        raise FileError(
            f"{model.source} is not the potential that this System was made with: its hash is "
            f"{digest[:12]}, not {model.digest[:12]}; put back the file or make the System anew."
        )
    potential = with_coulomb_cutoff(load(model.source), model.coulomb_cutoff)
    potential = with_terms(potential, model.terms)
    device = device_named(model.device)
    return as_evaluator(potential, precision_named(model.precision), device, model.evaluator)


def _digest(source: str) -> str:
    files = locate(source).files()
    digest = hashlib.sha256()
    try:
        for file in files:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    except OSError:
        load(source)  # raises the usual error
        raise InputError(f"{source} cannot be read; check it.") from None
    return digest.hexdigest()


_CHECKED: Final[set[Model]] = set()


class PotentialForce:
    """Energy and forces of a potential, for `openmm.PythonForce`.

    On CUDA one graph computes lists, energy and forces. A list that overflows grows, and the
    evaluation is repeated before OpenMM gets a result. XML holds the path and the hash of the
    potential, not its weights; a copy has buffers of its own.
    """

    def __init__(
        self,
        model: Model,
        numbers: Sequence[int],
        periodic: bool,
        charge: float,
        bonds: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Keeps its arguments; it checks nothing, because an error while OpenMM reads XML is fatal.

        Args:
            model: the potential.
            numbers: (N,) atomic numbers of the particles.
            periodic: whether to use the box of the Context.
            charge: total charge, e.
            bonds: pairs of these particles, by which the first call notices a missing unit;
                each takes some 16 bytes of XML.
        """
        self._arguments = (model, tuple(numbers), periodic, charge, tuple(bonds))
        self._calculation: tuple[Calculation, Any] | None = None

    def evaluator(self) -> Evaluator:
        """The evaluator of the potential, after a check of the atoms.

        Raises:
            FileError, CheckpointError: see `evaluator_of`.
            InputError: species or a charge that the potential does not know, or a Coulomb sum
                over all pairs in a periodic box.
        """
        model, numbers, periodic, charge, _ = self._arguments
        evaluator = evaluator_of(model)
        check_species(evaluator.species, list(numbers))
        if isinstance(evaluator.potential, PotentialModule):
            evaluator.potential.check_atoms(numbers)
        check_charge(evaluator, charge)
        advice = "coulombCutoff=1.2*unit.nanometers for a reaction field"
        check_coulomb_range(evaluator.cutoffs, periodic, advice)
        return evaluator

    def __reduce__(self) -> Any:
        return type(self), self._arguments

    def __call__(self, state: Any) -> tuple[float, Array]:
        """Energy in kJ/mol and forces (N, 3) float64 in kJ/mol/nm; syncs.

        Args:
            state: a State with positions, and with a box if the force is periodic.

        Raises:
            InputError: positions or results that are not finite, two atoms at one place; in the
                first call, positions or a box without their unit.
        """
        positions = state.getPositions(asNumpy=True)._value
        box = state.getPeriodicBoxVectors(asNumpy=True)._value if self._arguments[2] else None
        if not np.isfinite(positions).all():
            raise InputError("The positions are not finite; take a shorter time step.")
        with EVALUATION_LOCK:
            calculation, stream = self._calculation or self._begin(positions, box)
            with stream:
                calculation.place(positions, box, NANOMETRE)
                outputs = calculation.computed(graphed=calculation.device.type == "cuda")
                energy = float(outputs.energy[0]) / KILOJOULE_PER_MOLE
                # A new array: OpenMM copies it when another thread may already call this again.
                forces: Array = np.divide(outputs.forces, FORCE, dtype=np.float64)
                if not outputs.finite:
                    calculation.check_coincident()
                    raise InputError("Energy or forces are not finite; check the structure.")
                self._check(calculation)
        return energy, forces

    def _begin(self, positions: Array, box: Array | None) -> tuple[Calculation, Any]:
        """Makes lists and buffers for the positions of the first call."""
        model, numbers, periodic, charge, bonds = self._arguments
        stream: Any = contextlib.nullcontext()
        system = System(
            numbers=np.array(numbers),
            positions=positions * NANOMETRE,
            cell=np.zeros((3, 3)) if box is None else box * NANOMETRE,
            pbc=np.full(3, periodic),
            charge=charge,
        )
        check_unit(system, np.array(bonds, dtype=np.int64).reshape(-1, 2))
        calculation = Calculation(
            [system], self.evaluator(), device=model.device, precision=model.precision
        )
        if calculation.device.type == "cuda":
            # The new stream does not wait for the current one, which fills the buffers.
            torch.cuda.synchronize(calculation.device)
            stream = torch.cuda.stream(shared_stream(calculation.device, "force"))
        self._calculation = calculation, stream
        return self._calculation

    def _check(self, calculation: Calculation) -> None:
        """Compares with the reference, once for each model in a process."""
        model = self._arguments[0]
        if model.check and model not in _CHECKED:
            state, lists = calculation.state, calculation.lists
            self_check(calculation.evaluator, state, lists, calculation.precision)
            _CHECKED.add(model)
