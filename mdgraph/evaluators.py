"""Evaluators: write energy, forces and virial of a state into its own buffers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdgraph.gpu.launch import Branch
from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.models.potential import AbsolutePositions, Atoms, ListRoles, Potential
from mdgraph.models.sum import SumPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import Precision, full_float32
from mdgraph.state import State


class Evaluator(ABC):
    """Writes energy, forces and virial of a state; simulations and drivers run one.

    An evaluator of your own needs `cutoffs` and `evaluate_`; the other members have the defaults
    below. An object of another class with these two runs as a `ForeignEvaluator`.

    `evaluate_forces_`, `evaluate_apart_` and `runs_beside` are shortcuts of one `evaluate_`: a
    subclass that overrides `evaluate_` alone has their defaults, which call it, and not those of
    its base.

    Attributes:
        cutoffs: A; ranges of the lists that `evaluate_` expects, in their order.
        potential: the potential it evaluates, which the self-check compares it with; or None.
        precision: the precision it was made for; None means any.
        device: the device it runs on; None means any.
        rounds: whether forces are rounded, so that they are not the exact derivative of the energy.
        runs_beside: whether two such evaluators may run at the same time on one state, because
            each writes only its own buffers and the results it is asked for.
        one_way: indices of lists whose reverse slots it does not read.
    """

    cutoffs: tuple[float, ...] = ()
    potential: Potential | None = None
    precision: Precision | None = None
    device: torch.device | None = None
    rounds: bool = False
    runs_beside: bool = False
    one_way: tuple[int, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = _definer(cls, "evaluate_")
        for name in ("evaluate_forces_", "evaluate_apart_", "runs_beside"):
            if _definer(cls, name) > own:
                setattr(cls, name, vars(Evaluator)[name])

    @property
    def species(self) -> tuple[int, ...] | None:
        """Atomic numbers that it accepts; None means every element."""
        return None if self.potential is None else self.potential.species

    @property
    def uses_charge(self) -> bool:
        """Whether the energy depends, or may depend, on the total charge."""
        return self.potential is None or self.potential.uses_charge

    @property
    def list_roles(self) -> ListRoles:
        """The list that each part of the potential reads; by default the first is `network`."""
        return ListRoles(self.cutoffs, {"network": 0} if self.cutoffs else {})

    def forces(self, state: State) -> Tensor:
        """Forces (N, 3) of the potential, eV/A; does not sync.

        These are `state.forces`, except with two time steps, where other forces drive the dynamics.
        """
        return state.forces

    def tensors(self, state: State) -> dict[str, Tensor]:
        """Buffers, by name, that restart files need in addition to the state."""
        return {}

    def term_energies(self, state: State) -> Mapping[str, Tensor]:
        """Energies (S,) float64, eV, of the terms of a sum, by name, from the last evaluation.

        They include the weights, so they add up to the energy. Empty if there is only one term.
        """
        return {}

    def switching(self, state: State) -> Mapping[str, Tensor]:
        """Log columns (S,) float64 of weights that change; empty if all weights are constant."""
        return {}

    def begin_step_(self, state: State) -> None:  # noqa: B027
        """Called before each step of dynamics; static shapes, does not sync."""

    def end_step_(self, state: State) -> None:  # noqa: B027
        """Called after each step of dynamics; static shapes, does not sync."""

    def division(self, state: State) -> dict[str, Tensor]:
        """Buffers, by name, that describe the division of a state among domains, for restart files.

        Empty without domains. Forces do not depend on the division.
        """
        return {}

    def outgrown(self, state: State) -> Tensor | None:
        """() bool, whether buffers other than the lists overflowed since `grow_`; does not sync.

        None if there are no such buffers.
        """
        return None

    def grow_(self, state: State) -> None:  # noqa: B027
        """Enlarges these buffers at the next evaluation. Capture graphs again."""

    def own_lists(self, lists: Sequence[NeighborList]) -> list[NeighborList]:
        """The lists that `evaluate_` brings up to date itself."""
        return []

    @abstractmethod
    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """Writes energies, energy, forces and virial; static shapes, does not sync.

        Lists may come with reverse slots that are still being found; call `join` on a list
        before reading them, as `pairs` does.
        """

    def evaluate_forces_(
        self, state: State, lists: Sequence[NeighborList], into: Tensor | None = None
    ) -> None:
        """Writes only the forces of `evaluate_`; energies and virial are undefined afterwards.

        Static shapes, does not sync.

        Args:
            state: see `evaluate_`.
            lists: see `evaluate_`.
            into: (N, 3), eV/A, written instead of `state.forces`; an evaluator that `runs_beside`
                then leaves the results in the state unchanged.
        """
        self.evaluate_(state, lists)
        if into is not None:
            into.copy_(state.forces)

    def evaluate_apart_(self, state: State, lists: Sequence[NeighborList], forces: Tensor) -> None:
        """Like `evaluate_`, with forces written into `forces` (N, 3); `state.forces` is undefined.

        Static shapes, does not sync.
        """
        self.evaluate_(state, lists)
        forces.copy_(state.forces)


def _definer(cls: type, name: str) -> int:
    """The place, among a class and its bases, of that which a member comes from."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))


