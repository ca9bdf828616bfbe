"""Branch: kernels that do not wait for each other, on two streams; one graph holds both."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Branch:
    """A second stream beside the current one of a device; without CUDA all stays in order."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._open = False

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Runs the block's kernels after what was launched so far, beside what follows."""
        if self._stream is None:
            yield
            return
        self._open = True
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Makes what follows wait for the branch, if it was forked since the last time."""
        if self._stream is not None and self._open:
            self._open = False
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
