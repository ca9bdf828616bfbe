"""Calculation: a state with its neighbor lists and evaluator, evaluated eagerly or as one graph."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.arguments import checked, real_number
from mdgraph.biases import Bias, CollectiveVariable
from mdgraph.biases.applied import AppliedBiases
from mdgraph.checkpoints import load
from mdgraph.decomposition import divided_parts
from mdgraph.devices import device_named
from mdgraph.engine.checks import (
    NEAREST,
    any_close,
    check_duplicates,
    check_lengths,
    check_lengths_of,
    check_pairs,
)
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.errors import CapacityError, InputError
from mdgraph.evaluators import (
    AutogradEvaluator,
    Evaluator,
    ForeignEvaluator,
    MultipleTimeStepEvaluator,
)
from mdgraph.fused.evaluator import check_evaluator_name, chosen_evaluator
from mdgraph.gpu.graphs import CapturedGraph, GraphMemory, GraphMemoryError, captured, say_eager
from mdgraph.models import PotentialModule, check_species
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.list import checked_skin, default_skin, hold_all
from mdgraph.precision import Precision, precision_named
from mdgraph.state import OFFSETS, BatchCapacity, PreparedSystems, State
from mdgraph.system import NEAR, System, SystemArrays, are_among, centred, total_charge

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Energy, forces and virial of a structure, on the host.

    Attributes:
        energy: eV.
        energies: (N,) float64, eV, shares of the atoms.
        forces: (N, 3) float64, eV/A.
        virial: (3, 3) float64, eV.
        info: further numbers of the structure, by their names in files.
        arrays: (N,) further numbers of its atoms, likewise.
    """

    energy: float
    energies: Array
    forces: Array
    virial: Array
    info: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


class HostOutputs:
    """Host copies of a state's results and of the counters of its lists.

    One sync covers both: a host that waits for the lists and then for the forces would leave the
    device idle in between. On CUDA the host buffers are pinned.

    Attributes:
        energy: (S,) float64, eV; the next copy overwrites it, as all below.
        virial: (S, 3, 3) float64, eV.
        energies: (N,) float64, eV.
        forces: (N, 3) in the type of the state, eV/A.
    """

    def __init__(
        self, state: State, lists: Sequence[NeighborList], forces: Tensor | None = None
    ) -> None:
        """Allocates on the host.

        Args:
            state: whose results are copied.
            lists: of the evaluation.
            forces: (N, 3) of the potential, where others drive the dynamics; else None.
        """
        self._state, self._lists = state, lists
        self._on_gpu = state.device.type == "cuda"
        self._results = [self._host_copy(result) for result in state.results]
        self._counts = [self._host_copy(item.sticky()) for item in lists]
        self.energy = self._view(state.energy)
        self.virial = self._view(state.virial)
        self.energies = self._view(state.energies)
        self.forces = self._view(state.forces)
        # Of a state that takes other systems, within the graph: what the host does for it takes
        # longer than the evaluation.
        self._checks_distances = (
            state.room is not None and len(lists) > 0 and lists[0].cutoff >= NEAREST
        )
        if self._checks_distances:
            self._close_pair = torch.ones((), dtype=torch.bool, device=state.device)
            self._has_close_pair = self._host_copy(self._close_pair).fill_(True)
        self._own_forces: list[Tensor] = []
        if forces is not None and forces is not state.forces:
            self._own_forces = [forces]
            self._results.append(self._host_copy(forces))
            self.forces = self._results[-1].numpy()

    def _host_copy(self, source: Tensor) -> Tensor:
        return torch.zeros_like(source, device="cpu", pin_memory=self._on_gpu)

    def _view(self, source: Tensor) -> NDArray[Any]:
        """The host copy of a tensor that is a result of the state, or part of one."""
        begins = [result.untyped_storage().data_ptr() for result in self._state.results]
        copy = self._results[begins.index(source.untyped_storage().data_ptr())]
        shape, strides, start = source.shape, source.stride(), source.storage_offset()
        return copy.as_strided(shape, strides, start).numpy()

    def copy_(self) -> None:
        """Launches the copies, which a graph can capture; does not sync."""
        counts = [item.sticky() for item in self._lists]
        results = [*self._state.results, *self._own_forces]
        sources, targets = [*results, *counts], [*self._results, *self._counts]
        if self._checks_distances:
            self._close_pair.copy_(any_close(self._state, self._lists[0]))
            sources.append(self._close_pair)
            targets.append(self._has_close_pair)
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)

    def wait(self) -> bool:
        """Whether no list overflowed; syncs once, only with the current stream."""
        if self._on_gpu:
            # The state's device may lack an index and then means the current device.
            torch.cuda.current_stream(self._state.results[0].device).synchronize()
        return hold_all(self._lists, [counted.tolist() for counted in self._counts])

    @property
    def may_be_close(self) -> bool:
        """Whether a pair may be closer than `NEAREST`; true where nothing has looked."""
        return not self._checks_distances or bool(self._has_close_pair)

    @property
    def finite(self) -> bool:
        """Whether every result is finite."""
        return all(math.isfinite(result.sum(dtype=torch.float64)) for result in self._results)

    def results(self, count: int) -> list[EvaluationResult]:
        """Results of the first `count` systems, as parts of one copy."""
        ends = [*accumulate(self._state.grouping.sizes[:count])]
        atoms = ends[-1]
        energies = self.energies[:atoms].copy()
        forces, virial = self.forces[:atoms].astype(np.float64), self.virial[:count].copy()
        return [
            EvaluationResult(energy, energies[start:end], forces[start:end], own_virial)
            for energy, start, end, own_virial in zip(
                self.energy[:count].tolist(), [0, *ends], ends, virial, strict=False
            )
        ]


