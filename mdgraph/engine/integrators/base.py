"""Integrator, the base class of one time step, and the variables of Nose-Hoover chains."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.schedules import Quantity, Schedule, Value, values_at
from mdgraph.errors import InputError
from mdgraph.gpu import launch
from mdgraph.state import State

Evaluate = Callable[[], None]
"""Brings lists, energy, forces and virial up to the positions and cells of the state."""

BLOCK: Final = 32
"""Steps whose coefficients and random numbers are computed together, by the same operations."""


_MOVES: Final = {"step_", "couple_", "coefficients", "prepare_block_"}
"""Methods that decide how a step moves atoms."""


class Integrator:
    """Base of all integrators.

    At the start and the end of a step, `state.forces` and `state.virial` belong to
    `state.positions` and `state.cell`; with two potentials, between steps of the large one, the
    virial only if `cell_varies`, and energies never. An integrator keeps what it needs beside
    the state in buffers of its own and names them in `tensors`: the state and these buffers are
    all that a run needs to continue with the same bits.

    Parameters are schedules on the device, so they change without a new capture. Coefficients
    that depend only on parameters, step and random numbers are computed for `block` steps at
    once; a captured step reads its row by the state's step counter. An integrator whose steps
    are kernels computes nothing ahead: its kernels read the schedules.

    A simulation copies the integrator, so several simulations may take the same object.

    On several ranks each has a copy that moves a state of its own atoms alone, with rows that hold
    no atom, have no mass and stay at rest: sums over atoms are those of `State.sum`, the number of
    an atom is `state.atom`, and what is kept by atom is named in `tensors`.

    An ensemble of the command line is an integrator that `mdgraph.ensembles` registers.

    Attributes:
        name: of the integrator in run.json.
        conserves_momentum: whether a step conserves the total momentum, and the angular
            momentum of an isolated molecule.
        cell_varies: whether cells change.
        warm: whether the temperature of the bath must lie above 0 K.
        quantities: parameters that `QUANTITIES` of `mdgraph.engine.schedules` does not have.
        has_kernels: whether there are kernels for its steps. A subclass that moves atoms
            otherwise does without them, unless it says so or gives its own `move_by_kernels_`.
        by_kernels: whether its steps are those kernels on this device; set by `allocate`.
        parameters: schedule of each parameter, by name.
        block: steps that are prepared together, `BLOCK` at most: what is taken together is in one.
    """

    name: ClassVar[str]
    block: int = BLOCK
    conserves_momentum: ClassVar[bool] = True
    cell_varies: bool = False
    warm: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    quantities: ClassVar[Mapping[str, Quantity]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if _MOVES & own.keys() and not {"has_kernels", "move_by_kernels_"} & own.keys():
            cls.has_kernels = False

    def __init__(self, **values: Value) -> None:
        """Makes a schedule of each parameter; raises InputError for an invalid value."""
        self.parameters = {name: self._schedule(name, value) for name, value in values.items()}

    def _schedule(self, name: str, value: Value) -> Schedule:
        schedule = Schedule(name, value, self.quantities)
        if name == "temperature" and self.warm and min(schedule.start + schedule.end) == 0.0:
            raise InputError(f"The bath of {self.name} cannot be at 0 K; give a temperature above.")
        return schedule

    def allocate(self, state: State) -> None:
        """Makes device buffers for this state; called once before the first step.

        Raises:
            InputError: values for another number of systems, or systems that the integrator
                does not take.
        """
        systems = state.grouping.systems
        self._state = state
        self._schedules = {
            name: schedule.tensor(systems).to(state.device)
            for name, schedule in self.parameters.items()
        }
        self.by_kernels = self.has_kernels and launch.step_kernels_on(state.device)
        self.refresh()
        if self.by_kernels:
            return
        self._steps = torch.arange(BLOCK, device=state.device)[:, None]
        first = self.coefficients(self._steps, self._values(self._steps))
        self._names = tuple(first)
        shape = (BLOCK, len(first), systems)
        self._table = torch.zeros(shape, dtype=torch.float64, device=state.device)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Coefficients of steps, from parameters and random numbers alone; does not sync.

        Args:
            steps: (B, 1) int64.
            values: (B, S) float64 of each parameter.

        Returns:
            (B, S) float64 by name; `now` gives a step its row.
        """
        return values

    def refresh(self) -> None:
        """Discards the coefficients of the block, after a change of parameters or of the seed."""
        self._block: int | None = None

    def set(self, values: Mapping[str, Value]) -> None:
        """Changes parameters from the next step on, all of them or none.

        Random numbers of the steps to come are drawn again; they depend on the seed and the
        step, so they are the same.

        Raises:
            InputError: see `schedules`.
        """
        for name, rows in self.schedules(values).items():
            self._schedules[name].copy_(rows)
        self.refresh()

    def schedules(self, values: Mapping[str, Value]) -> dict[str, Tensor]:
        """Schedules (4, S) float64 on the host of parameters by name; changes nothing.

        Raises:
            InputError: an unknown parameter, or an invalid value.
        """
        for name in values:
            if name not in self.parameters:
                names = ", ".join(self.parameters) or "none at all"
                raise InputError(f"{self.name} has no parameter '{name}'; it has {names}.")
        systems = self._state.grouping.systems
        return {name: self._schedule(name, value).tensor(systems) for name, value in values.items()}

    def values(self) -> dict[str, Tensor]:
        """Parameters (S,) float64 of the next step; does not sync."""
        step = self._state.step[None, None]
        return {name: value[0] for name, value in self._values(step).items()}

    def _values(self, steps: Tensor) -> dict[str, Tensor]:
        return {name: values_at(rows, steps) for name, rows in self._schedules.items()}

    def prepare_(self, step: int) -> None:
        """Computes the coefficients of the block of a step, unless they exist.

        The run loop calls it before each launch with the number of the first step; no launch
        crosses a multiple of `block`. It does nothing if steps are kernels. Does not sync.
        """
        if self.by_kernels:
            return
        block = step // self.block
        if block != self._block:
            self.prepare_block_(self._steps + block * self.block)
            self._block = block

    def prepare_block_(self, steps: Tensor) -> None:
        """Fills the buffers of the steps (B, 1) int64; does not sync."""
        coefficients = self.coefficients(steps, self._values(steps))
        for place, name in enumerate(self._names):
            self._table[:, place] = coefficients[name]

    def now(self) -> dict[str, Tensor]:
        """Coefficients (S,) float64 of the current step; does not sync."""
        (rows,) = self.rows(self._table)
        return dict(zip(self._names, rows, strict=True))

    def rows(self, *buffers: Tensor) -> list[Tensor]:
        """Rows of buffers (BLOCK, ...) for the current step; does not sync."""
        place = (self._state.step % self.block)[None]
        return [buffer.index_select(0, place)[0] for buffer in buffers]

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """One step; static shapes, does not sync."""
        raise NotImplementedError

    def remove_momentum_(self, state: State, due: Tensor) -> None:
        """Takes the velocity of the centre of mass off each system; does not sync.

        Args:
            state: velocities are changed.
            due: () bool; if false, nothing changes.
        """
        remove_momentum_(state, due)

    def conserved_energy(self) -> Tensor | None:
        """(S,) float64, eV, that exact dynamics with constant parameters conserve.

        None for dynamics without such a quantity. Does not sync.
        """
        return None

    def converged(self) -> Tensor | None:
        """Whether a minimiser has converged, (S,) bool; None for dynamics.

        Does not sync.
        """
        return None

    def largest_force(self) -> Tensor | None:
        """Largest force (S,) on an atom that a minimiser moves, eV/A; None for dynamics.

        Does not sync.
        """
        return None

    def tensors(self) -> dict[str, Tensor]:
        """Buffers that restart files hold, by name; the buffers themselves, not copies."""
        return {f"schedule.{name}": rows for name, rows in self._schedules.items()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Copies a snapshot of `tensors` into the buffers; does not sync."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])
        self.refresh()

    def settings(self) -> dict[str, float | str | list[float]]:
        """Name and parameters for run.json and restart files."""
        own = {value.quantity.key: value.setting() for value in self.parameters.values()}
        return {"integrator": self.name, **own}


LENGTH: Final = 3
"""Variables of a chain."""

_THIRD: Final = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
WEIGHTS: Final = (_THIRD, 1.0 - 2.0 * _THIRD, _THIRD)
"""Parts of a time step, a fourth-order splitting by Suzuki and Yoshida.

DOI 10.1016/0375-9601(90)90092-3.
"""


class Chains:
    """C Nose-Hoover chains of M thermostat variables, each coupled to n degrees of freedom.

    xi_k' = v_k
    v_1'  = (2K - n kT) / Q_1 - v_1 v_2
    v_k'  = (Q_{k-1} v_{k-1}^2 - kT) / Q_k - v_k v_{k+1}
    p'    = -v_1 p

    with Q_1 = n kT tau^2 and Q_k = kT tau^2, so that only 2K / (n kT), n and tau enter. Each
    part of a step updates the velocities from v_M to v_1, scales the momenta by
    exp(-v_1 t), and updates the velocities from v_1 to v_M; half of the friction of the next
    variable acts before each kick and half after it.

    =========  ==================
    xi_k, v_k  `positions`, `velocities` (M, C), float64; 1 and 1/fs
    M          `LENGTH`, 3
    K, n       kinetic energy, eV, and degrees of freedom that the chain is coupled to
    p          their momenta
    kT         thermal energy of the bath, eV
    tau        coupling time, fs
    =========  ==================

    DOI 10.1063/1.463940, 10.1080/00268979600100761.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.positions = torch.zeros(LENGTH, count, dtype=torch.float64, device=device)
        self.velocities = torch.zeros_like(self.positions)
        self.weights = torch.tensor(WEIGHTS, dtype=torch.float64, device=device)

    def advance_(self, ratio: Tensor, degrees: Tensor, tau: Tensor, time: Tensor) -> Tensor:
        """Advances the chains; returns the factors (C,) for the momenta. Does not sync.

        Args:
            ratio: 2K / (n kT), (C,) float64.
            degrees: n, (C,) float64.
            tau: coupling times (C,), fs.
            time: by which to advance, half a time step, (C,), fs.
        """
        rate = tau.pow(-2)
        scale = torch.ones_like(ratio)
        v = list(self.velocities)
        moves = [torch.zeros_like(ratio)] * LENGTH
        for weight in WEIGHTS:
            part = weight * time
            half, quarter = 0.5 * part, 0.25 * part
            for k in reversed(range(LENGTH)):
                v[k] = _push(v, k, ratio * scale.square(), degrees, rate, half, quarter)
            scale = scale * torch.exp(-part * v[0])
            moves = [move + part * velocity for move, velocity in zip(moves, v, strict=True)]
            for k in range(LENGTH):
                v[k] = _push(v, k, ratio * scale.square(), degrees, rate, half, quarter)
        self.velocities.copy_(torch.stack(v))
        self.positions += torch.stack(moves)
        return scale

    def tensors(self) -> dict[str, Tensor]:
        """The buffers, by name."""
        return {"chain.positions": self.positions, "chain.velocities": self.velocities}

    def energy(self, degrees: Tensor, thermal: Tensor, tau: Tensor) -> Tensor:
        """Part (C,) of the conserved energy, eV, that the chains contribute; does not sync.

        sum of Q_k v_k^2 / 2 over k, + n kT xi_1, + kT times the sum of xi_2 to xi_M.
        """
        each = 0.5 * (tau * self.velocities).square() + self.positions
        return thermal * (degrees * each[0] + each[1:].sum(0))


def _push(
    v: list[Tensor],
    k: int,
    ratio: Tensor,
    degrees: Tensor,
    rate: Tensor,
    half: Tensor,
    quarter: Tensor,
) -> Tensor:
    """v_k after half a part of a step, from the velocities of its neighbors in the chain."""
    if k == 0:
        force = (ratio - 1.0) * rate
    elif k == 1:
        force = degrees * v[0].square() - rate
    else:
        force = v[k - 1].square() - rate
    if k == LENGTH - 1:
        return v[k] + half * force
    friction = torch.exp(-quarter * v[k + 1])
    return (v[k] * friction + half * force) * friction
