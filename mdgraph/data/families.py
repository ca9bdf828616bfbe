"""Frames of one composition, described so that they can be compared.

Exact copies are found by their digests, so that only one of them is described.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.composition import compositions
from mdgraph.data.dataset import Dataset
from mdgraph.data.frames import LabelledFrame
from mdgraph.data.likeness import describe_frame, response

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Family:
    """Two frames or more of one composition, F of them with K distinct geometries.

    Attributes:
        members: (F,) frame numbers, ascending.
        geometry: (F,) which geometry each has, in no order.
        chosen: (K,) the first of `members` with each geometry, as places in it, ascending.
        described: (K, D) descriptions of the chosen, see `describe_frame`.
        response: how far a description moves for each A of random displacement.
    """

    members: Index
    geometry: Index
    chosen: Index
    described: NDArray[np.float32]
    response: float


def families(dataset: Dataset) -> Iterator[Family]:
    """All families; reads all frames. Where all members are copies, nothing is described."""
    digests = np.array([_digest(frame) for frame in dataset.frames()], dtype=object)
    elements, counts = compositions(dataset)
    found: dict[bytes, list[int]] = defaultdict(list)
    for index, row in enumerate(counts):
        found[row.tobytes()].append(index)
    for listed in found.values():
        if len(listed) < 2:
            continue
        members = np.array(listed)
        _, first, geometry = np.unique(digests[members], return_index=True, return_inverse=True)
        chosen = np.sort(first)  # frames are read in their order
        described, moved = np.zeros((1, 0), dtype=np.float32), 1.0
        if len(chosen) > 1:
            present = elements[counts[members[0]] > 0].tolist()
            described = np.array(
                [describe_frame(frame, present) for frame in dataset.frames(members[chosen])]
            )
            moved = response(dataset.frame(int(members[0])), present)
        yield Family(members, geometry, chosen, described, moved)


def _digest(frame: LabelledFrame) -> bytes:
    found = hashlib.blake2b(frame.numbers.tobytes(), digest_size=16)
    found.update(frame.positions.tobytes())
    found.update(frame.pbc.tobytes())
    if frame.pbc.any():
        found.update(frame.cell.tobytes())
    return found.digest()