def host_array(tensor: Tensor) -> Array:
    """A float64 copy on the host; syncs."""
    array: Array = tensor.detach().to("cpu", torch.float64, copy=True).numpy()
    return array


class HostInputs:
    """Host buffers for positions and cell of a state of one system.

    On CUDA they are pinned, so that a graph can capture the copies to the device. Sync between two
    calls of `place`.
    """

    def __init__(self, state: State) -> None:
        """Allocates on the host; syncs."""
        self._state = state
        pinned = state.device.type == "cuda"
        self._positions = torch.zeros_like(state.positions, device="cpu", pin_memory=pinned)
        self._cell = torch.zeros_like(state.cell, device="cpu", pin_memory=pinned)
        self._cell.copy_(state.cell)
        self._exact_cell: Array = self._cell[0].double().numpy()
        if state.dtype != torch.float64:
            self._pbc = [*state.pbc.cpu().numpy()]
            self._offset: Array = np.zeros(state.positions.shape)
            self._farthest = -1.0

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Writes on the host; see `Calculation.place`."""
        if self._state.device.type == "cuda":
            # Fails in a forked process before anything is written to its parent's pinned memory.
            torch.cuda.init()
        if cell is not None:
            self._exact_cell = np.multiply(cell, unit)
            self._cell[0] = torch.from_numpy(self._exact_cell)
        if self._state.dtype == torch.float64:
            np.multiply(positions, unit, out=self._positions.numpy(), casting="same_kind")
        else:
            self._positions.copy_(self._near(np.multiply(positions, unit), cell is not None))

    def _near(self, places: Array, cell_changed: bool) -> torch.Tensor:
        """Positions (N, 3) minus the offset of the state, which follows atoms that move far."""
        near = places - self._offset
        if cell_changed or np.abs(near).max() > self._farthest:
            offsets = centred([places], [self._exact_cell], self._pbc, self._state.dtype)
            for name in OFFSETS:
                getattr(self._state, name).copy_(offsets[name])
            self._offset = offsets["offset"].numpy()
            near = places - self._offset
            self._farthest = 2.0 * np.abs(near).max() + NEAR
        return torch.from_numpy(near)

    def copy_(self) -> None:
        """Launches the copies to the state, which a graph can capture; does not sync."""
        self._state.positions.copy_(self._positions, non_blocking=True)
        self._state.cell.copy_(self._cell, non_blocking=True)


def as_evaluator(
    potential: Any, precision: Precision, device: torch.device, evaluator: str = "auto"
) -> Evaluator:
    """An evaluator from a path, a shipped name, a potential or an evaluator.

    Raises:
        InputError: see `chosen_evaluator`; an evaluator of another precision or device; an
            evaluator together with the name of one; an object that is none of these.
    """
    if isinstance(potential, str | Path):
        potential = load(potential)
    if isinstance(potential, PotentialModule):
        return chosen_evaluator(potential, precision, device, evaluator)
    check_evaluator_name(evaluator)
    name, is_evaluator = type(potential).__name__, hasattr(potential, "evaluate_")
    if not hasattr(potential, "cutoffs") or not (is_evaluator or callable(potential)):
        raise InputError(
            f"{name} is not a potential; give a path, the name of a shipped potential, a Potential "
            "or an Evaluator."
        )
    if not is_evaluator:
        for attribute in ("species", "uses_charge"):
            if not hasattr(potential, attribute):
                raise InputError(
                    f"The potential {name} has no {attribute}; give it species, None for every "
                    "element, and uses_charge."
                )
        return AutogradEvaluator(potential)
    if evaluator != "auto":
        raise InputError(
            f"{name} is an evaluator already and cannot become the evaluator {evaluator}; give "
            "its potential, or leave the name out."
        )
    result = potential if isinstance(potential, Evaluator) else ForeignEvaluator(potential)
    _check_precision_and_device(result, name, precision, device)
    return result


def _check_precision_and_device(
    evaluator: Evaluator, name: str, precision: Precision, device: torch.device
) -> None:
    """Raises InputError if the evaluator has another precision or device of its own."""
    own_precision, own_device = evaluator.precision or precision, evaluator.device or device
    potential = evaluator.potential if isinstance(evaluator, AutogradEvaluator) else None
    if isinstance(potential, torch.nn.Module):
        _check_weights(potential, precision)
    if own_precision.name != precision.name:
        raise InputError(
            f"The {name} was made for precision {own_precision.name}, but {precision.name} is "
            f"asked for; ask for {own_precision.name}, or give its potential."
        )
    places = {own_device.index, device.index} - {None}
    if own_device.type != device.type or len(places) > 1:
        raise InputError(
            f"The {name} was made on {own_device}, but {device} is asked for; ask for "
            f"{own_device}, or give its potential."
        )


def _check_weights(reference: torch.nn.Module, precision: Precision) -> None:
    for weight in reference.parameters():
        if weight.is_floating_point() and weight.dtype.itemsize < precision.network.itemsize:
            dtype = str(weight.dtype).removeprefix("torch.")
            raise InputError(
                f"The evaluator's weights are {dtype}, but precision {precision.name} is asked "
                "for; ask for mixed, or give its potential as loaded."
            )


def check_charge(evaluator: Evaluator, charge: float) -> None:
    """Raises InputError for a total charge (e) that the potential cannot take."""
    charge = real_number(charge, "The total charge", "e")
    if charge and not evaluator.uses_charge:
        raise InputError(
            f"The total charge is {charge:g} e, but the potential takes no total charge; "
            "give charge 0 or choose a potential trained with charges."
        )


class GraphedEvaluation:
    """Copies positions to the device, updates the state and copies results to the host.

    Both copies are optional. The CUDA graph contains them, so a change of the copies drops it.
    """

    def __init__(
        self,
        state: State,
        lists: Sequence[NeighborList],
        graphs: GraphMemory | None = None,
        forces: Tensor | None = None,
    ) -> None:
        """Allocates and captures nothing yet.

        Args:
            state: to update.
            lists: to update.
            graphs: memory that captures share; None captures in memory of its own.
            forces: see HostOutputs.
        """
        self._state, self._lists, self._forces = state, lists, forces
        self._capture = captured if graphs is None else graphs.capture
        self._capturable = True
        self._graph: CapturedGraph | None = None
        self._inputs: HostInputs | None = None
        self._outputs: HostOutputs | None = None
        self._copies_results = False

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Sets the positions that each update copies to the device; see HostInputs."""
        if self._inputs is None:
            self._inputs, self._graph = HostInputs(self._state), None
        self._inputs.place(positions, cell, unit)

    def unplace(self) -> None:
        """Stops copying positions: the state keeps its own."""
        if self._inputs is not None:
            self._inputs = self._graph = None

    def answer(self) -> HostOutputs:
        """Host result buffers, cached because pinned allocation is slow."""
        if self._outputs is None:
            self._outputs = HostOutputs(self._state, self._lists, self._forces)
        return self._outputs

    def copy_outputs(self) -> HostOutputs:
        """Makes every update copy its results to the host buffers, and returns these."""
        if not self._copies_results:
            self._copies_results, self._graph = True, None
        return self.answer()

    def forget(self) -> None:
        """Drops the graph; call it when buffers that it holds are replaced."""
        self._graph = None

    def launch_(self, update_: Callable[[], None], graphed: bool) -> None:
        """Launches one update with its copies; on CUDA it syncs only to capture.

        Args:
            update_: brings lists and results up to date, capturable; the same in every call.
            graphed: capture the update, unless a capture failed before. An existing graph is
                replayed in any case.
        """
        if graphed and self._graph is None and self._capturable:
            try:
                self._graph = self._capture(lambda: self._launch_(update_), self._state.device)
            except GraphMemoryError as error:
                say_eager(error)
            self._capturable = self._graph is not None
        if self._graph is None:
            self._launch_(update_)
        else:
            self._graph.replay()

    def _launch_(self, update_: Callable[[], None]) -> None:
        self._state.load_()
        if self._inputs is not None:
            self._inputs.copy_()
        update_()
        if self._copies_results:
            self.answer().copy_()


