"""Blocks of frames, in which a stream travels between stages, processes and ranks.

All frames of a block lie side by side in few arrays and texts, as what Python does for each frame
is what a stream costs. No torch, which processes that read, parse and format do without.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import MDGraphError
from mdgraph.io.xyz import FrameText
from mdgraph.system import System

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, eq=False)
class RawFrame:
    """A frame that is not parsed yet.

    Attributes:
        name: file and frame, for errors.
        atoms: number of atoms.
        content: its text, or a system where the file has no text.
    """

    name: str
    atoms: int
    content: FrameText | System

    def __reduce__(self) -> Any:  # a third of the time of pickling a dict
        return RawFrame, (self.name, self.atoms, self.content)


class PackedFrames(Sequence[RawFrame]):
    """Frames as bytes that processes hand on, until one that reads a frame unpacks them all."""

    def __init__(self, content: Bytes, count: int) -> None:
        """See `of`."""
        self._content, self._count = content, count

    @classmethod
    def of(cls, frames: Sequence[RawFrame]) -> "PackedFrames":
        """The same frames, packed."""
        return cls(pickle.dumps([*frames], pickle.HIGHEST_PROTOCOL), len(frames))

    def __reduce_ex__(self, protocol: Any) -> Any:  # which need not copy the bytes
        return PackedFrames, (pickle.PickleBuffer(self._content), self._count)

    @cached_property
    def _frames(self) -> list[RawFrame]:
        frames: list[RawFrame] = pickle.loads(self._content)
        return frames

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> RawFrame: ...

    @overload
    def __getitem__(self, place: slice) -> list[RawFrame]: ...

    def __getitem__(self, place: int | slice) -> RawFrame | list[RawFrame]:
        return self._frames[place]


@dataclass(frozen=True, eq=False)
class FrameBlock:
    """Frames as they were read.

    Attributes:
        number: of the block, from 0 without a gap.
        first: number of its first frame, over all files.
        frames: in order.
        failure: why there is no frame after these.
    """

    number: int
    first: int
    frames: Sequence[RawFrame]
    failure: MDGraphError | None = None


@dataclass(frozen=True, eq=False)
class SystemBlock:
    """Frames that can be evaluated together; see FrameBlock.

    Attributes:
        names: file and frame of each.
        systems: the structures, each with a charge.
        uncharged: whether a charge of none was taken where nobody gave one.
    """

    number: int
    first: int
    names: Sequence[str]
    systems: Sequence[System]
    failure: MDGraphError | None = None
    uncharged: bool = False


@dataclass(frozen=True, eq=False)
class ResultArrays:
    """What was computed of systems, side by side; see EvaluationResult.

    Attributes:
        ends: (S,) int, where the atoms of each end among all.
        energy: (S,) float64, eV.
        energies: (N,) float64, eV.
        forces: (N, 3) float64, eV/A.
        virial: (S, 3, 3) float64, eV.
        info: further numbers of each system; empty where none has any.
        arrays: further numbers of the atoms of each; likewise.
    """

    ends: Sequence[int]
    energy: NDArray[np.float64]
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]
    virial: NDArray[np.float64]
    info: Sequence[Mapping[str, float]] = ()
    arrays: Sequence[Mapping[str, NDArray[np.float64]]] = ()


@dataclass(frozen=True, eq=False)
class ResultBlock:
    """Evaluated frames; see FrameBlock.

    Attributes:
        names: file and frame of each.
        systems: as they are to be written.
        results: of them; None of no frame.
        notes: of each frame, for what the command says at its end; empty where it says nothing.
    """

    number: int
    first: int
    names: Sequence[str]
    systems: Sequence[System]
    results: ResultArrays | None
    notes: Sequence[Any] = ()
    failure: MDGraphError | None = None


@dataclass(frozen=True, eq=False)
class TextBlock:
    """Frames as they are written; see FrameBlock.

    Attributes:
        content: of all frames, one after the other.
        ends: of each, in bytes.
        notes: see ResultBlock.
        waiting: share of its time that each device of a rank waited.
        computing: share of the time that each GPU of a rank computed.
    """

    number: int
    first: int
    content: Bytes
    ends: Sequence[int]
    notes: Sequence[Any] = ()
    failure: MDGraphError | None = None
    waiting: Mapping[str, float] = field(default_factory=dict)
    computing: Mapping[str, float] = field(default_factory=dict)

    def __reduce_ex__(self, protocol: Any) -> Any:  # which need not copy the bytes
        rest = (self.ends, self.notes, self.failure, self.waiting, self.computing)
        return TextBlock, (self.number, self.first, pickle.PickleBuffer(self.content), *rest)

    def __len__(self) -> int:
        return len(self.ends)

    def text(self, start: int, end: int | None = None) -> memoryview:
        """Of the frames from one on, up to another one or the last."""
        end = len(self) if end is None else end
        first, last = (self.ends[place - 1] if place else 0 for place in (start, end))
        return memoryview(self.content)[first:last]


Block = TypeVar("Block", FrameBlock, SystemBlock, ResultBlock, TextBlock)


def with_plain_failure(block: Block) -> Block:
    """The same, with a failure that can be pickled: of it the sentence alone is kept."""
    failure = block.failure
    return block if failure is None else replace(block, failure=MDGraphError(str(failure)))
