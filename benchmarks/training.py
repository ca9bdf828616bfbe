"""Times the training step: samples a second, milliseconds a step and peak memory.

    python benchmarks/training.py set.h5 --batch 8 --channels 128 --layers 2 --radial 32

Prints one line, eager and captured; lists are made and steps captured before the clock runs.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from mdgraph.train.configuration import TrainConfig
from mdgraph.train.loop import Training
from mdgraph.train.schedule import controls_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--radial", type=int, default=32)
    parser.add_argument("--cutoff", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    for eager in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            config = TrainConfig(
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
                eager=eager,
            )
            print(json.dumps({"eager": eager, "batch": arguments.batch, **timed(config)}))


def timed(config: TrainConfig) -> dict[str, float]:
    training = Training(config, resume=False, quiet=True)
    device = training.potential.scale.device
    cuda = device.type == "cuda"
    upcoming = training.store.stream(training.plan.upcoming(0))
    start, measured = 0.0, 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    warm = max(10, 2 * len(training.store.shapes))
    for step in range(config.steps + warm):
        if step == warm:
            if cuda:
                torch.cuda.synchronize(device)
            start = time.perf_counter()
        shape, rows = next(upcoming)
        training.store.fill_(training.plan.batches[shape], shape, rows)
        training.step.run(shape, controls_at(config, step, config.steps + warm, 1.0))
        measured += len(training.plan.batches[shape]) * (step >= warm)
    if cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if cuda else float("nan")
    return {
        "ms_per_step": round(1e3 * seconds / config.steps, 3),
        "samples_per_second": round(measured / seconds, 1),
        "peak_GiB": round(peak, 3),
        "data_MB": round(sum(table.bytes for table in training.store.tables) / 1e6, 1),
    }


if __name__ == "__main__":
    main()
