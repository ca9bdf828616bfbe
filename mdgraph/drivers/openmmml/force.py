"""PotentialForce: the callable of a PythonForce, stored by path and hash, never by weights."""

import contextlib
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from mdgraph.checkpoints import load
from mdgraph.checkpoints.native import FILE_NAME, shipped_potentials
from mdgraph.devices import device_named, shared_stream
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.drivers.openmm.topology import FORCE, KILOJOULE_PER_MOLE, NANOMETRE, Array, check_unit
from mdgraph.engine import Calculation
from mdgraph.engine.calculation import as_evaluator, check_charge
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.models import check_species
from mdgraph.precision import precision_named
from mdgraph.system import System


@dataclass(frozen=True)
class Model:
    """A potential and how it is evaluated.

    Attributes:
        source: name of a shipped potential, or absolute path.
        digest: SHA-256 of its files.
        device, precision, evaluator: see `mdgraph.engine.Calculation`.
        coulomb_cutoff: see `MDGraphCalculator`.
        check: whether a fast evaluator is compared with the reference.
    """

    source: str
    digest: str
    device: str
    precision: str
    evaluator: str
    coulomb_cutoff: float | str | None
    check: bool


def model_named(
    path: str,
    device: str,
    precision: str,
    evaluator: str,
    coulomb_cutoff: float | str | None,
    check: bool,
) -> Model:
    """Finds a potential and hashes it.

    Raises:
        FileError: there is none.
        InputError: no such device or precision.
    """
    device_named(device)
    word = precision_named(precision).name
    source = path if path in shipped_potentials() else str(Path(path).expanduser().resolve())
    digest = _digest(source)
    return Model(source, digest, str(device), word, evaluator, coulomb_cutoff, check)


# Few, as each holds its weights and tables for as long as the process lives.
@functools.lru_cache(maxsize=4)
def evaluator_of(model: Model) -> Evaluator:
    """The evaluator of a model, shared by all Forces of the process.

    Raises:
        FileError: the files are no longer there, or are others.
        CheckpointError: they hold no potential.
    """
    digest = _digest(model.source)
    if digest != model.digest:
        raise FileError(
            f"{model.source} is not the potential that this System was made with: its hash is "
            f"{digest[:12]}, not {model.digest[:12]}; put back the file or make the System anew."
        )
    potential = load(model.source)
    if not isinstance(model.coulomb_cutoff, str):
        potential = potential.with_coulomb_cutoff(model.coulomb_cutoff)
    device = device_named(model.device)
    return as_evaluator(potential, precision_named(model.precision), device, model.evaluator)


def _digest(source: str) -> str:
    shipped = shipped_potentials().get(source)
    path = Path(source) if shipped is None else shipped / FILE_NAME
    if (path / FILE_NAME).exists():
        path /= FILE_NAME
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    found = hashlib.sha256()
    try:
        for file in files:
            with file.open("rb") as content:
                found.update(hashlib.file_digest(content, "sha256").digest())
    except OSError:
        load(source)  # which says it in the words that everybody else hears
        raise InputError(f"{source} cannot be read; check it.") from None
    return found.hexdigest()


_CHECKED: Final[set[Model]] = set()


class PotentialForce:
    """Energy and forces of a potential; give it to `openmm.PythonForce`.

    Lists, energy and forces are one captured graph on CUDA. Where a list overflows it is
    grown and the evaluation repeated before anything goes back to OpenMM. Stored in XML or
    copied, it is the place and hash of the potential, and makes buffers of its own.
    """

    def __init__(
        self,
        model: Model,
        numbers: Sequence[int],
        periodic: bool,
        charge: float,
        bonds: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Keeps its arguments; OpenMM reads XML through here, and dies of an error in that.

        Args:
            model: the potential.
            numbers: atomic numbers of the particles.
            periodic: whether the box of the Context counts.
            charge: total charge, e.
            bonds: pairs of these particles, by which the first call notices a forgotten unit;
                stored with the rest, some 16 bytes of XML each.
        """
        self._arguments = (model, tuple(numbers), periodic, charge, tuple(bonds))
        self._begun: tuple[Calculation, Any] | None = None

    def evaluator(self) -> Evaluator:
        """The potential's, checked against the atoms.

        Raises:
            FileError, CheckpointError: see `evaluator_of`.
            InputError: atoms or a charge that the potential does not take.
        """
        model, numbers, periodic, charge, _ = self._arguments
        evaluator = evaluator_of(model)
        known = getattr(getattr(evaluator, "potential", None), "species", None)
        check_species(known, list(numbers))
        check_charge(evaluator, charge)
        if periodic and np.inf in evaluator.cutoffs:
            raise InputError(
                "The potential's Coulomb energy runs over all pairs, which have no end in a "
                "periodic system; give coulombCutoff=1.2*unit.nanometers for a reaction field."
            )
        return evaluator

    def __reduce__(self) -> Any:
        return type(self), self._arguments

    def __call__(self, state: Any) -> tuple[float, Array]:
        """Energy in kJ/mol and forces (N, 3) in kJ/mol/nm; reads the device.

        Args:
            state: a State with positions, and a box where the force is periodic.

        Raises:
            InputError: positions or results that are not finite, two atoms at one place; in the
                first call, positions or a box that came without their unit.
        """
        positions = state.getPositions(asNumpy=True)._value
        box = state.getPeriodicBoxVectors(asNumpy=True)._value if self._arguments[2] else None
        if not np.isfinite(positions).all():
            raise InputError("The positions are not finite; take a shorter time step.")
        with EVALUATION_LOCK:
            calculation, stream = self._begun or self._begin(positions, box)
            with stream:
                calculation.place(positions, box, NANOMETRE)
                answer = calculation.computed(graphed=calculation.device.type == "cuda")
                energy = float(answer.energy[0]) / KILOJOULE_PER_MOLE
                # An array of its own: OpenMM copies it when other threads may already call again.
                forces: Array = np.divide(answer.forces, FORCE, dtype=np.float64)
                if not answer.finite:
                    calculation.check_coincident()
                    raise InputError("Energy or forces are not finite; check the structure.")
                self._check(calculation)
        return energy, forces

    def _begin(self, positions: Array, box: Array | None) -> tuple[Calculation, Any]:
        """Makes lists and buffers for atoms where they are now."""
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
            # Buffers were filled on the stream that was current, for which the other waits not.
            torch.cuda.synchronize(calculation.device)
            stream = torch.cuda.stream(shared_stream(calculation.device, "force"))
        self._begun = calculation, stream
        return self._begun

    def _check(self, calculation: Calculation) -> None:
        """Once for each model in a process."""
        model = self._arguments[0]
        if model.check and model not in _CHECKED:
            own = calculation
            self_check(own.evaluator, own.state, own.lists, own.precision)
            _CHECKED.add(model)
