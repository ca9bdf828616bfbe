"""Baselines: a training on what given potentials leave of the labels (delta learning).

With E_b, F_b and s_b of the baselines, the network is trained on E - E_b, F - F_b and s - s_b. What
the training writes is the sum of baselines and network. The idea is that of DOI
10.1021/acs.jctc.5b00099, with one potential as the cheap level and labels as the dear one.
"""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.checkpoints import load
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.checkpoints.location import pinned
from mdgraph.data import Dataset, LabelledFrame, open_dataset, write_dataset
from mdgraph.data.dataset import PART
from mdgraph.errors import InputError, name_some
from mdgraph.evaluators import Evaluator
from mdgraph.fused.evaluator import chosen_evaluator
from mdgraph.fused.verification import self_check
from mdgraph.memory import memory_failures
from mdgraph.models import PotentialModule, SumPotential, check_coulomb_range
from mdgraph.models.terms import is_term, term
from mdgraph.neighbors import NeighborList
from mdgraph.precision import precision_named
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

DIFFERENCE_FILE: Final = "difference.h5"
"""The data set of differences, within the folder of a training."""

_ATOMS: Final = {"cpu": 512, "cuda": 4096}
"""Atoms evaluated at a time, if no single frame has more."""

_RATIOS: Final = ((0.95, 1.7), (0.5, 8.0))
"""Correlation of forces, and the ratio of their sizes beyond which units look unlike. Eight is less
than the units of energy and length differ by, but for bohr and A, whose 1.9 good baselines tell."""

