"""Trains the water potential that mdgraph ships.

    python examples/train_water.py potentials/water-pbe0/train.yaml \
        --data train.extxyz.gz --out potentials/water-pbe0 --minutes 8 --device cuda

All frames have the same atoms in the same order, so neighbor lists are made once, a batch is
a gather from them, and the whole training step has static shapes: on a GPU it is captured
once as a CUDA graph and replayed. `--prepare frames.npz` converts the frames for a machine
that has no ASE; `--data` takes that file too.
"""

import argparse
import csv
import hashlib
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from tqdm import tqdm

from mdgraph.analysis.rdf import radial_distribution
from mdgraph.checkpoints import save
from mdgraph.data.ordering import distances, time_order
from mdgraph.grouping import Grouping
from mdgraph.models import Atoms, TensorNetConfig, TensorNetPotential
from mdgraph.neighbors import NeighborList, PairBlock, Pairs
from mdgraph.neighbors.sums import forces_and_virials
from mdgraph.precision import full_float32
from mdgraph.state import State
from mdgraph.system import System

BLOCK = 16
"""Slots are rounded up to a multiple of this."""

CHUNK = 8
"""Frames evaluated at a time."""


@dataclass(frozen=True)
class Frames:
    """M configurations of the same N atoms in one cubic cell.

    Attributes:
        numbers: (N,) atomic numbers.
        cell: (3, 3) A.
        positions: (M, N, 3) A.
        forces: (M, N, 3) eV/A.
        energies: (M,) eV.
        sha256: of the file they were first read from.
    """

    numbers: NDArray[np.int64]
    cell: NDArray[np.float64]
    positions: NDArray[np.float64]
    forces: NDArray[np.float64]
    energies: NDArray[np.float64]
    sha256: str

    def __len__(self) -> int:
        return len(self.energies)


def read_frames(path: Path) -> Frames:
    """Reads what ASE reads, or an .npz that `write_frames` made."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        return Frames(**{**arrays, "sha256": str(arrays["sha256"])})
    import ase.io

    frames = ase.io.read(path, ":")
    first = frames[0]
    for frame in frames:
        if (frame.numbers != first.numbers).any() or not np.allclose(frame.cell, first.cell):
            raise SystemExit(f"{path}: the frames differ in their atoms or cell.")
    return Frames(
        numbers=first.numbers.astype(np.int64),
        cell=np.array(first.cell),
        positions=np.array([frame.positions for frame in frames]),
        forces=np.array([frame.get_forces() for frame in frames]),
        energies=np.array([frame.get_potential_energy() for frame in frames]),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def write_frames(path: Path, frames: Frames) -> None:
    np.savez_compressed(path, **vars(frames))


def split(
    order: NDArray[np.int64], blocks: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and validation frames: blocks of the time order, evenly spaced, are held out."""
    held = np.zeros(len(order), dtype=bool)
    for block in range(blocks):
        start = round((block + 0.5) * len(order) / blocks - size / 2)
        held[start : start + size] = True
    return order[~held], order[held]


class PairTable:
    """Pairs of all frames on the device, from which batches are gathered.

    Every frame has N atoms and K slots a row, so a batch has the same shapes whatever frames
    it holds.
    """

    def __init__(self, frames: Frames, cutoff: float, device: torch.device) -> None:
        self.atoms = len(frames.numbers)
        self.cutoff = cutoff
        self.device = device
        lists, vectors = [], []
        capacity = None
        for positions in tqdm(frames.positions, "neighbor lists", leave=False, disable=None):
            system = System(frames.numbers, positions, frames.cell, np.ones(3, dtype=bool))
            state = State([system], device)
            one = NeighborList(state, cutoff, capacity=capacity, cell_varies=False)
            if capacity is None:
                capacity = 2 * one.capacity
                one = NeighborList(state, cutoff, capacity=capacity, cell_varies=False)
            if not one.status().complete:
                raise SystemExit("A frame is twice as dense as the first one.")
            lists.append(one)
            vectors.append(torch.cat(one.pairs(state.positions, state.cell).vectors, 1).detach())
        longest = max(int(one.count.max()) for one in lists)
        slots = BLOCK * math.ceil(longest / BLOCK)
        self.slots = slots

        def stacked(parts: list[Tensor]) -> Tensor:
            return torch.stack([part[:, :slots] for part in parts])

        self.vectors = stacked(vectors)
        self.index = stacked([one.index for one in lists])
        self.reverse = stacked([one.index * slots + one.reverse for one in lists])
        self.count = torch.stack([one.count for one in lists])

    def pairs(self, frames: Tensor) -> Pairs:
        """Pairs of a batch of frames (B,), one after the other; does not sync."""
        batch = len(frames)
        rows, slots = batch * self.atoms, self.slots
        first = torch.arange(batch, dtype=torch.int32, device=self.device)[:, None, None]
        vectors = self.vectors.index_select(0, frames).view(rows, slots, 3)
        index = self.index.index_select(0, frames) + first * self.atoms
        reverse = self.reverse.index_select(0, frames) + first * (self.atoms * slots)
        used = self.count.index_select(0, frames).view(rows, 1)
        valid = torch.arange(slots, device=self.device) < used
        index = index.view(rows, slots)
        block = PairBlock(vectors.requires_grad_(), index, valid)
        return Pairs((block,), index, used[:, 0], reverse.flatten(), self.cutoff)