class Calculation:
    """Energy, forces and virial of one or several systems at their present positions.

    Attributes:
        state: the buffers.
        lists: neighbor lists, one for each of the evaluator's `cutoffs`.
        evaluator: computes energy, forces and virial.
        springs: restraints on the device, or None.
        biases: collective variables and biases on the device, or None.
    """

    @checked
    def __init__(
        self,
        systems: Sequence[System],
        potential: Any,
        *,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        skin: float | None = None,
        cell_varies: bool = True,
        seed: int = 0,
        evaluator: str = "auto",
        restraints: PositionRestraints | None = None,
        variables: Mapping[str, CollectiveVariable] | None = None,
        biases: Sequence[Bias] = (),
        room: BatchCapacity | None = None,
        graphs: GraphMemory | None = None,
        leaves_device: bool = False,
    ) -> None:
        """Allocates and checks; nothing is evaluated yet. Reads the device.

        Args:
            systems: one or more.
            potential: path, shipped name, Potential or Evaluator.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            skin: A; None chooses.
            cell_varies: whether cells change between updates.
            seed: key of random numbers; each system of the batch has its own.
            evaluator: `auto`, `fused` or `reference`.
            restraints: springs on atoms, added to what the evaluator writes.
            variables: collective variables by name; see `mdgraph.biases`.
            biases: on these variables, added after restraints.
            room: capacity for systems that `assign_` puts in the place of these.
            graphs: memory that captures share; None captures in memory of its own.
            leaves_device: see `State.leave_device_`. Where an evaluator is divided among ranks
                lists have no rows then, as those of regions have them.

        Raises:
            InputError: unknown species, a charge the potential cannot take, two atoms at
                the same place, lengths that are not in Angstrom, a device that is not there.
        """
        self.precision = precision_named(precision)
        self.device = device_named(device)
        self.evaluator = as_evaluator(potential, self.precision, self.device, evaluator)
        systems = systems if isinstance(systems, SystemArrays) else list(systems)
        if not systems or not all(isinstance(system, System) for system in systems):
            raise InputError("A calculation needs systems; give a list of at least one System.")
        arrays = SystemArrays.of(systems)
        self.check(arrays)
        self.skin = checked_skin(default_skin(self.device) if skin is None else skin)
        self.state = State(arrays, self.device, self.precision.state, seed, room)
        brick = None
        if leaves_device:
            self.state.leave_device_()
            among_ranks = [one for one in divided_parts(self.evaluator) if not one.keeps_all]
            brick = among_ranks[0].no_brick(self.state) if among_ranks else None
        self._has_rows = brick is None
        self.lists = [
            NeighborList(
                self.state,
                cutoff,
                self.skin,
                cell_varies=cell_varies,
                brick=brick,
                one_way=number in self.evaluator.one_way,
            )
            for number, cutoff in enumerate(self.evaluator.cutoffs)
        ]
        self.springs = None
        if restraints is not None:
            self.springs = Springs(restraints.applied_to(systems), self.state)
        self.biases = None
        if variables is not None or len(biases):
            own = self.evaluator
            together = own.steps if isinstance(own, MultipleTimeStepEvaluator) else None
            self.biases = AppliedBiases(
                {} if variables is None else variables,
                biases,
                systems,
                self.state,
                cell_varies=cell_varies,
                together=together or 1,
            )
            if self.biases.reads_energy and together:
                raise InputError(
                    "The energy cannot be a variable where two potentials share the steps, each "
                    "with an energy of its own; leave it out, or the inner potential."
                )
        own_forces = self.evaluator.forces(self.state)
        self._evaluation = GraphedEvaluation(self.state, self.lists, graphs, own_forces)
        self._updated = False
        self.check_coincident()

    @classmethod
    def of_parts(
        cls, evaluator: Evaluator, state: State, lists: Sequence[NeighborList]
    ) -> "Calculation":
        """Evaluates a state with lists that are there, both checked before, and nothing else."""
        self = cls.__new__(cls)
        self.evaluator, self.state, self.lists = evaluator, state, list(lists)
        self.device, self.springs, self.biases = state.device, None, None
        return self

    def check(self, systems: Sequence[System], *, distances: bool = True) -> None:
        """Raises InputError for systems that cannot be computed; see above and `check_lengths`."""
        systems = SystemArrays.of(systems)
        species, potential = self.evaluator.species, self.evaluator.potential
        if not (species is None or are_among(systems.numbers, species)):
            for system in systems:
                check_species(species, system.numbers.tolist())
        if isinstance(potential, PotentialModule):
            numbers, ends = systems.numbers.tolist(), systems.ends.tolist()
            for start, end in zip([0, *ends], ends, strict=False):
                potential.check_atoms(numbers[start:end])
        if np.nan_to_num(systems.charges).any():
            for system in systems:
                check_charge(self.evaluator, total_charge(system))
        check_duplicates(systems)
        if self.evaluator.cutoffs:  # atoms that do not interact may lie anywhere
            check_lengths(systems, distances=distances)

    def assign_(self, systems: Sequence[System], padding: SystemArrays | None = None) -> None:
        """Puts other systems into the place of these; see `prepared` and `take_`."""
        self.take_(self.prepared(systems, padding))

    def prepared(
        self, systems: Sequence[System], padding: SystemArrays | None = None
    ) -> PreparedSystems:
        """Other systems as `take_` wants them; changes nothing, so the device may still evaluate.

        Distances are left to `check_close`, after `computed`.

        Args:
            systems: the others.
            padding: further ones that are known to be sound, and are not checked.

        Raises:
            InputError: systems that the potential refuses or that do not fit; see `State`.
        """
        systems = SystemArrays.of(systems)
        self.check(systems, distances=False)
        return self.state.prepared(systems if padding is None else systems.followed_by(padding))

    def take_(self, prepared: PreparedSystems) -> None:
        """Puts other systems into the place of these; captured graphs stay valid. Does not sync.

        The next evaluation brings them to the device, so sync between two calls. Restraints do not
        change.
        """
        self._evaluation.unplace()
        if not self.state.awaits_load:
            self._evaluation.forget()  # a graph of before does not load
        self.state.take_(prepared)
        if not all(item.is_built_anew for item in self.lists):
            self.state.load_()
            for item in self.lists:
                item.rebuild_(self.state.positions, self.state.cell)

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Sets the positions of one system for all later `compute` and `computed`.

        Writes them on the host; each evaluation copies them to the device.

        Args:
            positions: (N, 3).
            cell: (3, 3), or None to leave it.
            unit: of both, in A.

        Raises:
            RuntimeError: on CUDA, in a process that was forked too late.
        """
        self._evaluation.place(positions, cell, unit)

    def update_(self) -> None:
        """Lists, then energy, forces and virial; static shapes, does not sync on CUDA."""
        own = self.evaluator.own_lists(self.lists)
        lists = [item for item in self.lists if not any(item is other for other in own)]
        pull = self._update_(lists, self.evaluator.evaluate_)
        forces = self.evaluator.forces(self.state)
        if pull is not None and forces is not self.state.forces:
            forces -= pull

    def update_small_(self) -> None:
        """The same by the small potential of a MultipleTimeStepEvaluator alone."""
        evaluator = self.evaluator
        assert isinstance(evaluator, MultipleTimeStepEvaluator)
        self._update_(evaluator.lists_of(evaluator.small, self.lists), evaluator.evaluate_small_)

    def _update_(
        self,
        lists: Sequence[NeighborList],
        evaluate_: Callable[[State, Sequence[NeighborList]], None],
    ) -> Tensor | None:
        """What `add_terms_` took from the forces."""
        for neighbor_list in lists:
            neighbor_list.update_(self.state.positions, self.state.cell, joined=False)
        evaluate_(self.state, self.lists)
        for neighbor_list in lists:
            neighbor_list.join()
        return self.add_terms_()

    def add_terms_(self) -> Tensor | None:
        """Adds restraints, then biases, to what the evaluator wrote; does not sync.

        Returns:
            (N, 3) float64, eV/A, what they took from the forces; None if there are none.
        """
        pull = None if self.springs is None else self.springs.add_(self.state)
        biased = None if self.biases is None else self.biases.add_(self.state)
        if pull is None or biased is None:
            return biased if pull is None else pull
        return pull + biased

    def list_of(self, role: str) -> NeighborList:
        """The list that one part of the potential reads, such as `network`; see ListRoles."""
        return self.evaluator.list_roles.assign(self.lists)[role]

    def restrained(self) -> list[bool]:
        """Whether restraints, biases on places or a potential from outside act on each; syncs."""
        potential, systems = self.evaluator.potential, self.state.grouping.systems
        if isinstance(potential, PotentialModule) and not potential.keeps_momentum:
            return [True] * systems
        springs = [False] * systems if self.springs is None else self.springs.restrained(self.state)
        held = [False] * systems if self.biases is None else self.biases.held
        return [spring or hold for spring, hold in zip(springs, held, strict=True)]

    def sticky(self) -> Tensor:
        """Counters (lists, 4) int64 on the device, from which `complete` decides."""
        if not self.lists:
            return torch.zeros(0, 4, dtype=torch.int64, device=self.device)
        return torch.stack([item.sticky() for item in self.lists])

    def complete(self) -> bool:
        """Whether no list, and nothing of the evaluator, overflowed since it grew; syncs."""
        if self._outgrown():
            return False
        if len(self.lists) < 2:
            return all(item.status().complete for item in self.lists)
        return hold_all(self.lists, self.sticky().tolist())

    def _outgrown(self) -> bool:
        """Whether buffers of the evaluator are too small; syncs if it has any."""
        flag = self.evaluator.outgrown(self.state)
        return flag is not None and bool(flag)

    def grow(self) -> None:
        """Enlarges lists and buffers that overflowed. They change: capture graphs again."""
        self._evaluation.forget()
        if self._outgrown():
            self.evaluator.grow_(self.state)
        for neighbor_list in self.lists:
            if not neighbor_list.status().complete:
                neighbor_list.grow()

    def set_skin(self, skin: float) -> None:
        """Gives every list another skin, A. Buffers change: capture graphs again.

        Raises:
            InputError: an invalid skin.
        """
        self.skin = checked_skin(skin)
        self._evaluation.forget()
        for neighbor_list in self.lists:
            neighbor_list.set_skin(skin)

    def plan_anew(self) -> None:
        """Plans and builds lists of constant cells again for the present cells; syncs.

        Buffers change: capture graphs again.
        """
        self._evaluation.forget()
        for neighbor_list in self.lists:
            neighbor_list.reference_positions.copy_(self.state.positions)
            neighbor_list.reference_cell.copy_(self.state.cell)
            neighbor_list.set_skin(self.skin)

    def compute(self, *, graphed: bool = False) -> None:
        """Updates, and grows lists and repeats until none overflows. Syncs.

        Args:
            graphed: replay all of it as one CUDA graph. The first evaluation after an
                allocation runs eagerly, so that a single energy needs no capture; if a capture
                fails, all run eagerly.

        Raises:
            InputError: a list overflows because lengths are not in Angstrom; see `check_lengths`.
            CapacityError: a list still overflows after it has grown several times.
        """
        self._repeat(graphed, self.complete)

    def computed(
        self, *, graphed: bool = False, meanwhile: Callable[[], None] = lambda: None
    ) -> HostOutputs:
        """Computes as `compute` does and returns the results on the host; syncs once.

        Args:
            graphed: see `compute`.
            meanwhile: work of the host while the device evaluates.
        """
        outputs = self._evaluation.copy_outputs()

        def wait() -> bool:
            meanwhile()
            return outputs.wait() and not self._outgrown()

        self._repeat(graphed, wait)
        return outputs

    def answer(self) -> HostOutputs:
        """The current results of the state on the host; syncs once."""
        outputs = self._evaluation.answer()
        outputs.copy_()
        outputs.wait()
        return outputs

    def _repeat(self, graphed: bool, complete: Callable[[], bool]) -> None:
        for _ in range(8):
            self._evaluation.launch_(self.update_, graphed and self._updated)
            self._updated = complete()
            if self._updated:
                return
            check_lengths_of(self.state)
            self.grow()
        raise CapacityError(
            "The neighbor list could not be made large enough; "
            "check that the atoms are not on top of each other."
        )

    def check_close(self, systems: Sequence[System], outputs: HostOutputs) -> None:
        """Does what `assign_` leaves of the checks, if an evaluation has met a pair so close.

        Raises:
            InputError: see `check_lengths` and `check_coincident`.
        """
        if outputs.may_be_close:
            if self.lists:
                check_lengths(systems)
            self.check_coincident()

    def check_coincident(self) -> None:
        """Raises InputError if two atoms, or an atom and an image, are at one place; syncs.

        Without rows of all atoms none is raised; forces on such atoms are no numbers.
        """
        if self.lists and self._has_rows:
            check_pairs(self.state, self.lists[0])
