"""AppliedBiases: the variables and biases of a state, added to its energy, forces and virial."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.arguments import shown
from mdgraph.biases.bias import Bias, BiasedVariables, BoundBias, BoundSpring, check_names
from mdgraph.biases.metadynamics import BoundMetadynamics
from mdgraph.biases.tables import build_tables, evaluate, pull_back, units_and_periods
from mdgraph.biases.variables import CollectiveVariable, Combination, PotentialEnergy
from mdgraph.errors import InputError, printable
from mdgraph.gpu.launch import step_kernels_on
from mdgraph.state import State
from mdgraph.system import System

_HEATING: Final = 0.5
"""eV of a spring, 20 kT at 300 K, which a small molecule does not take up unnoticed."""


def check_variables(variables: Any) -> None:
    """Raises InputError unless they are variables by name."""
    if not isinstance(variables, Mapping):
        raise InputError(
            f"The variables are {shown(variables)}; give a dictionary of variables by name, such "
            "as {'phi': Dihedral([4, 6, 8, 14])}."
        )
    for name, variable in variables.items():
        if not isinstance(name, str) or name.split() != [name] or name == "time":
            raise InputError(
                f"A variable has the name {shown(name)}; give a word other than time, as it names "
                "a column."
            )
        if not isinstance(variable, CollectiveVariable):
            raise InputError(
                f"The variable {printable(name, 100)} is {shown(variable)}; give one such as "
                "Distance([0, 1])."
            )


def hold_systems(
    variables: Mapping[str, CollectiveVariable], biases: Sequence[Bias], systems: Sequence[System]
) -> list[bool]:
    """Whether biases act on where each system is, or how it is turned, as a whole."""

    def held(name: str, system: System) -> bool:
        variable = variables[name]
        if isinstance(variable, Combination):
            return any(held(other, system) for other in variable.coefficients)
        return variable.holds(system)

    names = {name for bias in biases for name in bias.names}
    return [any(held(name, system) for name in names) for system in systems]


class AppliedBiases:
    """Biases and variables on the device, for the systems of a state; V variables, B biases.

    Attributes:
        variables: their definitions by name.
        biases: their definitions.
        names: of the biases.
        units: of the values of each variable.
        periods: of the values of each variable; 0 of those that are not periodic.
        bound: the biases on the device.
        values: (V, S) float64, of the variables as last evaluated.
        energies: (B, S) float64, eV, of the biases as last evaluated.
        held: whether biases act on where each system is; see `hold_systems`.
    """

    def __init__(
        self,
        variables: Mapping[str, CollectiveVariable],
        biases: Sequence[Bias],
        systems: Sequence[System],
        state: State,
        *,
        cell_varies: bool = True,
        together: int = 1,
    ) -> None:
        """Allocates; syncs.

        Args:
            variables: by name; those that no bias names are only evaluated.
            biases: that act, one after the other.
            systems: initial structures of the state.
            state: of these systems.
            cell_varies: whether the cell does.
            together: steps that the host does as one.

        Raises:
            InputError: names, atoms or numbers that do not fit; the sentence names variable or
                bias.
        """
        check_variables(variables)
        self.names = check_names(biases, variables)
        if not variables:
            raise InputError("There is no variable; give some by name, or leave them out.")
        self.variables, self.biases = dict(variables), tuple(biases)
        self._state = state
        details = units_and_periods(variables)
        self.units = {name: unit for name, (unit, _) in details.items()}
        self.periods = {name: period for name, (_, period) in details.items()}
        self._tables = build_tables(variables, systems, state, cell_varies)
        order = list(variables)
        self.bound: tuple[BoundBias, ...] = tuple(
            bias.bound(
                BiasedVariables(
                    state,
                    tuple(order.index(name) for name in bias.names),
                    tuple(self.units[name] for name in bias.names),
                    tuple(self.periods[name] for name in bias.names),
                    together,
                )
            )
            for bias in biases
        )
        self.values = state.energy.new_zeros(len(order), len(state.energy))
        self.energies = state.energy.new_zeros(len(biases), len(state.energy))
        self.held = hold_systems(variables, biases, systems)
        self._kernel: Any = None
        self._hill_kernels: dict[int, Any] = {}
        if step_kernels_on(state.device):
            self.use_kernels()

    def use_kernels(self) -> None:
        """Takes kernels for what they have; without CUDA an interpreter runs them. Syncs."""
        from mdgraph.biases.kernels import HillKernel, PointBias

        self._kernel = PointBias.of(self._tables, self.bound, self._state)
        self._hill_kernels = {
            number: HillKernel(bias)
            for number, bias in enumerate(self.bound)
            if isinstance(bias, BoundMetadynamics)
        }

    def use_tensors(self) -> None:
        """Takes no kernels; what they do is the same but for rounding."""
        self._kernel, self._hill_kernels = None, {}

    @property
    def reads_energy(self) -> bool:
        """Whether a variable is the potential energy."""
        return any(isinstance(one, PotentialEnergy) for one in self.variables.values())

    @property
    def moving(self) -> list[str]:
        """Names of biases that change with the steps."""
        return [
            name
            for name, bias in zip(self.names, self.bound, strict=True)
            if bias.work is not None or isinstance(bias, BoundMetadynamics)
        ]

    def springs(self) -> list[BoundSpring]:
        """The harmonic biases, those that move as well."""
        return [bias for bias in self.bound if isinstance(bias, BoundSpring)]

    def metadynamics(self) -> dict[str, BoundMetadynamics]:
        """The biases that are metadynamics, by name."""
        pairs = zip(self.names, self.bound, strict=True)
        return {name: bias for name, bias in pairs if isinstance(bias, BoundMetadynamics)}

    def add_(self, state: State) -> Tensor | None:
        """Adds energies, forces and virial to the state; static shapes, does not sync.

        The energy of a system is shared equally among its atoms.

        Returns:
            (N, 3) float64, eV/A, what it took from the forces; None without biases.
        """
        if self._kernel is not None:
            return self._kernel.add_(state, self.values, self.energies)
        values, gradients = evaluate(
            self._tables, state.places(), state.cell.double(), state.pbc, state.energy
        )
        self.values.copy_(values.T)
        if not self.bound:
            return None
        slopes = torch.zeros_like(values)
        for number, bias in enumerate(self.bound):
            energy, by_values = bias.evaluate(values.index_select(1, bias.columns))
            # Columns of a bias are distinct, so the order of additions is that of the biases.
            slopes[:, bias.columns] += by_values
            bias.energy.copy_(energy)
            self.energies[number].copy_(energy)
        atoms = len(state.positions)
        pull, strain, by_energy = pull_back(self._tables, gradients, slopes, atoms)
        if by_energy is not None:
            pull = pull - by_energy[state.grouping.index, None] * state.forces.double()
            strain = strain - by_energy[:, None, None] * state.virial
        total = self.energies.sum(0)
        state.forces -= pull
        state.energies += (total / state.grouping.counts)[state.grouping.index]
        state.energy += total
        state.virial -= strain
        return pull

    def begin_step_(self) -> None:
        """Moves biases to the next step; does not sync."""
        for bias in self.bound:
            bias.begin_step_(self.values)

    def end_step_(self, step: int | None) -> None:
        """Adds hills; static shapes, does not sync.

        Args:
            step: number of steps done; None within a captured step.
        """
        for number, bias in enumerate(self.bound):
            hills = self._hill_kernels.get(number)
            if hills is None:
                bias.end_step_(self.values, step)
                continue
            if self._kernel is None:
                assert isinstance(bias, BoundMetadynamics)
                bias.notice_(self.values)
            hills.add_(self.values, step)

    def add_hills_(self, name: str, values: Tensor, energies: Tensor) -> None:
        """Adds hills of walkers of all ranks, between steps; does not sync.

        Args:
            name: of the bias.
            values: (n, W) float64, of its variables.
            energies: (W,) float64, eV, of the bias there.
        """
        number = self.names.index(name)
        bias, hills = self.bound[number], self._hill_kernels.get(number)
        assert isinstance(bias, BoundMetadynamics)
        if hills is None:
            bias.add_hills_(values.T, energies)
        else:
            hills.add_hills_(values, energies)

    def outside(self) -> Tensor | None:
        """Whether a variable left a grid, () bool on the device; None without grids."""
        flags = [bias.outside for bias in self.bound if bias.outside is not None]
        return torch.stack(flags).any() if flags else None

    def left(self) -> str | None:
        """Which variable is outside of the grid of a bias, in words, or None; syncs."""
        for name, bias in self.metadynamics().items():
            values = bias.own(self.values)
            wrong = (~bias.inside(values)).nonzero().tolist()
            if wrong:
                system, place = wrong[0]
                own = self.biases[self.names.index(name)].names[place]
                unit = self.units[own]
                text = f"{float(values[system, place]):.6g}{f' {unit}' if unit else ''}"
                where = f" of system {system}" if len(values) > 1 else ""
                low = bias.grid.axis(place)[0]
                high = bias.grid.axis(place)[-1]
                return (
                    f"The variable {printable(own, 100)}{where} is {text}, outside of the grid of "
                    f"{printable(name, 100)} from {low:.6g} to {high:.6g}"
                )
            if bool(bias.outside):
                return f"A variable left the grid of {printable(name, 100)}"
        return None

    def check_start(self) -> None:
        """Raises InputError if a variable starts outside of a grid; syncs."""
        left = self.left()
        if left is not None:
            raise InputError(f"{left}, at the start; make the grid larger, or change the start.")

    def far_springs(self) -> list[str]:
        """A sentence for each spring that is so stretched that it heats systems; syncs."""
        sentences = []
        for name, bias, energies in zip(self.names, self.bound, self.energies, strict=True):
            if not isinstance(bias, BoundSpring):
                continue
            most, far = float(energies.max()), int((energies > _HEATING).sum())
            if far:
                where = f" in {far} of {len(energies)} systems" if len(energies) > 1 else ""
                sentences.append(
                    f"The bias {printable(name, 100)} holds up to {most:.2g} eV{where} at the "
                    "start, which becomes heat: begin nearer to its centre, pull the system there "
                    "by a moving bias, or leave out the time until the temperature is that of "
                    "the bath."
                )
        return sentences

    def columns(self) -> dict[str, Tensor]:
        """Values, energies and work (S,) by the names of their columns in COLVAR."""
        named = dict(zip(self.variables, self.values, strict=True))
        for number, (name, bias) in enumerate(zip(self.names, self.bound, strict=True)):
            named[f"{name}.bias"] = self.energies[number]
            if bias.work is not None:
                named[f"{name}.work"] = bias.work
        return named

    def tensors(self) -> dict[str, Tensor]:
        """What a step changes, by name; the buffers themselves."""
        own = {"values": self.values, "energies": self.energies}
        for name, bias in zip(self.names, self.bound, strict=True):
            own |= {f"{name}.{key}": tensor for key, tensor in bias.tensors().items()}
        return own

    def constants(self) -> dict[str, Tensor]:
        """What no step changes and restart files hold, by name."""
        return {
            f"reference{number}": group.reference
            for number, group in enumerate(self._tables.groups)
            if group.reference is not None
        }

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Writes copies of `tensors` back; does not sync."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {
            "variables": {name: one.settings() for name, one in self.variables.items()},
            "atoms": self._tables.atoms.tolist(),
            "biases": [bias.settings() for bias in self.biases],
        }
