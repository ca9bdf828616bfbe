"""The self-check of a fast evaluator: against autograd in float64, and at full size."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.errors import SelfCheckError, name_some
from mdgraph.evaluators import (
    AutogradEvaluator,
    Evaluator,
    MultipleTimeStepEvaluator,
    SumEvaluator,
)
from mdgraph.fused.agreement import SHIFT, STRAIN, TOLERANCES, Agreement, compare
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.tables import excess_of_tables
from mdgraph.memory import Workload, autograd_memory, available_memory, estimated_memory
from mdgraph.models import PotentialModule, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.geometry import complete_cell, heights, inverse
from mdgraph.precision import PRECISIONS, Precision
from mdgraph.state import State, systems_of
from mdgraph.system import System

logger = logging.getLogger(__name__)

SECONDS: Final = 5.0
"""What the check may take."""

_SECONDS_PER_BYTE: Final = {"cpu": 3e-9, "cuda": 5e-11}
"""Time of the reference for each byte it keeps. On a CPU measured at 1e-9 to 3e-9, the more
the larger the system; on CUDA at 4e-12 on an H200, and estimated for cards whose float64
runs at 1/64 of the speed of float32."""

_LEAST: Final = 32
"""Atoms compared, however short the time."""

_CLUSTER: Final = 256
"""Atoms of a cluster before another one is begun; a complete one may have fewer."""

_MOST_CLUSTERS: Final = 16

_CUT: Final = 0.75
"""Memory of clusters over that of as many atoms within a larger system."""

_ROUNDED: Final = 64
"""Fewest atoms on which rounding is measured; fewer are evaluated several times."""

_MOVED: Final = 1e-5
"""A; displacements for it, which change the rounding and not the forces."""

_SAME_BLOCKS: Final = 2048
"""Atoms from which on kernels on CUDA take the same blocks, see `fused/cuda/workspace.py`."""

_TRUNCATED: Final = 5e-6
"""eV/atom of missing work that rounding may explain."""

_PARTS: Final = (4.0, 16.0, 64.0, 256.0, 1024.0)
"""How many times shorter steps are that tell what Simpson's rule leaves out."""

_ALIKE: Final = 0.3
"""By how much of one the works of a wrong force differ between steps."""


def self_check(
    evaluator: Evaluator,
    state: State,
    lists: Sequence[NeighborList],
    precision: Precision,
    seconds: float = SECONDS,
) -> Agreement | None:
    """Checks the evaluator of a simulation and logs its differences; reads the device.

    Args:
        evaluator: what wrote the energies and forces in the state.
        state: left as it is.
        lists: those of the state.
        precision: says how large differences may be.
        seconds: time to be spent, roughly.

    Returns:
        The differences, of a sum those of its worst term; None for the reference itself, and
        where the evaluator has no TensorNet potential to compare with.

    Raises:
        SelfCheckError: a difference that neither the tolerance nor rounding explains. A fifth
            of such a difference is a warning in the log.
    """
    if isinstance(evaluator, SumEvaluator):
        terms = [(term, evaluator.lists_of(n, lists)) for n, term in enumerate(evaluator.terms)]
        return _check_each(terms, state, precision, seconds)
    if isinstance(evaluator, MultipleTimeStepEvaluator):
        both = evaluator.large, evaluator.small
        parts = [(part, evaluator.lists_of(part, lists)) for part in both]
        return _check_each(parts, state, precision, seconds)
    potential = evaluator.potential
    if isinstance(evaluator, AutogradEvaluator) or not isinstance(potential, TensorNetPotential):
        return None
    oracle = AutogradEvaluator(potential.at_precision(torch.float64).to(state.device))
    agreement = verify(evaluator, oracle, state, lists, seconds=seconds)
    _judge(agreement, oracle, state, lists, precision, seconds)
    if state.device.type == "cuda":
        torch.cuda.empty_cache()  # a simulation needs far less than the reference did
    logger.info("Fast evaluator against the reference: %s.", agreement)
    return agreement


