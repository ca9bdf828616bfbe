"""FusedNetwork: what the kernels of every backend offer to the evaluator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mdgraph.neighbors import NeighborList
from mdgraph.state import State


@dataclass(frozen=True)
class NetworkResult:
    """Where a network writes; every number is overwritten.

    Attributes:
        constant: (N,) float64, eV, what every atom's energy has added to it; read.
        energies: (N,) float64, eV, of each atom.
        forces: (N, 3) in the state type, eV/A.
        virials: (9, N) float64, eV, row by row; a system's virial is their sum.
    """

    constant: Tensor
    energies: Tensor
    forces: Tensor
    virials: Tensor


class FusedNetwork(Protocol):
    """A TensorNet, its Coulomb energy and its repulsion included, on one device."""

    def evaluate_(
        self,
        state: State,
        pairs: NeighborList,
        far: NeighborList | None,
        close: Sequence[NeighborList],
        result: NetworkResult,
    ) -> None:
        """Writes the result for the positions, the lists and the charges of the moment.

        Args:
            state: positions, cells and total charges.
            pairs: the list of the network's cutoff.
            far: the list of the Coulomb energy, which may be the same; None without one.
            close: the list of each repulsion, which may be one of these.
            result: written.

        The first call for a state, and the first after a list has grown, reads the device
        and allocates; every other call has static shapes, allocates nothing and does not
        sync, so it can be captured.
        """
        ...

    def total_(self, state: State, result: NetworkResult) -> None:
        """Sums energies and virials over each system into the state; does not sync."""
        ...
