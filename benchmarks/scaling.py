"""Weak and strong scaling of a training over the GPUs of one machine, each with torchrun.

    python benchmarks/scaling.py set.h5 --ranks 1 2 4 --batch 4 --steps 200

Weak: every rank takes `--batch` frames. Strong: all ranks together take `--batch` times the
largest number of ranks. Efficiency is against the first number of ranks. Steps are timed twice,
with the sums over ranks and with each rank keeping to itself; what the second saves is the share
of time in communication.

By count, a step makes three all-reduces: the labels of the batch, its losses (a few numbers
each, some 20 us of latency) and all gradients as one flat tensor after the backward pass. A ring
of n ranks moves 2 (n - 1) / n times its bytes over each link. A TensorNet of 128 channels and 2
layers has 0.75 million weights, 3 MB: 4.5 MB on 4 ranks, at 300 GB/s 15 us of a step of 10 ms.
Overlapping it with the backward pass could save no more than that, and would cut the tensor into
pieces with a latency each.
"""

import argparse
import json
import subprocess
import sys
import tempfile

from cases import run_script
from torch import Tensor, distributed
from training import argument_parser, configured, timed

from mdgraph.train.distributed import Processes
from mdgraph.train.loop import Training


def main() -> None:
    parser = argument_parser(__doc__, batch=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--modes", nargs="+", choices=["weak", "strong"], default=["weak", "strong"]
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one_rank(arguments)
        return
    for mode in arguments.modes:
        first = None
        for ranks in arguments.ranks:
            batch = arguments.batch
            if mode == "strong":
                batch = batch * max(arguments.ranks) // ranks
            result = launched(ranks, batch)
            first = first or result["frames_per_second"] / ranks
            efficiency = result["frames_per_second"] / ranks / first
            print(json.dumps({"mode": mode, **result, "efficiency": round(efficiency, 3)}))


def launched(ranks: int, batch: int) -> dict[str, float]:
    """Runs this script once in so many processes."""
    # Of a repeated option the last one counts.
    own = [__file__, *sys.argv[1:], "--one", "--batch", str(batch)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={ranks}", *own], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def one_rank(arguments: argparse.Namespace) -> None:
    """Times steps, and those of a rank alone, and prints what the first rank found."""
    rows = []
    for together in (True, False):
        if not together:
            Processes.sum_ = alone  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            config = configured(arguments, folder)
            training = Training(config, resume=False, quiet=True)
            rows.append(timed(training, config))
            training.step.forget_graphs()  # NCCL does not let go while a graph holds it
    count = distributed.get_world_size() if distributed.is_initialized() else 1
    if count == 1 or distributed.get_rank() == 0:
        both, own = (row["ms_per_step"] for row in rows)
        result = {
            "ranks": count,
            "batch_per_rank": arguments.batch,
            "ms_per_step": both,
            "frames_per_second": round(count * rows[0]["samples_per_second"], 1),
            "communication_share": round(max(0.0, 1.0 - own / both), 3) if count > 1 else 0.0,
        }
        print(json.dumps(result), flush=True)
    if count > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def alone(processes: Processes, tensor: Tensor) -> None:
    """As if all ranks had what this one has, without asking them."""
    tensor.mul_(processes.count)


if __name__ == "__main__":
    run_script(main)
