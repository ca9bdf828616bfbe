"""Watch: what the host learns of a chunk of steps, in one small copy."""

from dataclasses import dataclass

import torch

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.kinetics import kinetic_energy, temperature
from mdgraph.neighbors.list import hold_all


@dataclass(frozen=True)
class Verdict:
    """What one look found.

    Attributes:
        complete: whether every pair found its slot since the lists last grew.
        good: whether forces and cells are finite and no temperature ran away.
        sticky: of each list, the numbers that `NeighborList.status_of` takes.
        rebuilds: of each list, builds since it was made.
    """

    complete: bool
    good: bool
    sticky: tuple[tuple[int, int, int], ...]
    rebuilds: tuple[int, ...]


class Watch:
    """One look: noted on the device, where the work at hand ends, and read whenever it suits.

    The copy lands in pinned memory, and reading waits for that copy alone, so what was
    launched after it goes on meanwhile.
    """

    def __init__(self, calculation: Calculation, maximum_temperature: float) -> None:
        """Allocates.

        Args:
            calculation: what is looked at.
            maximum_temperature: K, beyond which a state is no longer good.
        """
        self._calculation = calculation
        self._maximum = maximum_temperature
        device, lists = calculation.device, len(calculation.lists)
        self._there = torch.zeros(4 * lists + 1, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        self._here = torch.zeros_like(self._there, device="cpu", pin_memory=on_gpu)
        self._arrived = torch.cuda.Event() if on_gpu else None

    def note_(self) -> None:
        """Looks at the state as it is once the work launched so far is done; does not sync."""
        state, lists = self._calculation.state, self._calculation.lists
        finite = torch.isfinite(state.forces).all() & torch.isfinite(state.cell).all()
        kelvin = temperature(kinetic_energy(state), state.degrees)
        good = finite & (kelvin <= self._maximum).all()
        numbers = [one.sticky() for one in lists] + [one.rebuilds[None] for one in lists]
        torch.cat([*numbers, good.to(torch.int64)[None]], out=self._there)
        self._here.copy_(self._there, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._calculation.device))

    def read(self) -> Verdict:
        """What `note_` saw; waits until it has seen it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        *numbers, good = self._here.tolist()
        lists = self._calculation.lists
        end = 3 * len(lists)
        sticky = tuple((*numbers[start : start + 3],) for start in range(0, end, 3))
        return Verdict(hold_all(lists, sticky), bool(good), sticky, tuple(numbers[end:]))
