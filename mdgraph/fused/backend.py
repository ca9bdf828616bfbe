"""FusedNetwork: the interface of both backends, `fused.cuda` and `fused.cpu`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mdgraph.neighbors import NeighborList
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


class FusedNetwork(Protocol):
    """A TensorNet with its Coulomb energy and repulsion, on one device."""

    def evaluate_(
        self,
        state: State,
        network_list: NeighborList,
        coulomb_list: NeighborList | None,
        repulsion_lists: Sequence[NeighborList],
        result: NetworkResult,
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
        """
        ...

    def total_(self, state: State, result: NetworkResult) -> None:
        """Sums energies and virials over each system into the state; does not sync."""
        ...