class ForeignEvaluator(Evaluator):
    """Wraps an object that has `cutoffs` and `evaluate_` but is not an Evaluator.

    Attributes:
        foreign: the object; `potential`, `precision`, `device` and `rounds` are taken from it if it
            has them.
    """

    def __init__(self, foreign: Any) -> None:
        self.foreign = foreign
        self.cutoffs = foreign.cutoffs
        for name in ("potential", "precision", "device", "rounds"):
            setattr(self, name, getattr(foreign, name, getattr(self, name)))

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        self.foreign.evaluate_(state, lists)


class AutogradEvaluator(Evaluator):
    """Any potential, differentiated by autograd: the oracle for every faster evaluator.

    Forces and virial come from the same derivatives by pair vectors,
    F_i = sum_k (dE/dr_ik - dE/dr_ki) and W = -sum r (x) dE/dr, summed in the state type in slot
    order, so they repeat bit for bit. A potential that uses positions adds its derivatives by
    these, and by a strain of positions and cell.
    """

    potential: Potential

    def __init__(self, potential: Potential) -> None:
        self.potential = potential
        self.cutoffs = potential.cutoffs

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        # Whatever modes the caller is in: gradients are needed, at the precision chosen here.
        plain = torch.autocast(state.device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), plain, full_float32():
            pairs = tuple(item.pairs(state.positions, state.cell) for item in lists)
            leaves = [vectors for item in pairs for vectors in item.vectors]
            absolute: AbsolutePositions | None = None
            own: list[Tensor] = []
            if getattr(self.potential, "uses_positions", False):
                absolute, own = _strained(state)
            atoms = Atoms(
                *(state.numbers, state.elements, state.kinds, state.charge, state.grouping),
                absolute=absolute,
            )
            energies = self.potential(atoms, pairs)
            # A list that a potential does not read has zero derivatives.
            gradients = (
                torch.autograd.grad(
                    energies.sum(), [*leaves, *own], allow_unused=True, materialize_grads=True
                )
                if energies.requires_grad
                else [torch.zeros_like(leaf) for leaf in (*leaves, *own)]
            )
        with torch.no_grad():
            forces = torch.zeros_like(state.forces)
            virials = state.forces.new_zeros(len(forces), 3, 3)
            start = 0
            for item in pairs:
                stop = start + len(item.blocks)
                force, virial = forces_and_virials(item, gradients[start:stop])
                forces += force
                virials += virial
                start = stop
            state.virial.copy_(state.grouping.sum(virials))
            if own:
                forces -= gradients[-2]
                state.virial.sub_(gradients[-1])
            state.forces.copy_(forces)
            state.energies.copy_(energies)
            state.energy.copy_(state.grouping.sum(state.energies))


def _strained(state: State) -> tuple[AbsolutePositions, list[Tensor]]:
    """Positions and cells of a state, and the leaves that they depend on: places, a zero strain."""
    places = state.places().detach().requires_grad_(True)
    cell = state.cell.double()
    strain = torch.zeros_like(cell, requires_grad=True)
    positions = places + (places[:, None] @ state.grouping.spread(strain))[:, 0]
    absolute = AbsolutePositions(positions, cell + cell @ strain, state.pbc, state.atom)
    return absolute, [places, strain]


@dataclass(frozen=True)
class _Switching:
    """Weights of T terms that change along the dynamics of one state.

    Attributes:
        weights: (T, 1) float64, of the present evaluation.
        change: (T, 1) float64, of the weights in the present step.
        slopes: (T, S) float64, eV, dU/dw of each term: its energy without a weight.
        work: (S,) float64, eV, done on the systems by the changes since step 0.
    """

    weights: Tensor
    change: Tensor
    slopes: Tensor
    work: Tensor


