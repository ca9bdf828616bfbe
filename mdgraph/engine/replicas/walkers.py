"""Walkers of one metadynamics on several ranks, each of which adds all hills to its own grid."""

import torch

from mdgraph.engine.replicas.ranks import Ranks, RanksReporter
from mdgraph.engine.simulation import Simulation


class SharedHills(RanksReporter):
    """Adds the hills of the walkers of all ranks, before reporters are called.

    At the steps of hills, where a graph ends and the host has checked the steps before, ranks
    gather values and energies of all walkers, in the order of ranks. Each of them then adds the
    hills of all to its own grid by the same sum as a single process, so the grids of all ranks
    have the same bits, on hardware of one kind. Nothing of this is within a step, so there is
    nothing to undo where a neighbor list overflows.

    Attributes:
        interval: steps from one hill to the next.
        leaving: reason why all ranks stop, see `stop`; 0 until all ranks know it.
    """

    def __init__(self, simulation: Simulation, name: str, ranks: Ranks) -> None:
        """Counts the walkers; blocks until all ranks are here.

        Args:
            simulation: this rank's part of `replica_simulation`.
            name: of the bias.
            ranks: the ranks that share the walkers.

        Raises:
            LostRankError: see Ranks.gather.
        """
        biases = simulation.calculation.biases
        assert biases is not None
        self._biases, self._name = biases, name
        self._hills = biases.metadynamics()[name]
        super().__init__(self._hills.every, len(self._hills.energy), ranks)

    def report(self, simulation: Simulation) -> None:
        """Adds the hills of this step; syncs and blocks until all ranks are here.

        Raises:
            LostRankError: see Ranks.gather.
        """
        hills = self._hills
        own = torch.cat([hills.own(self._biases.values).T, hills.energy[None]]).cpu()
        columns, self.leaving = self._meet(own)
        values, energies = columns.to(hills.energy.device).split([len(columns) - 1, 1])
        self._biases.add_hills_(self._name, values.contiguous(), energies[0])
        if self.leaving:
            simulation.stop()


def shared_hills(simulation: Simulation, ranks: Ranks) -> list[SharedHills]:
    """A reporter for each bias whose walkers are on several ranks, the most frequent hills first.

    Blocks until all ranks are here; raises LostRankError as `Ranks.gather` does.
    """
    biases = simulation.calculation.biases
    known = {} if biases is None else biases.metadynamics()
    apart = sorted((hills.every, name) for name, hills in known.items() if hills.apart)
    return [SharedHills(simulation, name, ranks) for _, name in apart]
