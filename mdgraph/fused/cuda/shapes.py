"""Sizes of the blocks that programs take, chosen once for a network and a number of atoms."""

from dataclasses import dataclass, replace

import triton

from mdgraph.fused.cuda.workspace import TILE


@dataclass(frozen=True)
class Blocks:
    """Sizes of the blocks of a kernel.

    Attributes:
        atoms: a program takes.
        step: channels of the input, or slots, that it takes at a time.
        strip: channels of the result that it takes.
        warps: of a program.
        registers: most that a thread may use; None lets the compiler choose.
        stages: of the pipeline that loads the operands of a matrix product.
    """

    atoms: int
    step: int
    strip: int
    warps: int
    registers: int | None = None
    stages: int = 1


@dataclass(frozen=True)
class Shapes:
    """Sizes of blocks, chosen once for a network and a number of atoms.

    Attributes:
        padded: number of channels rounded up to a power of two.
        mixing: matrix products of features.
        contraction: those of moments.
        dense: matrix products of rows.
        readout: those that energies are summed from. Tensor cores cut sums off towards zero
            instead of rounding them, so these take few channels at a time.
        moments, gradients: sums over edges in the embedding, and their adjoint.
        message, adjoint: messages and their adjoint.
        rows, across, warps: atoms and channels of a program of elementwise kernels.
    """

    padded: int
    mixing: Blocks
    contraction: Blocks
    dense: Blocks
    readout: Blocks
    moments: Blocks
    gradients: Blocks
    message: Blocks
    adjoint: Blocks
    rows: int
    across: int
    warps: int


def padded(width: int) -> int:
    """The next power of two that tensor cores take."""
    return max(TILE, triton.next_power_of_2(width))


def shapes(channels: int, atoms: int) -> Shapes:
    """Sizes by what was fastest on an H200; few atoms need many small programs."""
    whole = padded(channels)
    strip = min(32, whole)
    if atoms < 256:
        product = Blocks(TILE, strip, strip, 4, stages=3)
        dense = Blocks(TILE, min(128, whole), strip, 4, stages=2)
        message, adjoint = Blocks(1, 8, strip, 1), Blocks(1, 4, strip, 1)
    elif atoms < 2048:
        product = Blocks(32, strip, min(64, whole), 4, stages=2)
        dense = Blocks(TILE, min(64, whole), min(64, whole), 4, stages=3)
        message, adjoint = Blocks(8, 1, strip, 8, registers=64), Blocks(4, 2, strip, 4, 96)
    else:
        product = dense = Blocks(32, strip, whole, 4, stages=3)
        message, adjoint = Blocks(8, 1, strip, 8, registers=64), Blocks(1, 2, strip, 1)
    few = atoms < 2048
    return Shapes(
        padded=whole,
        mixing=product,
        contraction=product,
        dense=dense,
        readout=replace(dense, step=strip, stages=4),
        moments=Blocks(1, 16 if atoms < 256 else 8, whole, 1),
        gradients=Blocks(1, 16, whole, 4) if few else Blocks(1, 4, whole, 1),
        message=message,
        adjoint=adjoint,
        rows=1 if few else 2,
        across=min(64 if few else 128, whole),
        warps=1 if few else 4,
    )