class Trainer:
    """Potential, optimizer and data, with a step that can be captured."""

    def __init__(
        self, settings: dict, frames: Frames, train: NDArray[np.int64], device: torch.device
    ) -> None:
        self.settings, self.device = settings, device
        self.table = PairTable(frames, settings["potential"]["cutoff"], device)
        self.forces = torch.tensor(frames.forces, device=device)
        self.energies = torch.tensor(frames.energies, device=device)
        self.numbers = torch.tensor(frames.numbers, device=device)
        self.elements, self.kinds = torch.unique(self.numbers, return_inverse=True)
        self.train = torch.tensor(train, device=device)

        torch.manual_seed(settings["seed"])
        self.potential = TensorNetPotential(TensorNetConfig(**settings["potential"])).to(device)
        self.potential.network.float()
        self.potential.readout.float()
        self.potential.scale.copy_(self.forces[self.train].square().mean().sqrt())
        self.fit_references()

        self.parameters = list(self.potential.parameters())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self._average_ = get_ema_multi_avg_fn(settings["average"])
        self.learning_rate = torch.zeros((), device=device)
        fast = {"fused": True, "capturable": True} if device.type == "cuda" else {}
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.learning_rate,
            weight_decay=settings["weight_decay"],
            **(fast or {"foreach": False, "capturable": False}),
        )
        self.batch = self.train[: settings["batch"]].clone()
        self.losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._grouping = Grouping([self.table.atoms] * settings["batch"], device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def predict(self, frames: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
        """Energies (B,) eV and forces (B, N, 3) eV/A of a batch of frames."""
        batch = len(frames)
        pairs = self.table.pairs(frames)
        grouping = Grouping([self.table.atoms] * batch, self.device)
        return self._predict(pairs, grouping, differentiable)

    def _predict(
        self, pairs: Pairs, grouping: Grouping, differentiable: bool
    ) -> tuple[Tensor, Tensor]:
        batch = grouping.systems
        charge = torch.zeros(batch, device=self.device)
        numbers, kinds = self.numbers.repeat(batch), self.kinds.repeat(batch)
        atoms = Atoms(numbers, self.elements, kinds, charge, grouping)
        energies = self.potential(atoms, (pairs,))
        gradients = torch.autograd.grad(energies.sum(), pairs.vectors, create_graph=differentiable)
        forces, _ = forces_and_virials(pairs, gradients)
        return energies.view(batch, -1).sum(1), forces.view(batch, -1, 3)

    def fit_references(self) -> None:
        """Adds to the references what takes the mean error of the training energies away.

        All frames have one composition, so the energies fix one number: the least-squares
        solution of smallest norm shares it out over the species.
        """
        predicted = [self.predict(part, False)[0].detach() for part in self.train.split(CHUNK)]
        error = (self.energies[self.train] - torch.cat(predicted)).mean()
        rows = self.potential.rows[self.numbers]
        counts = torch.bincount(rows, minlength=len(self.potential.species)).double()
        self.potential.references += counts * error / counts.square().sum()

    def step(self) -> None:
        """One step on the frames in `batch`; static shapes, does not sync."""
        pairs = self.table.pairs(self.batch)
        energies, forces = self._predict(pairs, self._grouping, True)
        force_loss = (forces - self.forces.index_select(0, self.batch)).square().mean()
        energy_error = energies - self.energies.index_select(0, self.batch)
        energy_loss = (energy_error / self.table.atoms).square().mean()
        loss = force_loss + self.settings["energy_weight"] * energy_loss
        loss = loss / self.potential.scale.square()
        gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            # The fused optimiser wants the strides of the parameter, not those of a view.
            parameter.grad = gradient.contiguous()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings["clip"])
        self.optimizer.step()
        self._average_(self.average, self.parameters, 0)
        self.losses.lerp_(torch.stack([force_loss, energy_loss]).detach(), 0.01)

    def capture(self) -> None:
        """Captures the step; needs some steps done before on another stream."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.step()

    def run_step(self, frames: Tensor, learning_rate: float) -> None:
        self.batch.copy_(frames)
        self.learning_rate.fill_(learning_rate)
        if self._graph is None:
            self.step()
        else:
            self._graph.replay()

    def swap_average(self) -> None:
        """Exchanges the weights and their running mean, in place."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                held = parameter.clone()
                parameter.copy_(average)
                average.copy_(held)

    def errors(self, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Errors of energies (M,) eV an atom and forces (M, N, 3) eV/A, on the host."""
        energies, forces = [], []
        for part in torch.tensor(chosen, device=self.device).split(CHUNK):
            energy, force = self.predict(part, False)
            energies.append((energy.detach() - self.energies[part]) / self.table.atoms)
            forces.append(force.detach() - self.forces[part])
        return torch.cat(energies).cpu(), torch.cat(forces).cpu()


def batches(frames: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Endless batches; every frame once an epoch, in an order of its own each time."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(frames), generator=generator).to(frames.device)
        shuffled = frames[order]
        yield from shuffled[: len(frames) // size * size].split(size)


def learning_rate_at(progress: float, settings: dict) -> float:
    """Linear rise, then a cosine, over the progress from 0 to 1."""
    high, low, warmup = (
        settings[name] for name in ("learning_rate", "final_learning_rate", "warmup")
    )
    if progress < warmup:
        return high * (progress + 1e-3 * warmup) / warmup
    turn = math.pi * min(1.0, (progress - warmup) / (1.0 - warmup))
    return low + 0.5 * (high - low) * (1.0 + math.cos(turn))


def root_mean_square(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


def statistics(trainer: Trainer, chosen: NDArray[np.int64]) -> dict[str, float]:
    """Error table of some frames in meV/A and meV an atom."""
    energy, force = trainer.errors(chosen)
    numbers = trainer.numbers.cpu()
    table = {
        "frames": len(chosen),
        "force_rmse_meV_per_A": root_mean_square(force) * 1e3,
        "force_mae_meV_per_A": float(force.abs().mean()) * 1e3,
    }
    for symbol, number in (("H", 1), ("O", 8)):
        part = force[:, numbers == number]
        table[f"force_rmse_{symbol}_meV_per_A"] = root_mean_square(part) * 1e3
        table[f"force_mae_{symbol}_meV_per_A"] = float(part.abs().mean()) * 1e3
    table["energy_rmse_meV_per_atom"] = root_mean_square(energy) * 1e3
    table["energy_mae_meV_per_atom"] = float(energy.abs().mean()) * 1e3
    return {name: round(value, 4) for name, value in table.items()}


def fit(
    trainer: Trainer,
    validation: NDArray[np.int64],
    curve: Path,
    seconds: float,
    steps: int | None,
) -> int:
    """Trains for a time or, if given, a number of steps; returns the number of steps done."""
    settings = trainer.settings
    source = batches(trainer.train, settings["batch"], settings["seed"])
    start = time.perf_counter()
    done, checks, progress = 0, 0, 0.0
    with (
        curve.open("w", newline="") as file,
        tqdm(total=1000, unit="permille", mininterval=10.0) as bar,
    ):
        log = csv.writer(file)
        log.writerow(
            (
                "step",
                "seconds",
                "learning_rate",
                "train_force_rmse_meV_per_A",
                "validation_force_rmse_meV_per_A",
                "validation_energy_rmse_meV_per_atom",
            )
        )
        while True:
            if steps is not None:
                progress = done / steps
            elif done % 20 == 0:
                # Reading the clock only after the device has caught up keeps the plan honest.
                if trainer.device.type == "cuda":
                    torch.cuda.synchronize()
                progress = (time.perf_counter() - start) / seconds
            rate = learning_rate_at(progress, settings)
            if progress >= 1.0 or progress * settings["validations"] >= checks + 1:
                checks += 1
                trainer.swap_average()
                energy, force = trainer.errors(validation)
                trainer.swap_average()
                trained = float(trainer.losses[0].sqrt()) * 1e3
                if not math.isfinite(trained):
                    raise SystemExit(f"The loss is not finite after {done} steps; lower the rate.")
                row = [done, time.perf_counter() - start, rate, trained]
                row += [root_mean_square(force) * 1e3, root_mean_square(energy) * 1e3]
                log.writerow([f"{value:.6g}" for value in row])
                file.flush()
                bar.set_postfix(steps=done, train=f"{trained:.1f}", held_out=f"{row[4]:.2f}")
            bar.update(min(1000, int(1000 * progress)) - bar.n)
            if progress >= 1.0:
                return done
            trainer.run_step(next(source), rate)
            done += 1


def oxygen_distribution(frames: Frames) -> dict[str, list[float]]:
    """The O-O radial distribution of all frames, which a simulation is compared with."""
    oxygen = np.flatnonzero(frames.numbers == 8)
    found = radial_distribution([(x, frames.cell) for x in frames.positions], oxygen, oxygen)
    return {"r_A": found.distance.round(4).tolist(), "oo": found.value.round(4).tolist()}


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a water potential.")
    parser.add_argument("settings", type=Path, help="train.yaml")
    parser.add_argument("--data", type=Path, required=True, help="frames: extxyz or .npz")
    parser.add_argument("--prepare", type=Path, help="only write the frames to this .npz")
    parser.add_argument("--out", type=Path, help="folder for weights, metrics and curve")
    parser.add_argument("--minutes", type=float, default=8.0, help="length of the training")
    parser.add_argument("--steps", type=int, help="length of the training, instead of minutes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="do not capture a CUDA graph")
    arguments = parser.parse_args()

    frames = read_frames(arguments.data)
    if arguments.prepare is not None:
        write_frames(arguments.prepare, frames)
        return
    if arguments.out is None:
        parser.error("--out is needed")
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = arguments.settings.read_text()
    settings = yaml.safe_load(text)
    device = torch.device(arguments.device)

    distance = distances(frames.positions, frames.cell)
    held_out = settings["validation"]
    train, validation = split(time_order(distance), held_out["blocks"], held_out["frames"])
    nearest = distance[np.ix_(validation, train)].min(1)

    start = time.perf_counter()
    with full_float32():
        trainer = Trainer(settings, frames, train, device)
        if device.type == "cuda" and not arguments.eager:
            trainer.capture()
        curve = arguments.out / "learning-curve.csv"
        steps = fit(trainer, validation, curve, 60.0 * arguments.minutes, arguments.steps)
        trainer.swap_average()
        trainer.fit_references()
        training_hash = hashlib.sha256((text + frames.sha256).encode()).hexdigest()
        potential = trainer.potential
        potential.config = potential.config.model_copy(update={"training_hash": training_hash})
        save(potential, arguments.out / "model.safetensors")
        far = validation[nearest >= np.median(nearest)]
        metrics = {
            "validation": statistics(trainer, validation),
            "validation_far_half": statistics(trainer, far),
            "train": statistics(trainer, train),
        }
    metrics |= {
        "parameters": potential.parameter_count,
        "steps": steps,
        "seconds": round(time.perf_counter() - start, 1),
        "seed": settings["seed"],
        "hardware": hardware(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "data_sha256": frames.sha256,
        "training_hash": training_hash,
        "nearest_training_frame_rmsd_A": {
            "least": round(float(nearest.min()), 4),
            "median": round(float(np.median(nearest)), 4),
            "most": round(float(nearest.max()), 4),
        },
        "validation_frames": validation.tolist(),
        "training_rdf": oxygen_distribution(frames),
    }
    (arguments.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(json.dumps(metrics["validation"], indent=1))


if __name__ == "__main__":
    main()
