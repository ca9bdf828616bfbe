"""TrainingStep: one optimizer step on static buffers, captured as a CUDA graph."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.gpu.graphs import captured
from mdgraph.models import TensorNetPotential
from mdgraph.precision import float32_products, full_float32
from mdgraph.train.batches import Batch, Inputs, Prediction
from mdgraph.train.config import TERMS, TrainConfig
from mdgraph.train.distributed import Processes
from mdgraph.train.losses import draw, errors, loss, misses, moves
from mdgraph.train.optimizers import Controls, hidden_matrices, make_optimizer

_ALIGNED: Final = 64
"""Elements that a tensor of many begins at a multiple of, so that its rows are read as words."""


def flattened(tensors: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Moves parameters into one buffer.

    Args:
        tensors: of one type; each becomes a view in place.

    Returns:
        the buffer (W,), and the parameters in their order there: each begins at a multiple of
        the power of two in its size, as those with the largest come first.
    """
    order = sorted(tensors.values(), key=lambda one: -min(_ALIGNED, one.numel() & -one.numel()))
    buffer = torch.cat([one.detach().flatten() for one in order])
    pieces = buffer.split([one.numel() for one in order])
    for one, piece in zip(order, pieces, strict=True):
        one.data = piece.view_as(one)
    return buffer, order


def joined(order: Sequence[Tensor], values: Sequence[Tensor | None], out: Tensor) -> None:
    """Writes values shaped as the parameters into a buffer (W,), 0 for None; does not sync."""
    pairs = zip(order, values, strict=True)
    parts = [torch.zeros_like(held) if value is None else value for held, value in pairs]
    torch.cat([part.flatten() for part in parts], out=out)


logger = logging.getLogger(__name__)

_TOLERANCES: Final = (1e-5, 1e-4)
"""Within which the losses of a graph's first steps must be those of eager steps. The second
follows a step of the optimiser, which makes as much of a gradient's last digits as of its first."""

_EPSILON: Final = 1e-6
"""Beside a gradient's norm, so that none divides by zero."""


def can_capture(device: torch.device) -> bool:
    """Whether steps may become CUDA graphs."""
    return device.type == "cuda"


