"""What TorchForce calls, by its own order of arguments, compiled by TorchScript."""

from typing import Final

import torch
from torch import Tensor, nn


class _Wrapper(nn.Module):
    """What TorchForce calls, by its own order of arguments."""

    box: Tensor
    charge: Tensor

    def __init__(self, energy: torch.jit.ScriptModule, box: Tensor, charge: Tensor) -> None:
        super().__init__()
        self.energy = energy
        self.register_buffer("box", box)
        self.register_buffer("charge", charge)


class _Periodic(_Wrapper):
    def forward(self, positions: Tensor, box: Tensor, charge: Tensor | None = None) -> Tensor:
        charge = self.charge if charge is None else charge
        energy: Tensor = self.energy(positions, box, charge)
        return energy


class _Isolated(_Wrapper):
    def forward(self, positions: Tensor, charge: Tensor | None = None) -> Tensor:
        charge = self.charge if charge is None else charge
        energy: Tensor = self.energy(positions, self.box, charge)
        return energy


class _PeriodicForces(_Wrapper):
    def forward(
        self, positions: Tensor, box: Tensor, charge: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        charge = self.charge if charge is None else charge
        places = positions.detach().requires_grad_(True)
        energy: Tensor = self.energy(places, box, charge)
        gradient = torch.autograd.grad([energy], [places])[0]
        assert gradient is not None
        return energy.detach(), -gradient


class _IsolatedForces(_Wrapper):
    def forward(self, positions: Tensor, charge: Tensor | None = None) -> tuple[Tensor, Tensor]:
        charge = self.charge if charge is None else charge
        places = positions.detach().requires_grad_(True)
        energy: Tensor = self.energy(places, self.box, charge)
        gradient = torch.autograd.grad([energy], [places])[0]
        assert gradient is not None
        return energy.detach(), -gradient


WRAPPERS: Final = {
    (True, False): _Periodic,
    (False, False): _Isolated,
    (True, True): _PeriodicForces,
    (False, True): _IsolatedForces,
}
"""By whether there is a box, and whether forces are given."""
