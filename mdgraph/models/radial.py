"""Radial bases phi_k(d) and the cutoff function.

A basis takes distances (...) in the dtype of the state and returns (..., number) in the dtype
of its tensors. The constants of a basis are buffers, because published weights include them.
"""

import math

import torch
from torch import Tensor, nn

from mdgraph.models.config import RadialBasisConfig


def cosine_cutoff(distance: Tensor, lower: float, upper: float) -> Tensor:
    """Smooth window: 1 at d = 0, exactly 0 from `upper` on.

    With a lower cutoff it is TorchMD-Net's bump, 0 at both ends and 1 in the middle.
    """
    if lower > 0.0:
        phase = 2.0 * (distance - lower) / (upper - lower) + 1.0
        inside = (distance > lower) & (distance < upper)
    else:
        phase = distance / upper
        inside = distance < upper
    return torch.where(inside, 0.5 * (torch.cos(math.pi * phase) + 1.0), 0.0)


class ExponentialNormal(nn.Module):
    """phi_k = c(d) exp(-beta_k (exp(alpha (lower - d)) - mu_k)^2).

    DOI 10.1021/acs.jctc.9b00181.
    """

    means: Tensor
    betas: Tensor

    def __init__(self, number: int, lower: float, upper: float) -> None:
        super().__init__()
        self._lower, self._upper = lower, upper
        self._alpha = 5.0 / (upper - lower)
        start = math.exp(lower - upper)
        self.register_buffer("means", torch.linspace(start, 1.0, number, dtype=torch.float64))
        betas = torch.full((number,), (2 / number * (1 - start)) ** -2, dtype=torch.float64)
        self.register_buffer("betas", betas)

    def forward(self, distance: Tensor) -> Tensor:
        """(...) A to (..., number)."""
        dtype = self.means.dtype
        window = cosine_cutoff(distance, 0.0, self._upper).to(dtype)
        decay = torch.exp(self._alpha * (self._lower - distance))
        # Subtract before the cast: the difference is small where the function is steep.
        offset = (decay[..., None] - self.means.to(decay.dtype)).to(dtype)
        return window[..., None] * torch.exp(-self.betas * offset.square())


class Gaussian(nn.Module):
    """phi_k = exp(-width (d - center_k)^2)."""

    centers: Tensor
    width: Tensor

    def __init__(self, number: int, lower: float, upper: float) -> None:
        super().__init__()
        centers = torch.linspace(lower, upper, number, dtype=torch.float64)
        spacing = (upper - lower) / max(1, number - 1)
        self.register_buffer("centers", centers)
        self.register_buffer("width", torch.tensor(0.5 / spacing**2, dtype=torch.float64))

    def forward(self, distance: Tensor) -> Tensor:
        """(...) A to (..., number)."""
        offset = distance[..., None] - self.centers.to(distance.dtype)
        return torch.exp(-self.width * offset.to(self.centers.dtype).square())


