"""Signals to a process at a step of its training; as a script, a training that loses a rank.

    torchrun --nproc-per-node 2 tests/support/lost_rank.py STEP train CONFIG.yaml

The second rank is killed before that step, and leaves a file CONFIG.lost.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from mdgraph.cli import main
from mdgraph.train.step import TrainingStep


def signal_before(step: int, number: signal.Signals, left: Path | None = None) -> None:
    """Lets this process get a signal before a step, counted from 1, once it has left a file."""
    run, steps = TrainingStep.run, 0

    def counted(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            if left is not None:
                left.touch()
            for _ in range(2):  # by the batch system, and by torchrun
                os.kill(os.getpid(), number)
        run(*arguments)

    TrainingStep.run = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        lost = Path(sys.argv[-1]).with_suffix(".lost")
        signal_before(int(sys.argv[1]), signal.SIGKILL, lost)
    sys.argv = ["mdgraph", *sys.argv[2:]]
    main()
