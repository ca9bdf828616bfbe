"""Matrices as tensor cores take them: in float16 halves."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.fused.cuda.kernels.tensor_cores import LIFT
from mdgraph.fused.weights import Linear


@dataclass(frozen=True)
class Halves:
    """Matrices of one shape as kernels read them.

    Attributes:
        whole, rest: float16, unit (whole + rest / 2^11) is the matrix; both the matrix itself
            in float64, and where it is not split.
        unit: a power of two.
    """

    whole: Tensor
    rest: Tensor
    unit: float

    @classmethod
    def of(cls, matrix: Tensor, split: bool = True) -> "Halves":
        """Splits, or keeps a matrix that is multiplied in its own type; reads the device."""
        matrix = matrix.contiguous()
        if matrix.dtype == torch.float64 or not split:
            return cls(matrix, matrix, 1.0)
        # The largest number becomes 8 to 16, far from both ends of what float16 holds.
        unit = 2.0 ** (math.frexp(float(matrix.abs().max()))[1] - 4)
        scaled = matrix / unit
        whole = scaled.half()
        return cls(whole, ((scaled - whole.float()) * LIFT.value).half(), unit)


@dataclass(frozen=True)
class Dense:
    """A linear layer, forward and backward.

    Attributes:
        weight, transposed: (inputs, outputs), (outputs, inputs).
        bias: (outputs,).
    """

    weight: Halves
    transposed: Halves
    bias: Tensor

    @classmethod
    def of(cls, linear: Linear, split: bool = True) -> "Dense":
        """Splits, or does not; reads the device."""
        weight = linear.weight
        return cls(Halves.of(weight, split), Halves.of(weight.mT, split), linear.bias)


@dataclass(frozen=True)
class Mixing:
    """What mixes the channels of each part, forward and backward.

    Attributes:
        weights, transposed: (3, F, F).
    """

    weights: Halves
    transposed: Halves

    @classmethod
    def of(cls, weights: Tensor) -> "Mixing":
        """Splits (3, F, F), [part, in, out]; reads the device."""
        return cls(Halves.of(weights), Halves.of(weights.mT))