@dataclass(frozen=True)
class _Sums:
    """Sums over the terms of a sum for one state, and the energies (T, S) of the terms, eV."""

    energies: Tensor
    energy: Tensor
    forces: Tensor
    virial: Tensor
    terms: Tensor
    switching: _Switching | None

    def zero_(self) -> None:
        for total in (self.energies, self.energy, self.forces, self.virial):
            total.zero_()

    def add_(self, number: int, weight: float, state: State) -> None:
        """Adds what a term wrote into the state; a weight that changes is that of the device."""
        if self.switching is not None:
            self.switching.slopes[number].copy_(state.energy)
            now = self.switching.weights[number]
            self.energies.add_(state.energies * now)
            self.energy.add_(state.energy * now)
            self.forces.add_(state.forces * now.to(state.forces.dtype))
            self.virial.add_(state.virial * now)
            torch.mul(state.energy, now, out=self.terms[number])
            return
        self.energies.add_(state.energies, alpha=weight)
        self.energy.add_(state.energy, alpha=weight)
        self.forces.add_(state.forces, alpha=weight)
        self.virial.add_(state.virial, alpha=weight)
        torch.mul(state.energy, weight, out=self.terms[number])

    def copy_to_(self, state: State) -> None:
        state.energies.copy_(self.energies)
        state.energy.copy_(self.energy)
        state.forces.copy_(self.forces)
        state.virial.copy_(self.virial)


def _divisions(parts: Sequence[Evaluator], state: State) -> dict[str, Tensor]:
    """Divisions of all parts, by the number of the part and the name."""
    return {
        f"{number}.{name}": tensor
        for number, part in enumerate(parts)
        for name, tensor in part.division(state).items()
    }


def _any_outgrown(parts: Sequence[Evaluator], state: State) -> Tensor | None:
    flags = [flag for part in parts if (flag := part.outgrown(state)) is not None]
    return torch.stack(flags).any() if flags else None


class SumEvaluator(Evaluator):
    """The weighted sum of evaluators, one for each term of a SumPotential.

    Each term runs in its own fastest form; lists of equal cutoff are shared. All buffers are
    static, so the sum is part of a captured step.

    Weights that change (`SumPotential.ramps`) are numbers of the device, of the step that is being
    taken: w(m + 1) in the evaluation at x_(m+1). That change does the work
    sum_k (w_k(m + 1) - w_k(m)) U_k(x_(m+1)), as the step before led to x_(m+1) by w(m); its
    exponential average is a free energy (DOI 10.1103/PhysRevLett.78.2690).

    Attributes:
        potential: the sum.
        terms: the evaluator of each term, in the order of the sum.
    """

    potential: SumPotential

    def __init__(self, potential: SumPotential, terms: Sequence[Evaluator]) -> None:
        """Allocates nothing.

        Args:
            potential: the sum, as it was loaded.
            terms: evaluators of its terms, for one precision and device.
        """
        self.potential, self.terms = potential, tuple(terms)
        self.cutoffs = potential.cutoffs
        self.precision, self.device = terms[0].precision, terms[0].device
        self.rounds = any(term.rounds for term in terms)
        self._roles = potential.list_roles
        self._places = [potential.places(number) for number in range(len(self.terms))]

    @property
    def list_roles(self) -> ListRoles:
        """See Evaluator."""
        return self._roles

    def lists_of(self, number: int, lists: Sequence[NeighborList]) -> list[NeighborList]:
        """The lists that a term reads, of those of the sum."""
        return [lists[place] for place in self._places[number]]

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. The first call for a state allocates."""
        sums = self._bind(state)
        sums.zero_()
        for number, (term, weight) in enumerate(
            zip(self.terms, self.potential.weights, strict=True)
        ):
            term.evaluate_(state, self.lists_of(number, lists))
            sums.add_(number, weight, state)
        sums.copy_to_(state)

    def term_energies(self, state: State) -> Mapping[str, Tensor]:
        """See Evaluator."""
        return dict(zip(self.potential.term_names(), self._bind(state).terms, strict=True))

    def switching(self, state: State) -> Mapping[str, Tensor]:
        """See Evaluator: NAME_weight and dU/dw of terms that change, and the work since step 0."""
        own = self._bind(state).switching
        if own is None:
            return {}
        names, columns = self.potential.term_names(), {}
        for number in self.potential.changing:
            columns[f"{names[number]}_weight"] = own.weights[number].expand_as(own.work)
            columns[f"{names[number]}_dU_dw_eV"] = own.slopes[number]
        return columns | {"switching_work_eV": own.work}

    def begin_step_(self, state: State) -> None:
        """See Evaluator: weights of the step to come."""
        own, ramps = self._bind(state).switching, self.potential.ramps
        if own is None or ramps is None:
            return
        own.change.copy_(own.weights)
        progress = ((state.step + 1).double() / ramps.steps).clamp(max=1.0)
        start, end = self._ends
        own.weights.copy_(torch.lerp(start, end, progress))
        torch.sub(own.weights, own.change, out=own.change)

    def end_step_(self, state: State) -> None:
        """See Evaluator: the work of the step."""
        own = self._bind(state).switching
        if own is not None:
            own.work.add_((own.change * own.slopes).sum(0))

    def tensors(self, state: State) -> dict[str, Tensor]:
        """See Evaluator."""
        own = self._bind(state).switching
        if own is None:
            return {}
        return {"weights": own.weights, "slopes": own.slopes, "work": own.work}

    def _switching(self, state: State) -> _Switching | None:
        """Weights of the start, and no work yet; None if no weight changes."""
        if self.potential.ramps is None:
            return None
        both = torch.tensor([self.potential.weights, self.potential.ramps.ends]).double()
        self._ends = both[..., None].to(state.device)
        weights, slopes = self._ends[0].clone(), torch.zeros_like(state.energy)
        systems = slopes.expand(len(weights), -1).clone()
        return _Switching(weights, torch.zeros_like(weights), systems, slopes)

    def division(self, state: State) -> dict[str, Tensor]:
        """See Evaluator."""
        return _divisions(self.terms, state)

    def outgrown(self, state: State) -> Tensor | None:
        """See Evaluator."""
        return _any_outgrown(self.terms, state)

    def grow_(self, state: State) -> None:
        """See Evaluator."""
        for term in self.terms:
            term.grow_(state)

    def _bind(self, state: State) -> _Sums:
        sums: _Sums | None = state.workspaces.get(self)
        if sums is None:
            state.workspaces[self] = sums = _Sums(
                state.zeros_like(state.energies),
                torch.zeros_like(state.energy),
                state.zeros_like(state.forces),
                torch.zeros_like(state.virial),
                state.energy.new_zeros(len(self.terms), len(state.energy)),
                self._switching(state),
            )
        return sums

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner: the sums do not depend on the systems."""


