"""Panels: twice as many numbers as lanes, which a matrix product computes with at once."""

from typing import Any, Final

from llvmlite import ir
from numba.core.typing.templates import Signature

from mdgraph.fused.cpu.lanes import LANES, Lanes, loading, operation, spreading, zeros

PANEL: Final = 2 * LANES
"""Columns of packed weights that lie together, to which channels are padded. With AVX-512 they
are one register in float32, and a product takes a third less time than with two."""


@operation
def load_panel(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index : index + PANEL]."""
    return loading(array, index, PANEL)


@operation
def zero_panel(typing_context: Any, array: Any) -> Any:
    """PANEL zeros, of the type of an array."""
    return zeros(Lanes(array.dtype, PANEL), array)


@operation
def load_one_panel(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index], PANEL times."""
    return spreading(array, PANEL)


@operation
def first_half(typing_context: Any, panel: Any) -> Any:
    """The first LANES of a PANEL."""
    return _half(panel, 0)


@operation
def second_half(typing_context: Any, panel: Any) -> Any:
    """The other LANES of a PANEL."""
    return _half(panel, LANES)


def _half(panel: Lanes, start: int) -> Any:
    places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(start, start + LANES)))

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        (vector,) = arguments
        return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)

    return Lanes(panel.element)(panel), generate