def _check_each(
    parts: Sequence[tuple[Evaluator, Sequence[NeighborList]]],
    state: State,
    precision: Precision,
    seconds: float,
) -> Agreement | None:
    """Checks evaluators with their lists one by one; the state ends as it was."""
    before = [result.clone() for result in state.results]
    worst: Agreement | None = None
    for part, lists in parts:
        part.evaluate_(state, lists)
        agreement = self_check(part, state, lists, precision, seconds / len(parts))
        if agreement is not None:
            worst = agreement if worst is None else agreement.worse(worst)
    for result, copy in zip(state.results, before, strict=True):
        result.copy_(copy)
    return worst


def _judge(
    agreement: Agreement,
    oracle: AutogradEvaluator,
    state: State,
    lists: Sequence[NeighborList],
    precision: Precision,
    seconds: float,
) -> None:
    """Refuses or warns; measures the effect of rounding only where a tolerance is exceeded."""
    warning = TOLERANCES[precision.name].warning
    if agreement.beyond(precision, warning) is None:
        return
    rounding = rounding_errors(oracle, state, lists, seconds=seconds)
    refused = agreement.beyond(precision, 1.0, rounding)
    if refused is not None:
        advice = (
            "run with --precision mixed (precision='mixed' in Python)."
            if precision.reduced
            else "run with --evaluator reference (evaluator='reference' in Python), and "
            "report the potential and the structure."
        )
        raise SelfCheckError(f"The fast evaluator differs from the reference {refused}; {advice}")
    if precision.reduced:
        logger.warning(
            "Precision %s differs from the reference %s; --precision mixed "
            "(precision='mixed' in Python) rounds less.",
            precision.name,
            str(agreement.beyond(precision, warning)).replace("is allowed", "is usual"),
        )
        return
    doubtful = agreement.beyond(precision, warning, rounding)
    if doubtful is not None:
        logger.warning(
            "The fast evaluator differs from the reference %s; that is more than rounding "
            "explains. It runs, as five times as much is refused; please report the potential "
            "and the structure.",
            doubtful.replace("is allowed", "is usual"),
        )


def log_unmeasured(precision: Precision) -> None:
    """Logs that the error of a reduced precision is unmeasured, where no check runs."""
    if precision.reduced:
        logger.info(
            "Without the self-check, the force error of precision %s was not measured.",
            precision.name,
        )


def verify(
    fast: Evaluator,
    oracle: AutogradEvaluator,
    state: State,
    lists: Sequence[NeighborList],
    *,
    seconds: float = SECONDS,
) -> Agreement:
    """Compares a fast evaluator with the reference, within a time; reads the device.

    Both see the same positions, rounded to the state type. Where the reference on all atoms
    would take too long or more than half of the free memory, both run on clusters cut out
    around atoms of each element: as far as the time goes, but 32 atoms at least. Then what
    goes wrong only at full size or across periodic boundaries is looked for: energies of those
    atoms in the state are held against the same evaluator on the cluster of everything that
    they depend on, except for TensorNet2, where charges depend on all atoms of a system; and
    energies, forces and virial of all atoms against each other, see `with_full_size`.

    Where all atoms are compared, the state is evaluated a second time over results that are
    no numbers, and the worse of both counts: a kernel may forget to clear or to write.

    Tables of radial functions are compared at every interval, as atoms that are compared now
    are not at all the distances that they come to later.

    Args:
        fast: what wrote energies, forces and virial in the state.
        oracle: autograd of the same TensorNetPotential in float64.
        state: left as it is but for its workspaces, which may go.
        lists: those of the state; their capacities tell what the reference costs.
        seconds: time to be spent, roughly; infinity compares all atoms that memory allows.
    """
    agreement = _agreement(fast, oracle, state, lists, seconds)
    if not isinstance(fast, FusedTensorNet):
        return agreement
    return replace(agreement, tables=excess_of_tables(_potential_of(oracle), fast.tables))


