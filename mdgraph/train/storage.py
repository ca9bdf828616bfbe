"""Host memory for the frames of a training: what does not fit lies in a file without a name.

The system moves parts of such a file in and out as they are used, and removes it with the
process, however that ends.
"""

import logging
import os
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.io.files import disk_failures

logger = logging.getLogger(__name__)

_BLOCK: Final = 1 << 26
"""Bytes taken at a time. Small tensors share a block, which goes back to the system as a whole:
what is smaller than 32 MB stays with the allocator."""

_ALIGNED: Final = 64
"""Bytes that every tensor begins at a multiple of."""


class Storage:
    """Hands out tensors: in memory until a budget is spent, then in the file.

    Attributes:
        filed: bytes that lie in the file.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        """Opens nothing yet.

        Args:
            folder: for the file; it, or one above it, exists.
            budget: bytes of memory.
        """
        self.filed = 0
        self._left = budget
        self._folder = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
        self._block: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def zeros(self, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """A tensor of zeros, untouched: it takes memory as it is written.

        Raises:
            FileError: the disk refuses.
        """
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        room = -(-size // _ALIGNED) * _ALIGNED
        if room > len(self._block):
            self._block = self._new_block(max(room, _BLOCK))
        taken, self._block = self._block[:room], self._block[room:]
        return torch.from_numpy(taken[:size]).view(kind).view(shape)

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor on the host."""
        return self.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _new_block(self, size: int) -> NDArray[np.uint8]:
        if size <= self._left:
            self._left -= size
            return np.zeros(size, dtype=np.uint8)
        if not self.filed:
            logger.info(
                "The frames take more than the memory they may have; the rest of them lies in a "
                "file in %s until the training ends.",
                self._folder,
            )
        self.filed += size
        with (
            disk_failures(self._folder, "write"),
            tempfile.TemporaryFile(dir=self._folder) as file,
        ):
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.uint8, "r+", shape=(size,))
