"""MDGraphCalculator: a potential as a calculator of ASE."""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, Parameters, all_changes

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.drivers.ase.buffers import Buffers
from mdgraph.drivers.ase.potentials import FROM_CHECKPOINT, named_potential
from mdgraph.drivers.ase.results import NoStressError, results_of, volume_of
from mdgraph.drivers.ase.seen import differing
from mdgraph.drivers.turns import EVALUATING
from mdgraph.engine import FIRE, Integrator, Simulation
from mdgraph.engine.potentials import as_evaluator, check_charge
from mdgraph.engine.relaxation import Relaxed, relax
from mdgraph.errors import InputError, name_some
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.models import Potential
from mdgraph.precision import Precision, precision_named
from mdgraph.system import System


class MDGraphCalculator(Calculator):
    """Energy, forces and stress of ASE's Atoms.

    Energies are in eV, forces in eV/A; the stress (1/V) dE/d(strain) in eV/A^3 is positive
    under tension and ordered xx, yy, zz, yz, xz, xy. It exists wherever the three cell
    vectors span a volume, periodic or not. Every array is a copy.

    Neighbor lists and device buffers are kept while atoms and cell move, and made where
    species, pbc, charge or the number of atoms are others than before. Those of up to 12
    structures with 4,096 atoms together are kept, for atoms that come back; a larger one is
    kept alone. On CUDA the second evaluation of each captures lists, energy and forces as one
    graph, which later ones replay. Each evaluation reads the device.

    The total charge is the argument's, else `atoms.info['charge']`, else 0. Copies of a
    calculator make buffers of their own.
    """

    # ASE declares both as attributes of instances.
    implemented_properties = ["energy", "free_energy", "forces", "energies", "stress"]  # noqa: RUF012
    ignored_changes = {"initial_charges", "initial_magmoms"}  # noqa: RUF012

    @checked
    def __init__(
        self,
        potential: str | Path | Potential | Evaluator,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        charge: float | None = None,
        coulomb_cutoff: float | str | None = FROM_CHECKPOINT,
        evaluator: str = "auto",
        check: bool = True,
    ) -> None:
        """Loads the potential and checks the options.

        Args:
            potential: path, name of a shipped potential, Potential or Evaluator.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`. `fast` rounds
                forces on CUDA, so total energy drifts in dynamics without a bath, of which a
                calculator cannot know to warn.
            charge: total charge, e; overrides `atoms.info['charge']`.
            coulomb_cutoff: A, of the reaction field of a potential with Coulomb energy;
                None sums all pairs of a molecule.
            evaluator: see Calculation.
            check: compare a fast evaluator with the reference on the first atoms that come,
                in about 5 s.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: an option that cannot be, or does not suit the potential.
        """
        super().__init__()
        self._precision = precision_named(precision)
        self._device = device_named(device)
        name, loaded = named_potential(potential, coulomb_cutoff)
        self._evaluator = as_evaluator(loaded, self._precision, self._device, evaluator)
        self._unchecked = check
        if charge is not None:
            check_charge(self._evaluator, charge)
        self._buffers = Buffers(self._evaluator, self._device, self._precision, charge)
        # ASE's trajectories and databases keep this beside the results.
        self.parameters = Parameters(
            potential=name,
            device=str(self._device),
            precision=self._precision.name,
            charge=charge,
            coulomb_cutoff=coulomb_cutoff,
            evaluator=evaluator,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Buffers cannot serve two calculators.
        return {**self.__dict__, "_buffers": copy(self._buffers)}

    def set(self, **options: Any) -> dict[str, Any]:
        """Refuses: options take effect where the potential is prepared, in the constructor."""
        if options:
            raise InputError(
                f"A calculator keeps its options, so {name_some(sorted(options))} cannot be set; "
                "make another MDGraphCalculator."
            )
        return {}

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Names what changed since the last calculation, charge and spin in `info` included.

        Args:
            atoms: of now.
            tol: has no effect; any other number is a change.
        """
        return list(all_changes) if self.atoms is None else differing(self.atoms, atoms)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results` with all properties that the atoms have.

        Raises:
            InputError: atoms that the potential or `System` refuses, two atoms at one place.
            StressUndefinedError: stress asked for without a cell of three dimensions.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        atoms = self.atoms if atoms is None else atoms
        if atoms is None:
            raise InputError("The calculator has no atoms yet; set atoms.calc to it.")
        if "stress" in properties and volume_of(atoms) == 0.0:
            raise NoStressError(
                "Stress is undefined, because the cell has no three independent vectors; "
                "give the atoms a cell or ask for energy and forces alone."
            )
        self.results = {}
        with EVALUATING:
            # ASE copies the atoms, which takes as long as a small graph.
            copying = partial(super().calculate, atoms, properties, system_changes)
            calculation, answer, volume = self._buffers.evaluated(atoms, copying)
            results = results_of(calculation, answer, volume)
            if self._unchecked:
                state, lists = calculation.state, calculation.lists
                self_check(self._evaluator, state, lists, self._precision)
                self._unchecked = False
        self.results = results

    def simulation(
        self, systems: Sequence[System], integrator: Integrator, **options: Any
    ) -> Simulation:
        """A simulation by the same potential, on the same device; it evaluates the start.

        Buffers of the calculator itself are given up, because both may not fit.

        Args:
            systems: what to simulate; see `from_ase`.
            integrator: what advances them.
            options: see Simulation.

        Raises:
            InputError: systems that the potential refuses, options that cannot be.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        with EVALUATING:
            found = Simulation(
                self._buffers.given_up_for(systems),
                self._evaluator,
                integrator,
                device=self._device,
                precision=self._precision,
                check=self._unchecked,
                **options,
            )
        self._unchecked = False
        return found

    def relaxed(
        self,
        systems: Sequence[System],
        names: Sequence[str],
        fire: FIRE,
        steps: int,
        **options: Any,
    ) -> Iterator[tuple[int, Relaxed]]:
        """Minima by the same potential, on the same device; see `mdgraph.engine.relaxation`.

        Buffers of the calculator itself are given up, because both may not fit.
        """
        found = relax(
            self._buffers.given_up_for(systems),
            names,
            self._evaluator,
            fire,
            steps,
            device=self._device,
            precision=self._precision,
            check=self._unchecked,
            **options,
        )
        for place, one in found:
            self._unchecked = False
            yield place, one

    def hold(self, atoms: Atoms, results: dict[str, Any]) -> None:
        """Takes what a simulation computed for these atoms, so that nothing is evaluated."""
        self.atoms = atoms.copy()
        self.results = results
