"""Evaluators: write energy, forces and virial of a state into its own buffers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.models.potential import Atoms, ListRoles, Potential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import Precision, full_float32
from mdgraph.state import State


class Evaluator(ABC):
    """Writes energy, forces and virial of a state; what simulations and drivers run.

    An evaluator of your own needs `cutoffs` and `evaluate_`; the other members have the defaults
    below. An object of another class with these two runs as a `ForeignEvaluator`.

    Attributes:
        cutoffs: A; ranges of the lists that `evaluate_` expects, in their order.
        potential: what it evaluates, or None where there is nothing to compare it with.
        precision: what it was made for; None suits all.
        device: where it runs; None runs anywhere.
        rounds: whether forces are rounded, and no exact derivative of the energy.
    """

    cutoffs: tuple[float, ...] = ()
    potential: Potential | None = None
    precision: Precision | None = None
    device: torch.device | None = None
    rounds: bool = False

    @property
    def species(self) -> tuple[int, ...] | None:
        """Atomic numbers it accepts; None accepts every element."""
        return None if self.potential is None else self.potential.species

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy, or may do so."""
        return self.potential is None or self.potential.uses_charge

    @property
    def list_roles(self) -> ListRoles:
        """Which list each part of it reads; unless overridden, the first is `network`."""
        return ListRoles(self.cutoffs, {"network": 0} if self.cutoffs else {})

    @abstractmethod
    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """Writes energies, energy, forces and virial; static shapes, does not sync.

        Lists may come with reverse slots that are still being found; call `join` on a list
        before reading them, as `pairs` does.
        """


class ForeignEvaluator(Evaluator):
    """An object with `cutoffs` and `evaluate_` that is no Evaluator.

    Attributes:
        foreign: the object, whose other attributes count where it has them.
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
    order, so they repeat bit for bit.
    """

    potential: Potential

    def __init__(self, potential: Potential) -> None:
        self.potential = potential
        self.cutoffs = potential.cutoffs

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
        # Whatever modes the caller is in: gradients are needed, at the precision chosen here.
        plain = torch.autocast(state.device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), plain, full_float32():
            pairs = tuple(item.pairs(state.positions, state.cell) for item in lists)
            energies = self.potential(atoms, pairs)
            leaves = [vectors for item in pairs for vectors in item.vectors]
            # A list that a potential does not read has zero derivatives.
            gradients = (
                torch.autograd.grad(
                    energies.sum(), leaves, allow_unused=True, materialize_grads=True
                )
                if leaves
                else ()
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
            state.forces.copy_(forces)
            state.energies.copy_(energies)
            state.energy.copy_(state.grouping.sum(state.energies))
            state.virial.copy_(state.grouping.sum(virials))
