"""Uncertainty of an evaluation: the spread of a committee and the sigma of the last layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.engine.calculation import EvaluationResult
from mdgraph.evaluators import Evaluator
from mdgraph.models import Atoms, Domain, PotentialModule
from mdgraph.neighbors import NeighborList
from mdgraph.precision import full_float32
from mdgraph.state import State

ENERGY_SPREAD: Final = "energy_std"
"""Of a structure, eV: standard deviation among the members."""
FORCE_SPREAD: Final = "forces_std"
"""Of an atom, eV/A: standard deviation of the members' forces with all components, see `spread`."""
ENERGY_SIGMA: Final = "energy_sigma"
"""Of a structure, eV."""
ATOM_SIGMA: Final = "energies_sigma"
"""Of an atom's share of the energy, eV."""


def spread(
    energy: Sequence[float], forces: Sequence[NDArray[np.float64]]
) -> tuple[float, NDArray[np.float64]]:
    """ENERGY_SPREAD and FORCE_SPREAD (N,) of M members with forces (N, 3).

    Variances are divided by M - 1, because M may be small.
    """
    return float(np.std(energy, ddof=1)), np.sqrt(np.var(forces, axis=0, ddof=1).sum(1))


def combined(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Mean results of the members of a committee for one structure, and their spread."""
    forces = [result.forces for result in results]
    of_energy, of_forces = spread([result.energy for result in results], forces)
    return EvaluationResult(
        energy=float(np.mean([result.energy for result in results])),
        energies=np.mean([result.energies for result in results], axis=0),
        forces=np.mean(forces, axis=0),
        virial=np.mean([result.virial for result in results], axis=0),
        info={ENERGY_SPREAD: of_energy},
        arrays={FORCE_SPREAD: of_forces},
    )


def with_sigma(result: EvaluationResult, sigma: EvaluationResult) -> EvaluationResult:
    """A result with the sigmas of a `LastLayer` for the same structure."""
    return replace(
        result,
        info={**result.info, ENERGY_SIGMA: sigma.energy},
        arrays={**result.arrays, ATOM_SIGMA: sigma.energies},
    )


class LastLayer(Evaluator):
    """An evaluator that writes sigmas (see Domain) in place of energies, and no forces.

    Attributes:
        potential: with the last layer.
        cutoffs: see Evaluator.
    """

    potential: PotentialModule

    def __init__(
        self,
        potential: PotentialModule,
        domain: Domain,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Copies to the device.

        Args:
            potential: as it was loaded.
            domain: of its weights.
            dtype: of the network.
            device: where.
        """
        self.potential = potential.at_precision(dtype).to(device)
        self.cutoffs = potential.cutoffs
        self._domain = domain.to(device)

    def limits(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sigma (N,) eV beyond which an atom's environment is unlike any in training; syncs.

        It is 1.1 times the largest sigma of the element in training, because a long run has more
        atoms than the training set.

        Args:
            numbers: (N,) atomic numbers.
        """
        rows = self._domain.rows(torch.tensor(numbers, device=self._domain.species.device))
        limits: NDArray[np.float64] = (1.1 * self._domain.sigma[rows, 1]).cpu().numpy()
        return limits

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        vectors = self._vectors(state, lists)
        state.energies.copy_(vectors.norm(dim=1))
        state.energy.copy_(state.grouping.sum(vectors).norm(dim=1))
        state.forces.zero_()
        state.virial.zero_()

    def _vectors(self, state: State, lists: Sequence[NeighborList]) -> Tensor:
        atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
        plain = torch.autocast(state.device.type, enabled=False)
        with torch.no_grad(), plain, full_float32():
            pairs = tuple(item.pairs(state.positions, state.cell) for item in lists)
            return self._domain.projected(self.potential.latent(atoms, pairs), state.numbers)
