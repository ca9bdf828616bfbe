"""Evaluators: write energy, forces and virial of a state into its own buffers."""

from collections.abc import Sequence
from typing import Protocol

import torch

from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.models.potential import Atoms, Potential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import full_float32
from mdgraph.state import State


class Evaluator(Protocol):
    """What a simulation needs of a potential."""

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """A; ranges of the lists that `evaluate_` expects, in their order."""
        ...

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """Writes energies, energy, forces and virial; static shapes, does not sync.

        Lists may come with reverse slots that are still being found; call `join` on a list
        before reading them, as `pairs` does.
        """
        ...


class AutogradEvaluator:
    """Any potential, differentiated by autograd: the oracle for every faster evaluator.

    Forces and virial come from the same derivatives by pair vectors,
    F_i = sum_k (dE/dr_ik - dE/dr_ki) and W = -sum r (x) dE/dr, summed in the state type in slot
    order, so they repeat bit for bit.
    """

    def __init__(self, potential: Potential) -> None:
        self.potential = potential
        self.cutoffs = potential.cutoffs

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
        # Whatever modes the caller is in: gradients are needed, at the precision chosen here.
        plain = torch.autocast(state.device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), plain, full_float32():
            pairs = tuple(one.pairs(state.positions, state.cell) for one in lists)
            energies = self.potential(atoms, pairs)
            leaves = [vectors for one in pairs for vectors in one.vectors]
            # A list that a potential asked for and left alone counts with zero derivatives.
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
            for one in pairs:
                stop = start + len(one.blocks)
                force, virial = forces_and_virials(one, gradients[start:stop])
                forces += force
                virials += virial
                start = stop
            state.forces.copy_(forces)
            state.energies.copy_(energies)
            state.energy.copy_(state.grouping.sum(state.energies))
            state.virial.copy_(state.grouping.sum(virials))
