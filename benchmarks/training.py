"""Times the training step: samples a second, milliseconds, peak memory, kernels and their shares.

    python benchmarks/training.py set.h5 --batch 8 --channels 128 --layers 2 --radial 32
    python benchmarks/training.py set.h5 --precision mixed tf32

Prints a line of JSON for the captured step of each precision, with --eager also one for steps that
are launched kernel by kernel, and with --kernels the kernels that take the most time, from one
eager step. Lists are made and steps of every shape captured before the clock runs. Memory counts
the frames on the device too, and the captures.
"""

import argparse
import contextlib
import gc
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from cases import conditions, run_script
from torch.profiler import ProfilerActivity, profile

from mdgraph.processes import keep_workspaces_small
from mdgraph.train.config import TrainConfig
from mdgraph.train.loop import WORKSPACES, Training
from mdgraph.train.optimizers import controls_at

# TorchMD-Net 3.1.0 on one H200, F = 128, 2 layers, 32 rbf, 5 A, float32, its batches on the card
# before the clock runs: samples a second and peak GB, by atoms of a frame and frames of a batch.
PEER = {(21, 8): (167, 0.33), (21, 32): (724, 1.06), (192, 4): (82, 3.2)}


def main() -> None:
    parser = argument_parser(__doc__, batch=8)
    parser.add_argument("--precision", nargs="+", default=["mixed"], help="one row each")
    parser.add_argument("--eager", action="store_true", help="times uncaptured steps too")
    parser.add_argument("--kernels", type=int, default=0, help="how many of them to list")
    arguments = parser.parse_args()
    keep_workspaces_small(WORKSPACES)
    for precision in arguments.precision:
        for eager in (True, False) if arguments.eager else (False,):
            report(arguments, precision, eager)
            gc.collect()  # or the next row counts the memory of this training


def report(arguments: argparse.Namespace, precision: str, eager: bool) -> None:
    """Prints the row of one training, and the kernels of its step where they are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        config = configured(arguments, folder, precision=precision, eager=eager)
        training = Training(config, resume=False, quiet=True)
        row = {"eager": eager, "batch": arguments.batch, **timed(training, config)}
    row |= conditions(training.potential.scale.device, config.precision)
    print(json.dumps(row | peer(training, arguments.batch)), flush=True)
    if arguments.kernels and not eager:
        print(shares(training, arguments.kernels))


def argument_parser(description: str | None, batch: int) -> argparse.ArgumentParser:
    """Options of the data, the network and the steps; `batch` unless another is given."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=batch, help="frames a step and rank")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--radial", type=int, default=32)
    parser.add_argument("--cutoff", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto")
    return parser


def configured(arguments: argparse.Namespace, folder: str, **more: Any) -> TrainConfig:
    """The training that those options describe, writing into a folder."""
    return TrainConfig(
        data=str(arguments.data),
        out=f"{folder}/out",
        potential={
            "channels": arguments.channels,
            "layers": arguments.layers,
            "cutoff": arguments.cutoff,
            "radial_basis": {"number": arguments.radial},
            "readout": {"hidden": [arguments.channels // 2]},
        },
        batch=arguments.batch,
        steps=arguments.steps,
        device=arguments.device,
        **more,
    )


def timed(training: Training, config: TrainConfig) -> dict[str, Any]:
    device = training.potential.scale.device
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    steps = unending_steps(training)
    next(steps)
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    measured = sum(islice(steps, config.steps))
    if cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    row = {
        "ms_per_step": round(1e3 * seconds / config.steps, 3),
        "samples_per_second": round(measured / seconds, 1),
        "data_MB": round(sum(table.bytes for table in training.store.tables) / 1e6, 1),
    }
    if cuda:
        row["peak_GB"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 3)
        row["kernels"] = sum(map(len, launched(training).values()))
    return row


def unending_steps(training: Training) -> Iterator[int]:
    """Steps of a training, nothing of which is read; yields the frames of each.

    Before the first is yielded, one of every shape has been made, and so captured.
    """
    store, plan = training.store, training.plan
    epoch = list(islice(plan.upcoming(0), plan.sampler.steps_per_epoch))
    once = {shape: (shape, rows) for shape, rows in epoch}
    with contextlib.closing(store.stream(chain(once.values(), plan.upcoming(0)))) as batches:
        for number, (shape, rows) in enumerate(batches, 1 - len(once)):
            store.fill_(plan.batches[shape], shape, rows)
            step = max(0, number) % training.total
            training.step.run(shape, controls_at(training.config, step, training.total, 1.0))
            if number >= 0:
                yield len(plan.batches[shape])


def launched(training: Training) -> dict[str, list[float]]:
    """Microseconds of every kernel of one eager step, by name; of torch's operations on a CPU."""
    device = training.potential.scale.device
    cuda = device.type == "cuda"
    training.step._step(0)
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as run:
        training.step._step(0)
        if cuda:
            torch.cuda.synchronize(device)
    kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    kernels: dict[str, list[float]] = {}
    for event in run.events():
        if event.device_type == kind and not (cuda and "Context Sync" in event.name):
            time_of = event.device_time_total if cuda else event.self_cpu_time_total
            kernels.setdefault(event.name, []).append(time_of)
    return kernels


def shares(training: Training, number: int) -> str:
    """The kernels that take most time, with their share of it."""
    times = launched(training)
    total = sum(map(sum, times.values()))
    spent = Counter({name: sum(each) for name, each in times.items()})
    lines = [
        f"{len(times[name]):5d}  {time:9.1f} us  {100 * time / total:5.1f} %  {name[:90]}"
        for name, time in spent.most_common(number)
    ]
    return "\n".join([f"{total:.0f} us in kernels of one eager step", *lines])


def peer(training: Training, batch: int) -> dict[str, Any]:
    """What TorchMD-Net takes, where it was measured."""
    known = PEER.get((training.store.shapes[0].atoms, batch))
    if known is None:
        return {}
    return {"peer_samples_per_second": known[0], "peer_peak_GB": known[1]}


if __name__ == "__main__":
    run_script(main)