_UNRELATED: Final = 0.3
"""Correlation of forces below which a baseline is of little use."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """The potentials whose results are taken off the labels.

    Attributes:
        potential: their sum; each term has the digest of its file.
    """

    potential: SumPotential

    @property
    def text(self) -> str:
        """Names and digests of the terms, and weights other than one."""
        names = self.potential.term_names()
        pairs = zip(names, self.potential.config.terms, strict=True)
        return ", ".join(
            f"{'' if term.weight == 1.0 else f'{term.weight} * '}{name} (sha256 {term.sha256[:12]})"
            for name, term in pairs
        )

    def plus(self, network: PotentialModule, name: str) -> SumPotential:
        """The sum of the baselines and the network that was trained on what they leave."""
        config = network.config
        return SumPotential.of(
            [(self.potential, 1.0), (network, 1.0)],
            learned=1,
            name=name,
            level_of_theory=config.level_of_theory,
            licence=config.licence,
            training_hash=config.training_hash,
        )


def read_baseline(names: tuple[str, ...]) -> Baseline:
    """Loads potentials of any kind, and makes terms.

    Args:
        names: paths or names of potentials, or texts of terms such as `d3bj:pbe`.

    Raises:
        FileError, CheckpointError: see `load`.
        InputError: a term is wrong, or its weight changes along a run.
    """
    parts: list[tuple[PotentialModule, float]] = []
    hashes = []
    for name in names:
        if is_term(name) and not Path(name).exists():
            part, weight = term(name)
            if isinstance(weight, tuple):
                raise InputError(f"baseline: the weight of '{name}' changes; give one number.")
            parts.append((part, weight))
            hashes.append(hashlib.sha256(part.config.model_dump_json().encode()).hexdigest())
        else:
            path = pinned(name)
            part = load(path)
            parts.append((part if part.config.name else _rename(part, Path(path).stem), 1.0))
            hashes.append(potential_sha256(path))
    return Baseline(SumPotential.of(parts, sha256=hashes))


def split_sum(whole: SumPotential, name: str) -> tuple[PotentialModule, Baseline]:
    """The network of a sum that a training wrote, and its baselines.

    Args:
        whole: see `Baseline.plus`.
        name: of the potential, for the error.

    Raises:
        InputError: no term was trained on what the others leave.
    """
    learned = whole.config.learned
    if learned is None:
        raise InputError(
            f"{name} is a sum, and no term of it was trained on what the others leave, so it has "
            "no domain of its own; give the folder of one term."
        )
    others = [number for number in range(len(whole.parts)) if number != learned]
    baseline = SumPotential.of(
        [(whole.parts[number], whole.weights[number]) for number in others],
        sha256=[whole.config.terms[number].sha256 for number in others],
    )
    return whole.parts[learned], Baseline(baseline)


def _rename(potential: PotentialModule, name: str) -> PotentialModule:
    potential.config = potential.config.model_copy(update={"name": name})
    return potential


def write_differences(
    path: Path, dataset: Dataset, baseline: Baseline, device: torch.device
) -> None:
    """Writes a data set with the same frames, whose labels are what the baselines leave.

    Evaluates all frames in `mixed`, in batches.

    Args:
        path: the new file.
        dataset: with the labels.
        baseline: of the training.
        device: where the baselines run.

    Raises:
        InputError: a baseline lacks an element or does not know charges that frames have, or its
            forces look like another unit.
    """
    check_frames(dataset, baseline)
    precision = precision_named("mixed")
    with memory_failures(device):
        evaluator = chosen_evaluator(baseline.potential, precision, device)
        largest = dataset.frame(int(dataset.atoms.argmax()))
        self_check(evaluator, *_evaluated(evaluator, [largest.system()], device), precision)
        forces = _ForceComparison()
        logger.info("The baseline is evaluated for %d frames.", len(dataset))
        bar = tqdm(total=len(dataset), desc="baseline", unit="frame", leave=False, disable=None)

        def differences(frames: NDArray[np.int64]) -> Iterator[LabelledFrame]:
            for start in range(0, len(frames), PART):
                part = list(dataset.frames(frames[start : start + PART]))
                for batch in _batches(part, _ATOMS[device.type]):
                    systems = [frame.system() for frame in batch]
                    results = _results(_evaluated(evaluator, systems, device)[0])
                    for frame, system, result in zip(batch, systems, results, strict=True):
                        forces.add(frame, result)
                        yield _difference(frame, result, system.volume)
                bar.update(len(part))
                forces.check(baseline)

        sources = [
            (
                differences(np.flatnonzero(dataset.source == number)),
                replace(source, importer=_importer(baseline)),
            )
            for number, source in enumerate(dataset.sources)
            if (dataset.source == number).any()
        ]
        assert (np.diff(dataset.source) >= 0).all()
        with bar:
            write_dataset(path, sources)
    forces.say(baseline)


def _importer(baseline: Baseline) -> str:
    return f"mdgraph train, less {baseline.text}"


def open_differences(path: Path, dataset: Dataset, baseline: Baseline) -> Dataset:
    """Opens what `write_differences` wrote.

    Raises:
        InputError: it was written for other frames or baselines.
    """
    differences = open_dataset(path)
    same = len(differences) == len(dataset) and np.array_equal(differences.atoms, dataset.atoms)
    if not same or any(source.importer != _importer(baseline) for source in differences.sources):
        differences.close()
        raise InputError(
            f"{path} holds differences of other data or from other baselines; put back what they "
            "were, or start anew in another folder."
        )
    return differences


def check_frames(dataset: Dataset, baseline: Baseline) -> None:
    """Raises InputError for elements, charges or periodic frames that a baseline cannot take."""
    elements = {int(number) for number in np.unique(dataset.numbers())}
    charged = np.flatnonzero(dataset.charge != 0.0)
    for name, part in zip(baseline.potential.term_names(), baseline.potential.parts, strict=True):
        missing = sorted(elements - set(part.species))
        if missing:
            raise InputError(
                f"baseline: {name} does not know {name_some([SYMBOLS[n] for n in missing])}, which "
                "the data hold; choose a baseline for all elements, or leave those frames out."
            )
        periodic = bool(dataset.pbc.any())
        check_coulomb_range(part.cutoffs, periodic, potential=f"baseline: {name}")
        if len(charged) and not part.uses_charge and not is_term(part.config.architecture):
            raise InputError(
                f"baseline: {name} takes no total charge, and {len(charged)} frames have one "
                f"(frames {name_some(charged.tolist())}); choose a baseline that does, or leave "
                "them out."
            )


def _batches(frames: list[LabelledFrame], atoms: int) -> Iterator[list[LabelledFrame]]:
    """Frames in turn, as many with the same periodic directions as have at most so many atoms."""
    batch: list[LabelledFrame] = []
    for frame in frames:
        size = sum(map(len, batch)) + len(frame)
        if batch and (size > atoms or not np.array_equal(frame.pbc, batch[0].pbc)):
            yield batch
            batch = []
        batch.append(frame)
    if batch:
        yield batch


def _evaluated(
    evaluator: Evaluator, systems: list[System], device: torch.device
) -> tuple[State, list[NeighborList]]:
    state = State(systems, device)
    lists = [NeighborList(state, cutoff, cell_varies=False) for cutoff in evaluator.cutoffs]
    evaluator.evaluate_(state, lists)
    return state, lists


@dataclass(frozen=True, eq=False)
class _Result:
    """What a baseline gives for a frame: energy (eV), forces (N, 3) eV/A and virial (3, 3) eV."""

    energy: float
    forces: NDArray[np.float64]
    virial: NDArray[np.float64]


def _results(state: State) -> list[_Result]:
    """Of each system; copies to the host."""
    forces = state.forces.double().cpu().split(state.grouping.sizes)
    energies, virials = state.energy.tolist(), state.virial.double().cpu()
    return [
        _Result(energy, own.numpy(), virial.numpy())
        for energy, own, virial in zip(energies, forces, virials, strict=True)
    ]


def _difference(frame: LabelledFrame, result: _Result, volume: float) -> LabelledFrame:
    stress = frame.stress
    if stress is not None and volume > 0.0:
        stress = stress + result.virial / volume
    return replace(
        frame,
        energy=frame.energy - result.energy,
        forces=None if frame.forces is None else frame.forces - result.forces,
        stress=stress,
    )


class _ForceComparison:
    """Sums over force components of labels f and baselines b: f f, b b and f b; and (f - b)^2."""

    def __init__(self) -> None:
        self.labels = self.baseline = self.both = 0.0
        self.components = self.frames = 0

    def add(self, frame: LabelledFrame, result: _Result) -> None:
        """Counts the forces of a frame that are labelled."""
        if frame.forces is None or len(frame) == 1:
            return
        known = np.isfinite(frame.forces)
        labels, own = frame.forces[known], result.forces[known]
        self.labels += float(labels @ labels)
        self.baseline += float(own @ own)
        self.both += float(labels @ own)
        self.components += len(labels)
        self.frames += bool(len(labels))

    @property
    def correlation(self) -> float:
        """Between labels and baselines; 0 where either is 0."""
        size = np.sqrt(self.labels * self.baseline)
        return float(self.both / size) if size > 0.0 else 0.0

    def check(self, baseline: Baseline) -> None:
        """Raises InputError where forces look like those of another unit or sign."""
        if not self.labels or not self.baseline:
            return
        ratio = float(np.sqrt(self.baseline / self.labels))
        compared = (
            f"(RMS {self._rms(self.baseline):.3g} against {self._rms(self.labels):.3g} eV/A in "
            f"{self.frames} frames, correlation {self.correlation:.2f})"
        )
        if self.correlation < -_RATIOS[-1][0]:
            raise InputError(
                f"baseline: forces of {baseline.text} point against those of the data {compared}; "
                "the data may hold gradients, which 'mdgraph data check' tells."
            )
        if any(
            self.correlation > least and not 1.0 / most < ratio < most for least, most in _RATIOS
        ):
            raise InputError(
                f"baseline: forces of {baseline.text} are {ratio:.3g} times those of the data "
                f"{compared}, so their units look unlike; convert the data again with the right "
                "--force-unit, or choose another baseline."
            )

    def say(self, baseline: Baseline) -> None:
        """Logs what the baselines leave."""
        left = self.labels + self.baseline - 2.0 * self.both
        if not self.components:
            return
        logger.info(
            "Baseline %s: of the forces, %.4g meV/A RMS a component, %.4g are left to be learned.",
            baseline.text,
            1e3 * self._rms(self.labels),
            1e3 * self._rms(max(left, 0.0)),
        )
        if self.correlation < _UNRELATED:
            logger.warning(
                "Forces of the baseline and of the data have a correlation of %.2f, so the "
                "baseline is of little use; look at its units and its level of theory.",
                self.correlation,
            )
        elif left > self.labels:
            logger.warning(
                "The baseline leaves more of the forces than there was, so the network has more to "
                "learn with it than without; look at its units and its level of theory, or leave "
                "it out."
            )

    def _rms(self, total: float) -> float:
        return float(np.sqrt(total / max(1, self.components)))
