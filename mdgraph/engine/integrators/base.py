"""Integrator: the protocol of one time step, and the Nose-Hoover chain thermostat variables."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import torch
from torch import Tensor

from mdgraph.engine import kernels
from mdgraph.engine.schedules import Quantity, Schedule, Value, values_at
from mdgraph.errors import InputError
from mdgraph.state import State

Evaluate = Callable[[], None]
"""Brings lists, energy, forces and virial up to the positions and cells of the state."""

BLOCK: Final = 32
"""Steps that are prepared together: many small kernels, shared by that many steps."""


class Integrator:
    """Base of all integrators.

    At the start and the end of a step, `state.forces` and `state.virial` belong to
    `state.positions` and `state.cell`. What an integrator needs beside the state lies in
    buffers of its own, one number a system, that are named in `tensors`; with them and the
    state a run goes on with the same bits.

    Parameters are kept on the device as schedules, so that they change without another
    capture. Their values, and whatever follows from them alone, are prepared for `BLOCK`
    steps at once; a captured step takes its row by the state's step counter. Integrators
    whose steps are kernels read the schedules where they need them, and prepare nothing.

    A simulation works with a copy of its own, so one integrator may serve several.

    Attributes:
        name: in the record of a run.
        conserves_momentum: whether total momentum, and of an isolated molecule angular
            momentum, stay what they were.
        cell_varies: whether cells change.
        warm: whether the temperature of the bath must lie above zero.
        quantities: parameters that `QUANTITIES` of `mdgraph.engine.schedules` does not have.
        has_kernels: whether there are kernels for its steps.
        by_kernels: whether its steps are those kernels, as `allocate` chose.
        given: the parameters as they were given.
    """

    name: ClassVar[str]
    conserves_momentum: ClassVar[bool] = True
    cell_varies: bool = False
    warm: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    quantities: ClassVar[Mapping[str, Quantity]] = {}

    def __init__(self, **values: Value) -> None:
        """Checks the parameters; raises InputError for values that cannot be."""
        self.given = {name: self._checked(name, value) for name, value in values.items()}

    def _checked(self, name: str, value: Value) -> Schedule:
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
        if self.cell_varies and bool(state.fixed.any()):
            raise InputError(
                "Fixed atoms would not follow a cell that varies; restrain them, or keep the cell."
            )
        self._state = state
        self._schedules = {
            name: schedule.tensor(systems).to(state.device) for name, schedule in self.given.items()
        }
        self.by_kernels = self.has_kernels and kernels.run_on(state.device)
        self.refresh()
        if self.by_kernels:
            return
        self._steps = torch.arange(BLOCK, device=state.device)[:, None]
        first = self.coefficients(self._steps, self._values(self._steps))
        self._names = tuple(first)
        shape = (BLOCK, len(first), systems)
        self._table = torch.zeros(shape, dtype=torch.float64, device=state.device)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """What steps need and parameters and random numbers alone decide; does not sync.

        Args:
            steps: (B, 1) int64.
            values: (B, S) float64 of each parameter.

        Returns:
            (B, S) float64 by name; `now` gives a step its row.
        """
        return values

    def refresh(self) -> None:
        """Forgets what was prepared, as after a change of parameters or of the seed."""
        self._block: int | None = None

    def set(self, values: Mapping[str, Value]) -> None:
        """Changes parameters from the next step on, all of them or none, and draws anew.

        Raises:
            InputError: see `schedules`.
        """
        for name, rows in self.schedules(values).items():
            self._schedules[name].copy_(rows)
        self.refresh()

    def schedules(self, values: Mapping[str, Value]) -> dict[str, Tensor]:
        """Schedules (4, S) float64 on the host of parameters by name; changes nothing.

        Raises:
            InputError: no such parameter here, or a value that cannot be.
        """
        for name in values:
            if name not in self.given:
                known = ", ".join(self.given) or "none at all"
                raise InputError(f"{self.name} has no parameter '{name}'; it has {known}.")
        systems = self._state.grouping.systems
        return {name: self._checked(name, value).tensor(systems) for name, value in values.items()}

    def values(self) -> dict[str, Tensor]:
        """Parameters (S,) float64 that the next step takes; does not sync."""
        step = self._state.step[None, None]
        return {name: value[0] for name, value in self._values(step).items()}

    def _values(self, steps: Tensor) -> dict[str, Tensor]:
        return {name: values_at(rows, steps) for name, rows in self._schedules.items()}

    def prepare_(self, step: int) -> None:
        """Called before every step with its number; may refill buffers, does not sync.

        One call holds for all steps up to the next multiple of `BLOCK`; where steps are
        kernels, no call does anything.
        """
        if self.by_kernels:
            return
        block = step // BLOCK
        if block != self._block:
            self.prepare_block_(self._steps + block * BLOCK)
            self._block = block

    def prepare_block_(self, steps: Tensor) -> None:
        """Fills the buffers of the steps (B, 1) int64; does not sync."""
        found = self.coefficients(steps, self._values(steps))
        for place, name in enumerate(self._names):
            self._table[:, place] = found[name]

    def now(self) -> dict[str, Tensor]:
        """Coefficients (S,) float64 of the step at hand; does not sync."""
        (rows,) = self.rows(self._table)
        return dict(zip(self._names, rows, strict=True))

    def rows(self, *buffers: Tensor) -> list[Tensor]:
        """What buffers (BLOCK, ...) hold for the step at hand; does not sync."""
        place = (self._state.step % BLOCK)[None]
        return [buffer.index_select(0, place)[0] for buffer in buffers]

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """One step; static shapes, does not sync."""
        raise NotImplementedError

    def conserved_energy(self) -> Tensor | None:
        """(S,) float64, eV, what exact dynamics would keep as it is while parameters rest.

        None for dynamics that keep nothing; does not sync.
        """
        return None

    def converged(self) -> Tensor | None:
        """(S,) bool, the systems that a minimiser has brought to rest; None for dynamics.

        Does not sync.
        """
        return None

    def largest_force(self) -> Tensor | None:
        """(S,) eV/A on an atom that a minimiser moves; None for dynamics. Does not sync."""
        return None

    def tensors(self) -> dict[str, Tensor]:
        """Buffers that a run goes on from, by name; the buffers themselves, not copies."""
        return {f"schedule.{name}": rows for name, rows in self._schedules.items()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Writes copies of `tensors` back; does not sync."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])
        self.refresh()

    def settings(self) -> dict[str, float | str | list[float]]:
        """What goes into the record of a run."""
        given = {one.quantity.key: one.setting() for one in self.given.values()}
        return {"integrator": self.name, **given}


LENGTH: Final = 3
"""Variables of a chain."""

_THIRD: Final = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
WEIGHTS: Final = (_THIRD, 1.0 - 2.0 * _THIRD, _THIRD)
"""Parts of a time step after Suzuki and Yoshida, which together are exact to fourth order."""


class Chains:
    """C chains of M variables, each thermostat to so many degrees of freedom.

    xi_k' = v_k
    v_1'  = (2K - n kT) / Q_1 - v_1 v_2
    v_k'  = (Q_{k-1} v_{k-1}^2 - kT) / Q_k - v_k v_{k+1}
    p'    = -v_1 p

    with Q_1 = n kT tau^2 and Q_k = kT tau^2, so that only 2K / (n kT) and tau enter. Each
    part of a step goes down the chain, scales the momenta, and comes back up, with the
    friction of the next variable half before and half after each push.

    =========  ==================
    xi_k, v_k  `positions`, `velocities` (M, C), float64; 1 and 1/fs
    K          kinetic energy of what is thermostatted, eV
    n          its degrees of freedom
    kT         thermal energy, eV
    tau        time of the chain, fs
    =========  ==================

    DOI 10.1063/1.463940, 10.1080/00268979600100761.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.positions = torch.zeros(LENGTH, count, dtype=torch.float64, device=device)
        self.velocities = torch.zeros_like(self.positions)
        self.weights = torch.tensor(WEIGHTS, dtype=torch.float64, device=device)

    def advance_(self, ratio: Tensor, degrees: Tensor, tau: Tensor, time: Tensor) -> Tensor:
        """Moves the chains and returns the factors for the momenta (C,); does not sync.

        Args:
            ratio: 2K / (n kT).
            degrees: n.
            tau: fs.
            time: fs, half a time step.
        """
        rate = tau.pow(-2)
        scale = torch.ones_like(ratio)
        v = list(self.velocities)
        moves = [torch.zeros_like(ratio)] * LENGTH
        for weight in WEIGHTS:
            part = weight * time
            half, quarter = 0.5 * part, 0.25 * part
            for k in reversed(range(LENGTH)):
                v[k] = _pushed(v, k, ratio * scale.square(), degrees, rate, half, quarter)
            scale = scale * torch.exp(-part * v[0])
            moves = [move + part * one for move, one in zip(moves, v, strict=True)]
            for k in range(LENGTH):
                v[k] = _pushed(v, k, ratio * scale.square(), degrees, rate, half, quarter)
        self.velocities.copy_(torch.stack(v))
        self.positions += torch.stack(moves)
        return scale

    def tensors(self) -> dict[str, Tensor]:
        """The buffers, by name."""
        return {"chain.positions": self.positions, "chain.velocities": self.velocities}

    def energy(self, degrees: Tensor, thermal: Tensor, tau: Tensor) -> Tensor:
        """(C,) eV, what the chains add to the conserved energy; does not sync.

        sum of Q_k v_k^2 / 2 + n kT xi_1 + kT sum of xi_k beyond the first.
        """
        each = 0.5 * (tau * self.velocities).square() + self.positions
        return thermal * (degrees * each[0] + each[1:].sum(0))


def _pushed(
    v: list[Tensor],
    k: int,
    ratio: Tensor,
    degrees: Tensor,
    rate: Tensor,
    half: Tensor,
    quarter: Tensor,
) -> Tensor:
    """Velocity of a variable after half a part of a step."""
    if k == 0:
        push = (ratio - 1.0) * rate
    elif k == 1:
        push = degrees * v[0].square() - rate
    else:
        push = v[k - 1].square() - rate
    if k == LENGTH - 1:
        return v[k] + half * push
    friction = torch.exp(-quarter * v[k + 1])
    return (v[k] * friction + half * push) * friction
