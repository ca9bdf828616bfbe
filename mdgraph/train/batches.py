"""Batches: B frames of one shape, and what a potential predicts for them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mdgraph.models import Atoms, TrainablePotential
from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.neighbors import PairBlock, Pairs
from mdgraph.neighbors.pairs import Undirected
from mdgraph.state import Grouping
from mdgraph.train.tables import Table


@dataclass(frozen=True)
class Inputs:
    """Labels of the frames of a batch, and inputs of a potential.

    Attributes:
        labels: of the frames.
        atoms: of all frames, padding included.
        pairs: for each cutoff, the pairs of all frames.
    """

    labels: Table
    atoms: Atoms
    pairs: tuple[Pairs, ...]


@dataclass(frozen=True)
class Prediction:
    """What a potential predicts for B frames.

    Attributes:
        energy: (B,) float64 eV.
        forces: (B, N, 3) float64 eV/A; 0 on padding.
        stress: (B, 3, 3) float64 eV/A^3, symmetric; meaningless without a volume.
        dipole: (B, 3) float64 e A, of the partial charges; 0 where there are none.
    """

    energy: Tensor
    forces: Tensor
    stress: Tensor
    dipole: Tensor


class Batch:
    """Static buffers for B frames of a table, those that `frames` names.

    Attributes:
        table: holds the frames.
        frames: (B,) int64, rows of the table.
        random: (B, 1 + N, 3) float64, random numbers that perturb each frame, see `losses.draw`.
        share: of the frames of a full step. If a shape has too few frames for one, its steps count
            for less, so that every frame counts the same.
    """

    def __init__(self, table: Table, size: int, elements: Tensor) -> None:
        device = elements.device
        self.table = table
        self.share = 1.0
        self.frames = torch.zeros(size, dtype=torch.int64, device=device)
        self.random = torch.zeros(size, 1 + table.size, 3, dtype=torch.float64, device=device)
        self._elements = elements
        self._grouping = Grouping([table.size] * size, device)
        self._first = torch.arange(size, dtype=torch.int32, device=device)[:, None, None]

    def __len__(self) -> int:
        return len(self.frames)

    def inputs(self) -> Inputs:
        """Labels of the frames, and inputs of a potential; capturable, does not sync."""
        rows = self.table.rows(self.frames)
        # What is divided among the atoms of a system leaves out padding.
        self._grouping.counts.copy_(rows.atoms)
        pairs = tuple(self._pairs(rows, number) for number in range(len(rows.cutoffs)))
        kinds = rows.kinds.flatten()
        elements = self._elements.index_select(0, kinds)
        atoms = Atoms(elements, self._elements, kinds, rows.charge, self._grouping)
        return Inputs(rows, atoms, pairs)

    def predict(
        self, potential: TrainablePotential, differentiable: bool
    ) -> tuple[Prediction, Inputs]:
        """Prediction and inputs of the frames; static shapes, capturable, does not sync.

        Args:
            potential: any TensorNet.
            differentiable: whether a loss of forces will be differentiated.
        """
        inputs = self.inputs()
        rows, pairs, size = inputs.labels, inputs.pairs, len(self)
        energies, charges = potential.energies_and_charges(inputs.atoms, pairs)
        energy = self._summed(energies, inputs)
        leaves = [listed.vectors[0] for listed in pairs]
        # Another thread would multiply matrices in workspaces of its own.
        with torch.autograd.set_multithreading_enabled(False):
            gradients = torch.autograd.grad(
                energy.sum(),
                leaves,
                create_graph=differentiable,
                allow_unused=True,
                materialize_grads=True,
            )
        forces, virials = forces_and_virials(pairs[0], gradients[:1])
        for further, gradient in zip(pairs[1:], gradients[1:], strict=True):
            force, virial = forces_and_virials(further, [gradient])
            forces, virials = forces + force, virials + virial
        virial = virials.view(size, -1, 3, 3).sum(1)
        stress = -0.5 * (virial + virial.transpose(1, 2)) / rows.volume[:, None, None]
        dipole = torch.zeros_like(rows.dipole)
        if charges is not None:
            dipole = (charges.view(size, -1, 1) * rows.positions).sum(1)
        return Prediction(energy, forces.view(size, -1, 3), stress, dipole), inputs

    def energy(self, potential: TrainablePotential, inputs: Inputs) -> Tensor:
        """(B,) float64 eV of the frames alone, with static shapes; does not sync."""
        return self._summed(potential(inputs.atoms, inputs.pairs), inputs)

    def _summed(self, energies: Tensor, inputs: Inputs) -> Tensor:
        """(B,) sums over the atoms that are no padding."""
        return (energies.view(len(self), -1) * inputs.labels.present).sum(1)

    def perturbed_energy(
        self, potential: TrainablePotential, inputs: Inputs, displacement: Tensor
    ) -> Tensor:
        """(B,) float64 eV of displaced atoms, with the lists of the frames as they are; capturable.

        Pairs that come near from beyond the cutoff are left out, so displacements must be short.

        Args:
            potential: any TensorNet.
            inputs: of the frames, from `predict`.
            displacement: (B, N, 3) A.
        """
        vectors = displacement.flatten(0, 1)
        pairs = tuple(_displaced(listed, vectors) for listed in inputs.pairs)
        energies, _ = potential.energies_and_charges(inputs.atoms, pairs)
        return self._summed(energies, inputs)

    def _pairs(self, rows: Table, number: int) -> Pairs:
        atoms, slots = rows.index[number].shape[1:]
        index = (rows.index[number] + self._first * atoms).view(-1, slots)
        reverse = (rows.reverse[number][:, None] + self._first * (atoms * slots)).flatten()
        count = rows.count[number].flatten()
        valid = torch.arange(slots, device=index.device) < count[:, None]
        vectors = rows.vectors[number].view(-1, slots, 3).double()
        block = PairBlock(vectors.requires_grad_(), index, valid)
        undirected = self._undirected(rows, reverse) if number == 0 else None
        return Pairs((block,), index, count, reverse, rows.cutoffs[number], undirected)

    def _undirected(self, rows: Table, reverse: Tensor) -> Undirected:
        first, slots = self._first[:, :, 0], rows.number.shape[1]
        most = rows.forward.shape[1]
        forward = (rows.forward + first * slots).flatten()
        number = (rows.number + first * most).view(rows.index[0].shape).flatten(0, 1)
        valid = torch.arange(most, device=forward.device) < rows.pairs[:, None]
        return Undirected(forward, reverse.index_select(0, forward), valid.flatten(), number)


def _displaced(pairs: Pairs, displacement: Tensor) -> Pairs:
    """Pairs of atoms displaced by (B N, 3) A."""
    (block,) = pairs.blocks
    shift = displacement[block.index] - displacement[:, None]
    vectors = block.vectors.detach() + block.valid[..., None] * shift
    return replace(pairs, blocks=(replace(block, vectors=vectors),))
