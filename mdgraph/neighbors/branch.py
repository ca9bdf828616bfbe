"""Branch: kernels that do not wait for each other, on two streams; one graph holds both."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mdgraph.devices import shared_stream


class Branch:
    """A stream beside the current one of a device; without CUDA all stays in order.

    All branches of a thread are one stream, so they wait for each other. With a second one for
    the list's a step took as long, and 6 % longer once graphs of several steps were there.
    """

    def __init__(self, device: torch.device) -> None:
        """A closed branch.

        Args:
            device: of the kernels.
        """
        self._device = device
        self._open: torch.cuda.Stream | None = None

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Runs the block's kernels after what was launched so far, beside what follows."""
        if self._device.type != "cuda":
            yield
            return
        self._open = shared_stream(self._device, "branch")
        self._open.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._open):
            yield

    def join(self) -> None:
        """Makes what follows wait for the branch, if it was forked since the last time."""
        if self._open is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._open)
            self._open = None
