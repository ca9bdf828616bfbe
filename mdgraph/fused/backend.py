"""FusedNetwork: the interface of both backends, `fused.cuda` and `fused.cpu`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from mdgraph.neighbors import NeighborRows
from mdgraph.state import State


@dataclass(frozen=True)
class NetworkResult:
    """Output buffers of a network, all overwritten except `constant`.

    Attributes:
        constant: (N,) float64, eV, input: a constant that is added to each atom's energy.
        energies: (N,) float64, eV, energy of each atom.
        forces: (N, 3) in the dtype of the state, eV/A.
        virials: (9, N) float64, eV, row by row; a system's virial is their sum.
    """

    constant: Tensor
    energies: Tensor
    forces: Tensor
    virials: Tensor
    _others: list["NetworkResult"] = field(default_factory=list, repr=False)

    def apart(self, forces: Tensor) -> "NetworkResult":
        """The same with other forces, and with energies and virials that nobody reads."""
        for other in self._others:
            if other.forces is forces:
                return other
        energies, virials = torch.zeros_like(self.energies), torch.zeros_like(self.virials)
        self._others.append(NetworkResult(self.constant, energies, forces, virials))
        return self._others[-1]


class FusedNetwork(Protocol):
    """A TensorNet with its Coulomb energy and repulsion, on one device."""

    @property
    def reads_reverse(self) -> bool:
        """Whether it reads the reverse slots of the network's list; those of others it does not."""
        ...

    def evaluate_(
        self,
        state: State,
        network_list: NeighborRows,
        coulomb_list: NeighborRows | None,
        repulsion_lists: Sequence[NeighborRows],
        result: NetworkResult,
        forces_alone: bool = False,
    ) -> None:
        """Computes energies, forces and virials for the current state and lists.

        The first call for a state, and the first after a list has grown, allocates and syncs.
        Every other call has static shapes, allocates nothing and does not sync, so it can be
        captured in a CUDA graph.

        Args:
            state: positions, cells and total charges.
            network_list: with the cutoff of the network.
            coulomb_list: of the Coulomb energy, may be `network_list`; None without that energy.
            repulsion_lists: of each repulsion, may be one of the above.
            result: buffers that are written.
            forces_alone: whether energies and virials may hold anything after it.
        """
        ...

    def outgrown(self, state: State) -> Tensor | None:
        """() bool, whether its own buffers became too small since `grow_`; see Evaluator."""
        ...

    def grow_(self, state: State) -> None:
        """Enlarges these buffers at the next evaluation."""
        ...

    def total_(self, state: State, result: NetworkResult) -> None:
        """Sums energies and virials over each system into the state; does not sync."""
        ...


@runtime_checkable
class DividedNetwork(FusedNetwork, Protocol):
    """A FusedNetwork whose work on one system can be divided among domains.

    Attributes:
        rounding: atoms that kernels take together; see `domain_stages_`.
    """

    rounding: ClassVar[int]

    def domain_stages_(
        self,
        state: State,
        network_rows: NeighborRows,
        repulsion_rows: Sequence[NeighborRows],
        result: NetworkResult,
        owned: int,
    ) -> Iterator[Tensor]:
        """Computes what the pairs of some atoms give, in stages; not for TensorNet2.

        The first `owned` atoms of the state, a multiple of `rounding`, are a domain's own. The
        others are neighbors of theirs that belong to other domains; their rows hold own atoms
        alone, and their forces are those of these pairs, without the rest.

        Args:
            state: own atoms, then the others; its positions and cell are read.
            network_rows: with the cutoff of the network.
            repulsion_rows: of each repulsion.
            result: buffers that are written; energies and virials of own atoms count.
            owned: number of own atoms, with padding.

        Yields:
            Twice each: (N, W) features in which rows of own atoms are written. Rows of the others
            must be filled from their own domains, from the first time on and by the second; on
            CUDA kernels that do not read them are launched in between.
        """
        ...
