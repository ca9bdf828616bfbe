"""ElementTemperatures: temperatures of each element, from its velocities and from its forces."""

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.multiple_time_steps import evaluator_of_energy
from mdgraph.engine.observables.averages import BlockAverages, Blocked, error_levels
from mdgraph.engine.observables.base import ObservableResult, OnlineObservable, Row
from mdgraph.engine.random import DIRECTIONS, uniforms
from mdgraph.evaluators import MultipleTimeStepEvaluator
from mdgraph.neighbors.geometry import inverse
from mdgraph.units import BOLTZMANN, KINETIC_ENERGY, SYMBOLS

DISPLACEMENT: Final = 0.004
"""A, of every coordinate; a stretched O-H bond curves by less than 1e-3 within it, and forces in
float32 are exact to 1e-3 of what it changes them by."""

_ROUND: Final = 1e-11
"""Added to moments of inertia over their sum, as a line has none about itself."""

_REFERENCE: Final = 300.0
"""K, at which the third series of a sample is made; errors do not depend on it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperaturesResult(ObservableResult):
    """Kinetic and configurational temperatures of E elements in S systems.

    Attributes:
        elements: E symbols.
        kinetic: of shape (S, E), K; NaN where a system has no atom that moves.
        configurational: of shape (S, E), K, likewise; its variance is that of single samples'
            deviations, so it is large where few atoms are.
    """

    kind: ClassVar[str] = "temperatures of elements"
    elements: tuple[str, ...]
    kinetic: Blocked
    configurational: Blocked

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each system and element."""
        rows: list[Row] = []
        for index in range(len(self.kinetic.mean)) if system is None else [system]:
            for place, element in enumerate(self.elements):
                if not np.isfinite(self.kinetic.mean[index, place]):
                    continue
                row: Row = {"system": index, "element": element}
                for name in ("kinetic", "configurational"):
                    mean, error = self.of(element, name, index)
                    row |= {f"{name}_K": mean, f"{name}_error_K": error}
                rows.append(row)
        return rows

    def of(self, element: str, temperature: str, system: int = 0) -> tuple[float, float]:
        """Mean and standard error, K, of the `kinetic` or `configurational` temperature."""
        blocked = self.kinetic if temperature == "kinetic" else self.configurational
        place = system, self.elements.index(element)
        return float(blocked.mean[place]), float(blocked.error[place])