class TrainingStep:
    """Potential, optimiser and running mean, and the step that moves them.

    Weights lie one after the other in one buffer, as do gradients, means and what the optimiser
    remembers, so that what is done to all of them is one kernel.

    Attributes:
        potential: trained in place.
        parameters: those that are trained, by name; views of `weights`.
        weights: (W,) of all of them.
        average: (W,) their running mean.
        batches: static buffers of the frames of a step, one a shape.
        controls: (T + 4,) float32 that a step reads: rate, decay of the running mean, weight of
            displaced frames, weights of the T terms, and whether this process wishes to stop.
        totals: (2 T + 1,) float64 since they were last read: penalties, squared errors, steps.
            Penalties come weighted and divided by the labels, without that of displaced frames;
            squared errors are means.
        stops: whether this process wishes to stop.
        wishes: (1,) float64, of several processes how many wished so before the last step.
    """

    def __init__(
        self,
        potential: TensorNetPotential,
        trained: dict[str, Tensor],
        config: TrainConfig,
        batches: Sequence[Batch],
        processes: Processes,
    ) -> None:
        self.potential, self.parameters = potential, trained
        self._config, self._processes = config, processes
        device = potential.scale.device
        self.batches = list(batches)
        self.weights, self._values = flattened(trained)
        self.average = self.weights.clone()
        self._gradient = torch.zeros_like(self.weights)
        self.controls = torch.zeros(4 + len(TERMS), dtype=torch.float32, device=device)
        self.stops, self.wishes = False, torch.zeros(1, dtype=torch.float64, device=device)
        self.totals = torch.zeros(2 * len(TERMS) + 1, dtype=torch.float64, device=device)
        matrices = hidden_matrices(potential, self._values, config.muon_edges)
        self.optimizer = make_optimizer(
            config, self.weights, self._gradient, self.controls[0], matrices
        )
        self._displaced = any(config.loss.displaced.weight)
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything a step changes, by name: what a snapshot and a checkpoint hold."""
        found = {"totals": self.totals, "weights": self.weights, "average": self.average}
        for name, tensor in self.optimizer.state[self.weights].items():
            found[f"optimizer.{name}"] = tensor
        return found

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of `tensors` on the host, whose memory is larger; syncs."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def restore_(self, snapshot: dict[str, Tensor]) -> None:
        """Writes a snapshot back in place, so captured graphs stay valid."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])

    @contextlib.contextmanager
    def holding(self, weights: Tensor) -> Iterator[None]:
        """Puts other weights (W,) in place of the trained ones for a while."""
        held = self.weights.clone()
        self.weights.copy_(weights)
        try:
            yield
        finally:
            self.weights.copy_(held)

    def run(self, shape: int, controls: Controls) -> None:
        """One step on the frames that the shape's batch holds; does not sync once captured."""
        numbers = torch.tensor([*controls.numbers(), float(self.stops)], dtype=torch.float32)
        # A blocking copy would wait for all steps before.
        self.controls.copy_(numbers, non_blocking=True)
        if self._displaced:
            self._draw(shape, controls.step)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(partial(self._step, shape))
        graph = self._graphs[shape]
        if graph is None:
            self._step(shape)
        else:
            graph.replay()

    def _draw(self, shape: int, step: int) -> None:
        """Draws for all processes, of which each takes its own."""
        own = self.batches[shape].drawn
        rank, size = self._processes.rank, len(own)
        atoms = self.batches[shape].table.size
        drawn = draw(self._config.seed, step, size * self._processes.count, atoms)
        own.copy_(torch.from_numpy(drawn[rank * size : (rank + 1) * size]), non_blocking=True)

    def forget_graphs(self) -> None:
        """Frees the memory of all graphs; they are captured anew when they are needed."""
        self._graphs.clear()
        self._pool = None

    def losses(self) -> tuple[float, list[float]]:
        """Mean loss of the steps that the totals hold, without displaced frames, and those; syncs.

        It is NaN where a weight is not finite, of which a loss tells only after the next step.
        """
        totals = self.totals.tolist()
        finite = bool(self.weights.isfinite().all())
        mean = sum(totals[: len(TERMS)]) / max(1.0, totals[-1])
        return (mean if finite else float("nan")), totals

    def part(self) -> None:
        """Waits for the other processes, if there are any, and leaves them."""
        if self._processes.count > 1:
            # NCCL does not let go while a graph holds it, and the others would not wait as long
            # as the first goes on alone.
            self.forget_graphs()
            self._processes.part()

    def _capture(self, step: Callable[[], None]) -> Any:
        if self._config.eager or not can_capture(self.controls.device):
            return None
        before = self.snapshot()
        expected = self._compared(step)
        self.restore_(before)
        graph = captured(step, self.controls.device, pool=self._pool)
        self.restore_(before)
        # All processes replay or none: they meet within each step.
        if not self._processes.all(graph is not None, self.controls.device) or graph is None:
            return None
        found = self._compared(graph.replay)
        self.restore_(before)
        tolerances = torch.tensor(_TOLERANCES, dtype=found.dtype, device=found.device)
        if not bool(((found - expected).abs() <= tolerances * expected.abs() + 1e-12).all()):
            logger.warning(
                "A captured step gives the losses %s, an eager one %s; all steps of its shape run "
                "eagerly.",
                found.tolist(),
                expected.tolist(),
            )
            return None
        self._pool = graph.pool
        return graph

    def _compared(self, step: Callable[[], None]) -> Tensor:
        """Losses of some steps."""
        found = []
        for _ in _TOLERANCES:
            before = self.totals.clone()
            step()
            found.append((self.totals - before)[: len(TERMS)].sum())
        return torch.stack(found)

    def _step(self, shape: int) -> None:
        """One step; static shapes, capturable, does not sync."""
        with float32_products("tf32" if self._config.precision == "tf32" else "ieee"):
            self._forward_and_backward(shape)
        clip = self._config.clip
        if clip is not None:
            norm = torch.linalg.vector_norm(self._gradient)
            self._gradient.mul_((clip / (norm + _EPSILON)).clamp(max=1.0))
        with full_float32():  # some optimisers multiply matrices
            self.optimizer.step()
        self.average.lerp_(self.weights, (1.0 - self.controls[1]).to(self.average))

    def _displaced_term(self, shape: int, found: Prediction, inputs: Inputs) -> Tensor:
        """() how far displaced frames lie outside, a mean over those of all processes."""
        batch, config = self.batches[shape], self._config.loss.displaced
        labels = inputs.labels
        moved = moves(batch.drawn, labels.positions, labels.atoms, config.largest)
        energy_of = partial(batch.displaced_energy, self.potential, inputs)
        low, high = misses(energy_of, found.energy, found.forces, moved, config.depth)
        off = (low + high) / self.potential.scale
        return (off * labels.energy_weight).sum() / (len(batch) * self._processes.count)

    def _forward_and_backward(self, shape: int) -> None:
        """Writes the gradients, and adds to the totals."""
        found, inputs = self.batches[shape].predict(self.potential, differentiable=True)
        own = errors(self._config.loss, self.potential.scale, found, inputs.labels)
        total = own.counts.clone()
        self._processes.sum_(total)
        weights = self.controls[3:-1].double()
        value = loss(own, weights, total)
        if self._displaced:
            value = value + self.controls[2] * self._displaced_term(shape, found, inputs)
        value = value * self.batches[shape].share
        with torch.autograd.set_multithreading_enabled(False):  # as in `predict`
            gradients = torch.autograd.grad(value, self._values, allow_unused=True)
        joined(self._values, gradients, out=self._gradient)
        shares = torch.cat([weights * own.terms.detach(), own.squares])
        shares = shares / total.repeat(2).clamp(min=1e-12)
        if self._processes.count > 1:
            self._processes.sum_(self._gradient)
            common = torch.cat([shares, self.controls[-1:].double()])
            self._processes.sum_(common)
            shares = common[:-1]
            self.wishes.copy_(common[-1:])
        self.totals[:-1].add_(shares)
        self.totals[-1:].add_(1.0)