@dataclass(frozen=True)
class _TwoTimeSteps:
    """Buffers of two potentials for one state.

    Attributes:
        forces: (N, 3) eV/A, of the large potential.
        small: (N, 3) eV/A, (1 - n) times those of the small one.
        virial: (S, 3, 3) eV, that of the state while an impulse is added to it.
        impulse: (S, 3, 3) eV, (n - 1) (W_large - W_small).
        branch: stream of the small potential beside the large one.
    """

    forces: Tensor
    small: Tensor
    virial: Tensor
    impulse: Tensor
    branch: Branch


class MultipleTimeStepEvaluator(Evaluator):
    """Two potentials for two time steps: forces of the small one, and impulses of the difference.

    F = F_small + n (F_large - F_small)   at every n-th step (`evaluate_`)
    F = F_small                           at the steps between (`evaluate_small_`)

    Steps of length dt by these forces are reversible RESPA with an outer step n dt: a kick of
    n dt/2 by F_large - F_small, n steps by F_small, the kick again. Energy, virial and `forces`
    are those of the large potential; they belong to the state after every n-th step alone.

    Barostats take W_small at the steps between and W_small + n (W_large - W_small) at every n-th,
    which is the same kick of the cell. `start_impulse_` writes that into the state for as long as
    the integrator reads it, and `end_impulse_` the virial of the large potential again. Without a
    barostat no virial of the small potential is computed, and where both potentials run on CUDA in
    the fused form, they run beside each other at every n-th step.

    ==================  ==================
    F, W                `state.forces`, eV/A; `state.virial`, eV
    n                   `steps`
    F_large, F_small    forces by `large` and `small`
    W_large, W_small    virials by `large` and `small`
    ==================  ==================

    DOI 10.1063/1.463137; of cells, 10.1080/00268979600100761.

    Attributes:
        large: the evaluator whose dynamics these are.
        small: a faster one, near to it.
        steps: of the small potential to one of the large.
        virials: whether those of the small potential are computed.
    """

    def __init__(
        self, large: Evaluator, small: Evaluator, steps: int, virials: bool = True
    ) -> None:
        """Allocates nothing.

        Args:
            large: evaluator of the potential.
            small: evaluator of the inner potential, for the same precision and device.
            steps: n, at least 1.
            virials: whether cells vary.
        """
        self.large, self.small, self.steps, self.virials = large, small, steps, virials
        both = large is not small and large.runs_beside and small.runs_beside
        self._runs_beside = both and not virials
        self.cutoffs = tuple(dict.fromkeys((*large.cutoffs, *small.cutoffs)))
        self.potential = large.potential
        self.precision, self.device = large.precision, large.device
        self.rounds = large.rounds or small.rounds
        both_ways = {
            cutoff
            for part in (large, small)
            for number, cutoff in enumerate(part.cutoffs)
            if number not in part.one_way
        }
        self.one_way = tuple(
            number for number, cutoff in enumerate(self.cutoffs) if cutoff not in both_ways
        )

    @property
    def species(self) -> tuple[int, ...] | None:
        """Atomic numbers that both accept."""
        own = [part.species for part in (self.large, self.small) if part.species is not None]
        return tuple(sorted(set.intersection(*map(set, own)))) if own else None

    @property
    def uses_charge(self) -> bool:
        """See Evaluator."""
        return self.large.uses_charge

    @property
    def list_roles(self) -> ListRoles:
        """Lists of the large potential, which come first."""
        return ListRoles(self.cutoffs, self.large.list_roles.places)

    def lists_of(self, part: Evaluator, lists: Sequence[NeighborList]) -> list[NeighborList]:
        """The lists that `large` or `small` reads, of those of both."""
        return [lists[self.cutoffs.index(cutoff)] for cutoff in part.cutoffs]

    def own_lists(self, lists: Sequence[NeighborList]) -> list[NeighborList]:
        """See Evaluator: beside the large potential those of the small one alone."""
        if not self._runs_beside:
            return []
        pairs = zip(self.cutoffs, lists, strict=True)
        return [item for cutoff, item in pairs if cutoff not in self.large.cutoffs]

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. The first call for a state allocates."""
        own, own_lists = self._bind(state), self.own_lists(lists)
        lists_of_small = self.lists_of(self.small, lists)
        lists_of_large = self.lists_of(self.large, lists)
        if self._runs_beside:
            for item in lists_of_small:
                # A list is waited for once, which would be on the stream of the small potential.
                if any(item is other for other in lists_of_large):
                    item.join()
        with own.branch.fork() if self._runs_beside else nullcontext():
            for item in own_lists:
                item.update_(state.positions, state.cell, joined=False)
            if self.virials:
                self.small.evaluate_(state, lists_of_small)
                own.small.copy_(state.forces)
                own.impulse.copy_(state.virial)
            else:
                self.small.evaluate_forces_(state, lists_of_small, own.small)
            own.small.mul_(1 - self.steps)
            for item in own_lists:
                item.join()
        self.large.evaluate_apart_(state, lists_of_large, own.forces)
        own.branch.join()
        torch.add(own.small, own.forces, alpha=self.steps, out=state.forces)
        if self.virials:
            torch.sub(state.virial, own.impulse, out=own.impulse).mul_(self.steps - 1)

    def start_impulse_(self, state: State) -> None:
        """Adds the impulse of the large potential to the virial; does not sync."""
        own = self._bind(state)
        own.virial.copy_(state.virial)
        state.virial.add_(own.impulse)

    def end_impulse_(self, state: State) -> None:
        """Writes the virial from before `start_impulse_` again; does not sync."""
        state.virial.copy_(self._bind(state).virial)

    def evaluate_small_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """Writes forces, and virials if wanted, of the small potential; static shapes, no sync."""
        own = self.lists_of(self.small, lists)
        if self.virials:
            self.small.evaluate_(state, own)
        else:
            self.small.evaluate_forces_(state, own)

    def forces(self, state: State) -> Tensor:
        """See Evaluator: of the large potential, after every n-th step."""
        return self._bind(state).forces

    def tensors(self, state: State) -> dict[str, Tensor]:
        """See Evaluator."""
        own = self._bind(state)
        return {"forces": own.forces, "impulse": own.impulse}

    def term_energies(self, state: State) -> Mapping[str, Tensor]:
        """See Evaluator."""
        return self.large.term_energies(state)

    def division(self, state: State) -> dict[str, Tensor]:
        """See Evaluator."""
        return _divisions((self.large, self.small), state)

    def outgrown(self, state: State) -> Tensor | None:
        """See Evaluator."""
        return _any_outgrown((self.large, self.small), state)

    def grow_(self, state: State) -> None:
        """See Evaluator."""
        self.large.grow_(state)
        self.small.grow_(state)

    def _bind(self, state: State) -> _TwoTimeSteps:
        own: _TwoTimeSteps | None = state.workspaces.get(self)
        if own is None:
            state.workspaces[self] = own = _TwoTimeSteps(
                state.zeros_like(state.forces),
                state.zeros_like(state.forces),
                torch.zeros_like(state.virial),
                torch.zeros_like(state.virial),
                Branch(state.device, "inner potential"),
            )
        return own

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner: all is written by the next evaluation."""