def _agreement(
    fast: Evaluator,
    oracle: AutogradEvaluator,
    state: State,
    lists: Sequence[NeighborList],
    seconds: float,
) -> Agreement:
    """See `verify`."""
    sample = _sample(oracle, state, lists, seconds)
    if sample.wholes is None:
        reference = _evaluated(oracle, sample.systems, state.device, torch.float64)
        agreement = compare(state, reference, sample.origin, sample.how)
        for results in (state.energies, state.energy, state.forces, state.virial):
            results.fill_(math.nan)
        fast.evaluate_(state, lists)
        return agreement.worse(compare(state, reference, sample.origin, sample.how))
    potential = _potential_of(oracle)
    # Kernels take blocks by the number of atoms, so the clusters fill as many as the state does.
    atoms = min(state.grouping.atoms, _SAME_BLOCKS) if state.device.type == "cuda" else 0
    copies = max(1, -(-atoms // len(sample.origin)))
    evaluated = _evaluated(fast, [*sample.systems] * copies, state.device, state.dtype)
    last = systems_of(evaluated)[-len(sample.systems) :]
    reference = _evaluated(oracle, last, state.device, torch.float64)
    agreement = compare(evaluated, reference, sample.origin, sample.how)
    if not potential.config.predicts_charges:
        agreement = _with_centres(agreement, fast, state, sample.wholes, potential)
    return with_full_size(agreement, fast, state, lists)


def rounding_errors(
    oracle: AutogradEvaluator,
    state: State,
    lists: Sequence[NeighborList],
    *,
    seconds: float = SECONDS,
) -> Agreement:
    """What the reference with a float32 network errs by on the atoms that `verify` compares.

    Few atoms round well or badly by chance, so they are evaluated several times, each time
    moved a little.
    """
    sample = _sample(oracle, state, lists, seconds)
    rounded = AutogradEvaluator(_potential_of(oracle).at_precision(torch.float32).to(state.device))
    copies = max(1, _ROUNDED // len(sample.origin))
    rng = np.random.default_rng(0)
    systems = [
        system.replace(
            positions=system.positions + copy * _MOVED * rng.normal(size=(len(system), 3))
        )
        for copy in range(copies)
        for system in sample.systems
    ]
    evaluated = _evaluated(rounded, systems, state.device, state.dtype)
    reference = _evaluated(oracle, systems_of(evaluated), state.device, torch.float64)
    return compare(evaluated, reference, np.tile(sample.origin, copies), sample.how)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Atoms and images near a central atom, without periodic directions, nearest first.

    Attributes:
        system: the atoms, with the central one at the origin.
        origin: (N,) int64, index of the original atom of each atom or image.
    """

    system: System
    origin: NDArray[np.int64]

    @property
    def radius(self) -> float:
        """Distance of the farthest atom, A."""
        return float(np.linalg.norm(self.system.positions[-1]))

    def __len__(self) -> int:
        return len(self.origin)

    def nearest(self, atoms: int) -> "Cluster":
        """The cluster of the given number of atoms nearest to the centre."""
        part = self.system
        return Cluster(
            part.replace(
                numbers=part.numbers[:atoms],
                positions=part.positions[:atoms],
                masses=part.masses[:atoms],
            ),
            self.origin[:atoms],
        )


def cluster_around(system: System, centre: int, radius: float, first: int = 0) -> Cluster:
    """All atoms and images within a radius of an atom.

    The cluster keeps masses and the total charge of the system.

    Args:
        system: to cut from.
        centre: index of the central atom.
        radius: A.
        first: added to the indices in `Cluster.origin`.
    """
    pbc = torch.tensor(system.pbc)[None]
    lattice = complete_cell(torch.tensor(system.cell)[None], pbc)
    inverse_cell = inverse(lattice)
    vectors, height = lattice[0].numpy(), heights(inverse_cell)[0].numpy()
    displacements = system.positions - system.positions[centre]
    shifts = np.where(system.pbc, np.round(displacements @ inverse_cell[0].numpy()), 0.0)
    displacements = displacements - shifts @ vectors
    # Atoms are within half a cell now, so image n is at least (|n| - 1/2) heights away.
    reach = np.where(system.pbc, np.floor(radius / height + 0.5), 0.0)
    axes = [np.arange(-count, count + 1) for count in reach]
    offsets = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    positions = (displacements + (offsets @ vectors)[:, None]).reshape(-1, 3)
    distance = np.linalg.norm(positions, axis=1)
    inside = np.flatnonzero(distance < radius)
    inside = inside[np.argsort(distance[inside], kind="stable")]
    atoms = inside % len(system)
    atoms_within = System(
        numbers=system.numbers[atoms],
        positions=positions[inside],
        masses=system.masses[atoms],
        charge=system.charge,
    )
    return Cluster(atoms_within, atoms + first)


def reordered(state: State) -> tuple[list[System], NDArray[np.int64]]:
    """Copies of the systems with permuted atoms, shifted within the cell; syncs.

    Each system moves along its periodic directions, so that other pairs cross the faces of the
    cell, and each atom moves to a random image. Atoms with float32 positions do not move,
    because rounding would change them.

    Returns:
        systems, and the index (N,) in the state of each of their atoms.
    """
    rng = np.random.default_rng(0)
    farthest = 2 if state.dtype == torch.float64 else 0
    systems, origin = [], []
    for system, first in zip(systems_of(state), state.grouping.start.tolist(), strict=True):
        order = rng.permutation(len(system))
        images = rng.integers(-farthest, farthest + 1, (len(system), 3))
        shifts = (images + rng.uniform(0.2, 0.8, 3) * (farthest > 0)) * system.pbc
        permuted = system.replace(
            numbers=system.numbers[order],
            positions=(system.positions + shifts @ system.cell)[order],
            masses=system.masses[order],
        )
        systems.append(permuted)
        origin.append(first + order)
    return systems, np.concatenate(origin)


def clusters_in(state: State, radius: float) -> Iterator[Cluster]:
    """Yields clusters around all atoms, in a random but reproducible order; syncs.

    One atom of each element comes first, the rarest element before the others.
    """
    systems = systems_of(state)
    member, atom = state.grouping.index.tolist(), state.atom.tolist()
    kinds = state.kinds.cpu().numpy()
    order = np.random.default_rng(0).permutation(len(kinds))
    _, firsts, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    firsts = firsts[np.argsort(counts, kind="stable")]
    for centre in [*order[firsts].tolist(), *np.delete(order, firsts).tolist()]:
        yield cluster_around(systems[member[centre]], atom[centre], radius, centre - atom[centre])


@dataclass(frozen=True)
class _Sample:
    """What is compared.

    Attributes:
        systems: all of a state, or clusters cut out of it.
        origin: index in the state of each of their atoms.
        how: which atoms these are, in words.
        wholes: clusters of everything that their centres depend on; None for all atoms.
    """

    systems: Sequence[System]
    origin: NDArray[np.int64]
    how: str
    wholes: Sequence[Cluster] | None


def _sample(
    oracle: AutogradEvaluator, state: State, lists: Sequence[NeighborList], seconds: float
) -> _Sample:
    """All atoms where the time and the memory are enough, else clusters; repeatable."""
    atoms = state.grouping.atoms
    capacities = [part.capacity for part in lists]
    room = _room(_potential_of(oracle), capacities, state.device, seconds)
    if room >= atoms:
        return _Sample(systems_of(state), np.arange(atoms), "all", None)
    wholes, parts = _chosen(state, _reach(_potential_of(oracle)), max(room, _LEAST))
    radius = max(part.radius for part in parts)
    centres = [int(part.origin[0]) for part in parts]
    how = f"in clusters of up to {radius:.1f} A around atoms {name_some(centres)} of {atoms:,}"
    origin = np.concatenate([part.origin for part in parts])
    return _Sample([part.system for part in parts], origin, how, wholes)


def check_memory(
    potential: PotentialModule, atoms: int, capacities: Sequence[int], device: torch.device
) -> int:
    """Bytes that `self_check` takes beside the evaluator, within a fifth or so.

    Args:
        potential: that is checked.
        atoms: N.
        capacities: slots a row of each neighbor list, in the order of `cutoffs`.
        device: where it runs.
    """
    room = max(_room(potential, capacities, device, SECONDS), _LEAST)
    compared = min(atoms, room)
    needed = autograd_memory(
        Workload(potential, compared, capacities, PRECISIONS["double"], device)
    )
    return needed if compared == atoms else int(_CUT * needed)


def _room(
    potential: PotentialModule, capacities: Sequence[int], device: torch.device, seconds: float
) -> int:
    """Atoms on which the reference stays within the time and half of the free memory."""
    an_atom = estimated_memory(Workload(potential, 1, capacities, PRECISIONS["double"], device))
    bytes_in_time = seconds / _SECONDS_PER_BYTE[device.type]
    return int(min(bytes_in_time, available_memory(device) / 2) / an_atom)


def _potential_of(oracle: AutogradEvaluator) -> TensorNetPotential:
    assert isinstance(oracle.potential, TensorNetPotential)
    return oracle.potential


def _chosen(state: State, reach: float, room: int) -> tuple[list[Cluster], list[Cluster]]:
    """Clusters of everything in reach of some atoms, and the parts of them that are compared."""
    share = max(_CLUSTER, room // len(state.elements))
    wholes: list[Cluster] = []
    parts: list[Cluster] = []
    for whole in islice(clusters_in(state, reach), _MOST_CLUSTERS):
        wholes.append(whole)
        parts.append(whole.nearest(min(share, room)))
        room -= len(parts[-1])
        if room <= 0:
            break
    return wholes, parts


def _reach(potential: TensorNetPotential) -> float:
    """A; beyond it nothing enters the energy of an atom, but for charges."""
    config = potential.config
    finite = [cutoff for cutoff in potential.cutoffs if math.isfinite(cutoff)]
    return max((config.layers + 1) * config.cutoff, *finite) + 1e-3


def _with_centres(
    agreement: Agreement,
    fast: Evaluator,
    state: State,
    wholes: Sequence[Cluster],
    potential: TensorNetPotential,
) -> Agreement:
    """Adds the differences between energies of the centres and those in their clusters."""
    # No more atoms at once than the evaluator has had already.
    sizes = np.cumsum([len(whole) for whole in wholes])
    wholes = wholes[: max(1, int((sizes <= state.grouping.atoms).sum()))]
    evaluated = _evaluated(fast, [whole.system for whole in wholes], state.device, state.dtype)
    centres = torch.tensor([int(whole.origin[0]) for whole in wholes], device=state.device)
    there = (
        evaluated.energies[evaluated.grouping.start] - potential.shift / evaluated.grouping.counts
    )
    size = state.grouping.counts[state.grouping.index[centres]]
    here = state.energies[centres] - potential.shift / size
    difference = (here - there).abs()
    return agreement.including(centres.cpu().numpy(), difference)


def with_full_size(
    agreement: Agreement, fast: Evaluator, state: State, lists: Sequence[NeighborList]
) -> Agreement:
    """Adds the differences of an evaluator from itself on a whole state; reads the device.

    Takes three to thirteen evaluations. In one, all atoms lie at other places of the buffers,
    lists and cell, and in other images of it; energies and forces must stay the same. Two more
    move the atoms and strain the cells along a line; the energy must change by the work of
    forces and virial. Energies of atoms must add up to their system's.

    Args:
        agreement: differences from the reference so far.
        fast: what wrote the state.
        state: its workspaces go, as there may not be room for two; all else stays.
        lists: those of the state; others are made with their skins and capacities.
    """
    systems, origin = reordered(state)
    state.workspaces.clear()
    moved = State(systems, state.device, state.dtype)
    moved_lists = [NeighborList(moved, old.cutoff, old.skin, old.capacity) for old in lists]
    fast.evaluate_(moved, moved_lists)
    index = torch.from_numpy(origin).to(state.device)
    force = (moved.forces - state.forces[index], state.forces[index])
    energy = (moved.energies - state.energies[index]).abs()
    virial = (moved.virial - state.virial).abs().amax((-2, -1)) / state.grouping.counts
    agreement = agreement.including(origin, energy, force, virial)
    total = (state.energy - state.grouping.sum(state.energies)).abs().sum() / len(index)
    return replace(
        agreement,
        energy=float(np.maximum(agreement.energy, float(total))),
        works=_missing_works(fast, moved, moved_lists),
    )


def _missing_works(
    fast: Evaluator, state: State, lists: Sequence[NeighborList]
) -> tuple[tuple[float, float], ...]:
    """Energy changes that the work of forces and virial does not explain; moves the state.

    Along x(s) = (x + s u)(1 + s e) and h(s) = h (1 + s e), the energy falls by
    F u (1 + s e) + W : e / (1 + s e) for each s, and Simpson's rule sums that from 0 to 2.

    The work of a wrong force falls with u and e, and what Simpson's rule leaves out with the
    fifth power: 2.5e-7 eV/atom at most on stiff random networks, but far more where atoms nearly
    touch. So where much is missing, shorter steps tell which it is. Each is multiplied by how
    many times it is shorter: of a wrong force three then are alike.

    Returns:
        By how many times steps were shorter, and eV/atom that were missing, times that; where
        three were alike, the first of them alone.
    """
    start = _Start(state)
    works: list[Tensor] = []
    sizes: list[tuple[float, float]] = []
    for part in (1.0, *_PARTS):
        works.append(part * start.missing_work(fast, state, lists, 1.0 / part))
        sizes.append((part, float(works[-1].abs().sum()) / state.grouping.atoms))
        if sizes[-1][1] <= _TRUNCATED:
            break
        if len(works) > 2 and _alike(*works[-3:-1]) and _alike(*works[-2:]):
            return (sizes[-3],)
    return tuple(sizes)


def _alike(longer: Tensor, shorter: Tensor) -> bool:
    return bool((longer - shorter).abs().sum() <= _ALIKE * shorter.abs().sum())


class _Start:
    """A state before it is moved, as `_missing_works` does.

    Attributes:
        positions, cell: of the state.
        forces, virial, energy: what the evaluator wrote there.
    """

    def __init__(self, state: State) -> None:
        self.positions, self.cell, self.forces, self.virial, self.energy = (
            values.to(torch.float64, copy=True)
            for values in (state.positions, state.cell, state.forces, state.virial, state.energy)
        )

    def missing_work(
        self, fast: Evaluator, state: State, lists: Sequence[NeighborList], size: float
    ) -> Tensor:
        """(S,) eV, of each system, by two steps of a size."""
        group = state.grouping
        shift, strain = (size * part for part in _direction(group.atoms, state.device))
        work = torch.zeros_like(self.energy)
        forces, virial = self.forces, self.virial
        for step, weight in enumerate((1 / 3, 4 / 3, 1 / 3)):
            deformation = torch.eye(3, dtype=torch.float64, device=state.device) + step * strain
            if step:
                state.positions.copy_((self.positions + step * shift) @ deformation)
                state.cell.copy_(self.cell @ deformation)
                for neighbor_list in lists:
                    neighbor_list.update_(state.positions, state.cell)
                    if not neighbor_list.status().complete:
                        neighbor_list.grow()
                fast.evaluate_(state, lists)
                forces, virial = state.forces.double(), state.virial
            by_forces = (forces * (shift @ deformation)).sum(-1)
            rate = torch.linalg.solve(deformation, strain)
            work += weight * (group.sum(by_forces) + (virial * rate).sum((-2, -1)))
        return state.energy - self.energy + work


def _direction(atoms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Shifts (N, 3) A of atoms and the strain (3, 3) of all cells; random but repeatable."""
    rng = np.random.default_rng(0)
    shift = np.sqrt(3) * SHIFT * rng.uniform(-1.0, 1.0, (atoms, 3))
    strain = STRAIN * rng.uniform(0.5, 1.0, (3, 3))
    return torch.tensor(shift, device=device), torch.tensor((strain + strain.T) / 2, device=device)


def _evaluated(
    evaluator: Evaluator, systems: Sequence[System], device: torch.device, dtype: torch.dtype
) -> State:
    state = State(systems, device, dtype)
    lists = [NeighborList(state, cutoff, cell_varies=False) for cutoff in evaluator.cutoffs]
    evaluator.evaluate_(state, lists)
    return state