class SmoothBessel(nn.Module):
    """Orthogonalised combinations of sinc functions (DOI 10.1103/PhysRevB.95.115124).

    f_n = (-1)^n sqrt(2) pi / rc^1.5 (n+1)(n+2) / sqrt((n+1)^2 + (n+2)^2)
          (sinc((n+1) pi d/rc) + sinc((n+2) pi d/rc)),
    made orthogonal by g_n = (f_n + sqrt(e_n / d_{n-1}) g_{n-1}) / sqrt(d_n) with
    e_n = n^2 (n+2)^2 / (4 (n+1)^4 + 1) and d_n = 1 - e_n / d_{n-1}.
    """

    mixing: Tensor

    def __init__(self, number: int, upper: float) -> None:
        super().__init__()
        self._upper = upper
        # Row n has the coefficients of g_n in sinc(m pi d / rc), m = 1 ... number + 1.
        mixing = torch.zeros(number, number + 1, dtype=torch.float64)
        scale = 1.0
        for n in range(number):
            norm = math.sqrt(2.0) * math.pi / upper**1.5 * (n + 1) * (n + 2)
            norm *= (-1) ** n / math.hypot(n + 1, n + 2)
            row = torch.zeros(number + 1, dtype=torch.float64)
            row[n : n + 2] = norm
            if n:
                overlap = n**2 * (n + 2) ** 2 / (4 * (n + 1) ** 4 + 1) / scale
                scale = 1.0 - overlap
                row = (row + math.sqrt(overlap) * mixing[n - 1]) / math.sqrt(scale)
            mixing[n] = row
        self.register_buffer("mixing", mixing, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """(...) A to (..., number); computes sines in the dtype of the distances."""
        number = self.mixing.shape[1]
        order = torch.arange(1, number + 1, device=distance.device, dtype=distance.dtype)
        sincs = torch.special.sinc(distance[..., None] * order / self._upper)
        return sincs.to(self.mixing.dtype) @ self.mixing.T


class SphericalBessel(nn.Module):
    """phi_ln = j_l(z_ln d/rc) sqrt(2/rc^3) / |j_{l+1}(z_ln)|, sorted by order l.

    z_ln is the n-th positive zero of the spherical Bessel function j_l.
    """

    zeros: Tensor
    norms: Tensor

    def __init__(self, orders: int, number: int, upper: float) -> None:
        super().__init__()
        # MatGL trains with zeros, norms and cutoff in float32.
        self._upper = float(torch.tensor(upper, dtype=torch.float32))
        zeros = _spherical_bessel_zeros(orders, number // orders)
        zeros = zeros.to(torch.float32).to(torch.float64)
        single = zeros.to(torch.float32)
        values = torch.stack(
            [_float32_spherical_bessel(order + 1, row) for order, row in enumerate(single)]
        )
        self.register_buffer("zeros", zeros, persistent=False)
        norms = (math.sqrt(2.0 / upper**3) / values.abs()).double()
        self.register_buffer("norms", norms, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """(...) A to (..., number); computes j_l in the dtype of the distances."""
        scaled = distance.clamp(max=self._upper) / self._upper
        zeros = self.zeros.to(distance.dtype)
        parts = []
        for order in range(len(zeros)):
            values = _spherical_bessel(order, scaled[..., None] * zeros[order])[order]
            parts.append(values.to(self.norms.dtype) * self.norms[order])
        return torch.cat(parts, dim=-1)


def _spherical_bessel(highest: int, x: Tensor) -> list[Tensor]:
    """j_0 ... j_highest by upward recursion; x must not be tiny."""
    x = x.clamp(min=1e-2)
    values = [torch.sin(x) / x]
    if highest:
        values.append((values[0] - torch.cos(x)) / x)
    for order in range(1, highest):
        values.append((2 * order + 1) / x * values[order] - values[order - 1])
    return values


def _float32_spherical_bessel(order: int, x: Tensor) -> Tensor:
    """j_order of float32 x, rounded as MatGL's expanded form.

    The form is a polynomial in 1/x times the sine plus one times the cosine, term by term. Its
    coefficients, by power of 1/x, follow from j_{n+1} = (2n + 1) / x j_n - j_{n-1}.
    """
    before: list[dict[int, int]] = [{}, {1: 1}]
    current: list[dict[int, int]] = [{1: 1}, {}]
    for n in range(order):
        after = [{power + 1: (2 * n + 1) * c for power, c in part.items()} for part in current]
        for part, old in zip(after, before, strict=True):
            for power, c in old.items():
                part[power] = part.get(power, 0) - c
        before, current = current, after
    total = torch.zeros_like(x)
    for part, wave in zip(current, (torch.sin(x), torch.cos(x)), strict=True):
        terms = sorted(part.items())
        if len(terms) == 1:
            power, c = terms[0]
            total = total + c * wave / x**power
        elif terms:
            series = sum((c / x**power for power, c in terms[1:]), terms[0][1] / x ** terms[0][0])
            total = total + series * wave
    return total


def _spherical_bessel_zeros(orders: int, number: int) -> Tensor:
    """First zeros (orders, number) float64; two zeros of the previous order bracket each."""
    brackets = math.pi * torch.arange(1, number + orders, dtype=torch.float64)
    rows = [brackets[:number]]
    for order in range(1, orders):
        low, high = brackets[:-1].clone(), brackets[1:].clone()
        sign = torch.sign(_spherical_bessel(order, low)[order])
        for _ in range(80):
            middle = 0.5 * (low + high)
            same = torch.sign(_spherical_bessel(order, middle)[order]) == sign
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
        brackets = 0.5 * (low + high)
        rows.append(brackets[:number])
    return torch.stack(rows)


def radial_basis(config: RadialBasisConfig, lower: float, upper: float) -> nn.Module:
    """Builds the basis that a configuration names."""
    match config.kind:
        case "expnorm":
            return ExponentialNormal(config.number, lower, upper)
        case "gaussian":
            return Gaussian(config.number, lower, upper)
        case "smooth_bessel":
            return SmoothBessel(config.number, upper)
        case "spherical_bessel":
            return SphericalBessel(config.orders, config.number, upper)
