"""CommitteeCalculator: mean and spread of several potentials, as an ASE calculator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes

from mdgraph.arguments import checked
from mdgraph.drivers.ase.calculator import MDGraphCalculator
from mdgraph.engine.uncertainty import ENERGY_SPREAD, FORCE_SPREAD, spread
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.models import Potential


class CommitteeCalculator(Calculator):
    """Results of MDGraphCalculator, as means over several potentials (the members).

    `results` also has `energy_std` (eV), the standard deviation among the members, and
    `forces_std` (N,) (eV/A), the root mean square distance of their forces from the mean. Each
    member has buffers of its own, and each evaluation syncs once for each member.
    """

    # ASE declares both as attributes of instances.
    implemented_properties = [  # noqa: RUF012
        *MDGraphCalculator.implemented_properties,
        ENERGY_SPREAD,
        FORCE_SPREAD,
    ]
    ignored_changes = MDGraphCalculator.ignored_changes

    @checked
    def __init__(
        self, potentials: Sequence[str | Path | Potential | Evaluator], **options: Any
    ) -> None:
        """Loads the members.

        Args:
            potentials: two or more; see MDGraphCalculator.
            options: of every member; see MDGraphCalculator.

        Raises:
            FileError, CheckpointError, InputError: see MDGraphCalculator.
            InputError: fewer than two potentials.
        """
        super().__init__()
        potentials = list(potentials)
        if len(potentials) < 2:
            raise InputError(
                f"A committee has at least two members, and {len(potentials)} is given."
            )
        self.members = [MDGraphCalculator(potential, **options) for potential in potentials]

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """See MDGraphCalculator."""
        return self.members[0].check_state(atoms, tol)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results`; raises the errors of MDGraphCalculator."""
        super().calculate(atoms, properties, system_changes)
        for member in self.members:
            member.calculate(self.atoms, properties, system_changes)
        results = [member.results for member in self.members]
        energies, forces = ([result[name] for result in results] for name in ("energy", "forces"))
        self.results = {
            name: np.mean([result[name] for result in results], axis=0) for name in results[0]
        }
        self.results[ENERGY_SPREAD], self.results[FORCE_SPREAD] = spread(energies, forces)