class ElementTemperatures(OnlineObservable):
    """Temperatures of the atoms of each element A, whose equality tells equilibrium.

    T_kin  = sum m v^2 / (k N_A')              over the atoms of A
    T_conf = <sum |dU/dx|^2> / (k <sum d2U/dx2>)   over their coordinates

    Time steps bias the second, which velocities do not show. The sum of second derivatives is
    that of (F(x - h z) - F(x + h z)) / (2 h z) with random signs z of all coordinates, whose
    expectation it is (Hutchinson): coupling between coordinates adds noise, which errors include.

    ==============  ==================
    m, v, U, x      masses, velocities, potential energy, coordinates
    N_A'            degrees of freedom: 3 N_A, less 3 m / M of each atom where the centre of mass
                    rests, less m tr(I^-1 (r^2 - r r)) where a molecule does not rotate
    M, I, r         mass and tensor of inertia of the system, place from its centre of mass
    h               `DISPLACEMENT`
    ==============  ==================

    DOI 10.1103/PhysRevLett.78.772, 10.1063/1.477301; of the sum, 10.1080/03610919008812866.

    A sample takes two evaluations of the potential (of two potentials, the large one), outside
    of captured steps, and the host does not wait: every 100 steps they are 2 % of a run. Fixed
    atoms are left out. U has that of restraints and biases.
    """

    kind: ClassVar[str] = TemperaturesResult.kind
    between_chunks: ClassVar[bool] = True
    within_steps: ClassVar[bool] = False

    @checked
    def __init__(self, *, every: int = 100, start: int = 0) -> None:
        """Checks the numbers.

        Args:
            every: steps from one sample to the next.
            start: steps of the trajectory that are left out.

        Raises:
            InputError: an invalid number of steps.
        """
        super().__init__(every=every, start=start)

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """See OnlineObservable."""
        state, evaluator = self._state, calculation.evaluator
        self._calculation = calculation
        self._evaluator, self._lists = evaluator_of_energy(evaluator), calculation.lists
        if isinstance(evaluator, MultipleTimeStepEvaluator):
            self._lists = evaluator.lists_of(evaluator.large, calculation.lists)
        present = torch.nn.functional.one_hot(state.kinds, len(state.elements)).double()
        self._present = present * ~state.fixed[:, None]
        self._coordinates = 3.0 * state.grouping.sum(self._present)
        self._mass_shares = self._by_element(state.masses.double())
        self._mass_shares /= self._mass_shares.sum(1, keepdim=True).clamp(min=1e-300)
        self._averages = BlockAverages((4, *self._coordinates.shape), state.device)
        return self._averages.tensors()

    def record_(self) -> None:
        """Does nothing: see `poll`."""

    def poll(self, before: int, after: int) -> None:
        """Takes a sample if one is due; does not sync."""
        if after <= before or after % self.every or after <= self.start:
            return
        with torch.no_grad():
            state = self._state
            missing = self._coordinates.sum(1) - state.degrees
            degrees = self._coordinates - missing.clamp(max=3.0)[:, None] * self._mass_shares
            degrees = degrees - self._by_element(self._of_rotation((missing - 3.0).clamp(min=0.0)))
            squares = state.masses.double() * state.velocities.double().square().sum(-1)
            kinetic = KINETIC_ENERGY / BOLTZMANN * self._by_element(squares) / degrees
            forces = self._calculation.evaluator.forces(state).double()
            force = self._by_element(forces.square().sum(-1)) / BOLTZMANN
            curvature = self._by_element(self._curvatures())
            series = [kinetic, force, curvature, force - _REFERENCE * curvature]
            due = torch.ones((), dtype=torch.bool, device=state.device)
            self._averages.add_(torch.stack(series), self._samples, due)
            self._samples += 1

    def _of_rotation(self, missing: Tensor) -> Tensor:
        """Shares (N,) of the degrees of freedom (S,) of molecules that do not rotate."""
        state, grouping = self._state, self._state.grouping
        masses = state.masses.double()[:, None]
        places = state.positions.double()  # how far from the origin does not matter
        centres = grouping.sum(masses * places) / grouping.sum(masses)
        arms = places - grouping.spread(centres)
        one = torch.eye(3, dtype=torch.float64, device=state.device)
        spread = arms.square().sum(1)[:, None, None] * one - arms[:, :, None] * arms[:, None]
        moment = grouping.sum(masses[:, :, None] * spread)
        # Of a line one moment is 0, and so are its atoms' parts of it.
        trace = moment.diagonal(dim1=1, dim2=2).sum(1).clamp(min=1e-300)
        inverted = inverse(moment / trace[:, None, None] + _ROUND * one)
        shares = masses[:, 0] * (grouping.spread(inverted) * spread).sum((1, 2))
        whole = grouping.sum(shares).clamp(min=1e-300)
        return shares * grouping.spread(missing / whole)

    def _by_element(self, values: Tensor) -> Tensor:
        """Sums (S, E) of values (N,) over the atoms of each element that move."""
        return self._state.grouping.sum(values[:, None] * self._present)

    def _curvatures(self) -> Tensor:
        """A sample of the sum of second derivatives (N,) float64 of each atom, eV/A^2."""
        state = self._state
        replica = state.replica[state.grouping.index]
        uniform = uniforms(state.seed, state.step, replica, state.atom, DIRECTIONS)
        steps = torch.where(uniform[:, :3] < 0.5, -DISPLACEMENT, DISPLACEMENT).to(state.dtype)
        steps.masked_fill_(state.fixed[:, None], 0.0)
        terms = self._evaluator.term_energies(state).values()
        kept = [state.positions, state.forces, *(state.energies, state.energy, state.virial)]
        kept += list(terms)
        if self._calculation.biases is not None:
            kept += self._calculation.biases.tensors().values()
        copies = [tensor.clone() for tensor in kept]
        places, forces = [], []
        for sign in (-1.0, 1.0):
            state.positions.copy_(copies[0] + sign * steps)
            self._evaluator.evaluate_(state, self._lists)
            self._calculation.add_terms_()
            places.append(state.positions.double().clone())
            forces.append(state.forces.double().clone())
        for tensor, copy in zip(kept, copies, strict=True):
            tensor.copy_(copy)
        # Positions are rounded, so their difference is what it is.
        change = places[1] - places[0]
        quotient = torch.where(change == 0.0, 0.0, (forces[0] - forces[1]) / change)
        return quotient.sum(-1)

    def result(self) -> TemperaturesResult:
        """See OnlineObservable."""
        samples = self.samples()
        blocked = self._averages.read(samples)
        empty = self._coordinates.cpu().numpy() == 0.0
        return TemperaturesResult(
            samples=samples,
            every=self.every,
            elements=tuple(SYMBOLS[number] for number in self._state.elements.tolist()),
            kinetic=_masked(_part(blocked, 0), empty),
            configurational=_masked(_ratio(blocked), empty),
        )


def _part(blocked: Blocked, place: int) -> Blocked:
    """One series of several."""
    return replace(
        blocked,
        mean=blocked.mean[place],
        variance=blocked.variance[place],
        errors=blocked.errors[:, place],
        spreads=blocked.spreads[:, place],
        level=blocked.level[place],
    )


def _ratio(blocked: Blocked) -> Blocked:
    """Mean of series 1 over that of series 2, K, with series 1 less `_REFERENCE` times 2 as 3.

    The variance of series 1 less any multiple of 2 is a quadratic function of the factor, which
    three of its values give.
    """
    force, curvature = blocked.mean[1:3]
    ratio = _divided(force, curvature)

    def combined(first: Array, second: Array, third: Array) -> Array:
        mixed = (first + _REFERENCE**2 * second - third) / _REFERENCE  # twice the covariance
        return (first - ratio * mixed + ratio**2 * second).clip(min=0.0)

    variance = _divided(combined(*blocked.variance[1:]), curvature**2)
    squares = combined(*(blocked.errors[:, place] ** 2 for place in (1, 2, 3)))
    errors = _divided(np.sqrt(squares), np.abs(curvature))
    spreads = _divided(errors * blocked.spreads[:, 1], blocked.errors[:, 1])
    level = error_levels(blocked.samples, blocked.length, errors)
    return Blocked(blocked.samples, ratio, variance, blocked.length, errors, spreads, level)


Array = NDArray[np.float64]


def _divided(values: Array, divisor: Array) -> Array:
    """NaN where the divisor is 0."""
    values, divisor = np.broadcast_arrays(values, divisor)
    return np.divide(values, divisor, out=np.full(values.shape, np.nan), where=divisor != 0.0)


def _masked(blocked: Blocked, empty: NDArray[np.bool_]) -> Blocked:
    """NaN for the means and errors of elements without an atom that moves."""
    mean = np.where(empty, np.nan, blocked.mean)
    errors = np.where(empty, np.nan, blocked.errors)
    return replace(blocked, mean=mean, errors=errors)
