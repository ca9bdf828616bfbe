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
        gate: the first layer of the embedding's gate.
        dense: matrix products of rows.
        edges: those of networks on edges.
        readout: those that energies are summed from. Tensor cores cut sums off towards zero
            instead of rounding them, so these are given few channels at a time.
        moments, gradients: sums over edges in the embedding, and their adjoint.
        message, adjoint: messages and their adjoint.
        alternating: whether programs of messages that follow each other take different strips.
        rows, across, warps: atoms and channels of a program of elementwise kernels.
    """

    padded: int
    mixing: Blocks
    contraction: Blocks
    gate: Blocks
    dense: Blocks
    edges: Blocks
    readout: Blocks
    moments: Blocks
    gradients: Blocks
    message: Blocks
    adjoint: Blocks
    alternating: bool
    rows: int
    across: int
    warps: int


def padded(width: int) -> int:
    """The next power of two that tensor cores take."""
    return max(TILE, triton.next_power_of_2(width))


def shapes(channels: int, atoms: int, rounded: bool, double: bool) -> Shapes:
    """Sizes by what was fastest on an H200; few atoms need many small programs.

    Args:
        channels: F.
        atoms: N.
        rounded: whether what messages read has half the bytes of float32; as many bytes of a
            row are then twice as many channels.
        double: whether numbers are float64, of which half as many fit into shared memory.
    """
    whole = padded(channels)
    strip = min(32, whole)
    if atoms < 256:
        product = Blocks(TILE, strip, strip, 2, stages=3)
        dense = Blocks(TILE, min(128, whole), strip, 4, stages=3)
        edges = Blocks(32, strip, min(64, whole), 4, stages=3)
        message, adjoint = Blocks(1, 8, strip, 1), Blocks(2, 8, min(16, whole), 1)
    elif atoms < 2048:
        product = Blocks(64, strip, min(64, whole), 4, stages=3)
        dense = Blocks(TILE, min(64, whole), min(128, whole), 4, stages=3)
        edges = Blocks(64, strip, min(64, whole), 4, stages=3)
        message, adjoint = Blocks(4, 2, strip, 4, 96), Blocks(4, 2, strip, 4, 96)
    else:
        product = edges = Blocks(64, strip, min(64 if double else 128, whole), 4, stages=3)
        dense = Blocks(64, strip, min(64, whole), 4, stages=3)
        message, adjoint = Blocks(8, 1, strip, 8, registers=64), Blocks(1, 2, strip, 1)
        if rounded:
            wide = min(64, whole)
            message, adjoint = Blocks(4, 1, wide, 4, registers=64), Blocks(1, 2, wide, 1)
    few = atoms < 2048
    gate = Blocks(TILE, whole, min(64, 2 * whole), 8)
    if not few and whole <= (64 if double else 128):
        gate = Blocks(32, whole, 2 * whole, 8)
    return Shapes(
        padded=whole,
        mixing=product,
        contraction=product,
        gate=gate,
        dense=dense,
        edges=edges,
        readout=replace(dense, step=TILE, strip=min(64, dense.strip)),
        moments=Blocks(1, 16 if atoms < 256 else 8, whole, 1),
        gradients=Blocks(1, 32, whole, 4) if few else Blocks(1, 4, whole, 1),
        message=message,
        adjoint=adjoint,
        alternating=few,
        rows=1 if few else 2,
        across=min(64 if few else 128, whole),
        warps=1 if few else 4,
    )
