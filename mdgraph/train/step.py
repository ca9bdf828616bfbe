"""TrainingStep: one step of the optimiser on static buffers, captured as a CUDA graph."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from mdgraph.graphs import captured
from mdgraph.models import TensorNetPotential
from mdgraph.precision import full_float32
from mdgraph.train.batches import Batch
from mdgraph.train.configuration import TERMS, TrainConfig
from mdgraph.train.losses import errors, loss
from mdgraph.train.optimizers import make_optimizer
from mdgraph.train.processes import Processes
from mdgraph.train.schedule import Controls

logger = logging.getLogger(__name__)

_TOLERANCES: Final = (1e-5, 1e-4)
"""Within which the losses of a graph's first steps must be those of eager steps. The second
follows a step of the optimiser, which makes as much of a gradient's last digits as of its first."""


def can_capture(device: torch.device) -> bool:
    """Whether steps may become CUDA graphs."""
    return device.type == "cuda"


class TrainingStep:
    """Potential, optimiser and running mean, and the step that moves them.

    Attributes:
        potential: trained in place.
        parameters: those that are trained, by name.
        average: their running mean.
        totals: (2 T + 1,) float64 since they were last read: penalties, squared errors, steps.
            Penalties come weighted and divided by the labels, squared errors are means.
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
        self.average = {name: value.detach().clone() for name, value in trained.items()}
        self._values = list(trained.values())
        self._averages = list(self.average.values())
        self.controls = torch.zeros(2 + len(TERMS), dtype=torch.float32, device=device)
        self.totals = torch.zeros(2 * len(TERMS) + 1, dtype=torch.float64, device=device)
        self.optimizer = make_optimizer(config, self._values, self.controls[0])
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything a step changes, by name: what a snapshot and a checkpoint hold."""
        found = {"totals": self.totals}
        for name, value in self.parameters.items():
            found[f"weight.{name}"] = value.detach()
            found[f"average.{name}"] = self.average[name]
            for key, tensor in self.optimizer.state[value].items():
                found[f"optimizer.{key}.{name}"] = tensor
        return found

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of `tensors` on the device."""
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    def restore_(self, snapshot: dict[str, Tensor]) -> None:
        """Writes a snapshot back in place, so captured graphs stay valid."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])

    def load_(self, weights: dict[str, Tensor]) -> None:
        """Writes weights, such as their running mean, over the trained ones."""
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(weights[name])

    @contextlib.contextmanager
    def holding(self, weights: dict[str, Tensor]) -> Iterator[None]:
        """Puts other weights in place of the trained ones for a while."""
        held = {name: value.detach().clone() for name, value in self.parameters.items()}
        self.load_(weights)
        try:
            yield
        finally:
            self.load_(held)

    def run(self, shape: int, controls: Controls) -> None:
        """One step on the frames that the shape's batch holds; does not sync once captured."""
        numbers = torch.tensor(controls.numbers(), dtype=torch.float32)
        # A blocking copy would wait for all steps before.
        self.controls.copy_(numbers, non_blocking=True)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(shape)
        graph = self._graphs[shape]
        if graph is None:
            self._step(shape)
        else:
            graph.replay()

    def forget_graphs(self) -> None:
        """Frees the memory of all graphs; they are captured anew when they are needed."""
        self._graphs.clear()
        self._pool = None
        for value in self._values:
            value.grad = None  # it lies in that memory

    def is_finite(self) -> bool:
        """Whether all weights are finite; syncs. A loss tells only after the next step."""
        return bool(torch.stack(torch._foreach_norm(self._values)).isfinite().all())

    def _capture(self, shape: int) -> Any:
        if self._config.eager or not can_capture(self.controls.device):
            return None
        before = self.snapshot()
        expected = self._compared(lambda: self._step(shape))
        self.restore_(before)
        graph = captured(lambda: self._step(shape), self.controls.device, pool=self._pool)
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

    def _compared(self, step: Any) -> Tensor:
        """Losses of some steps."""
        found = []
        for _ in _TOLERANCES:
            before = self.totals.clone()
            step()
            found.append((self.totals - before)[: len(TERMS)].sum())
        return torch.stack(found)

    def _step(self, shape: int) -> None:
        """One step; static shapes, capturable, does not sync."""
        with full_float32():
            self._forward_and_backward(shape)
        if self._config.clip is not None:
            clip_grad_norm_(self._values, self._config.clip, foreach=True)
        self.optimizer.step()
        decay = self.controls[1]
        with torch.no_grad():
            torch._foreach_mul_(self._averages, decay)
            torch._foreach_add_(self._averages, torch._foreach_mul(self._values, 1.0 - decay))

    def _forward_and_backward(self, shape: int) -> None:
        """Writes the gradients, and adds to the totals."""
        found, labels = self.batches[shape].predict(self.potential, differentiable=True)
        own = errors(self._config.loss, self.potential.scale, found, labels)
        total = own.counts.clone()
        self._processes.sum_(total)
        weights = self.controls[2:].double()
        value = loss(own, weights, total) * self.batches[shape].share
        gradients = torch.autograd.grad(value, self._values, allow_unused=True)
        # The fused optimiser wants the strides of the parameter, not those of a view.
        parts = [
            torch.zeros_like(held) if gradient is None else gradient.contiguous()
            for held, gradient in zip(self._values, gradients, strict=True)
        ]
        shares = torch.cat([weights * own.terms.detach(), own.squares])
        shares = shares / total.repeat(2).clamp(min=1e-12)
        if self._processes.count > 1:
            flat = torch.cat([part.flatten() for part in parts])
            self._processes.sum_(flat)
            sizes = [part.numel() for part in parts]
            pieces = zip(flat.split(sizes), self._values, strict=True)
            parts = [piece.view_as(held) for piece, held in pieces]
            self._processes.sum_(shares)
        for held, part in zip(self._values, parts, strict=True):
            held.grad = part
        self.totals[:-1].add_(shares)
        self.totals[-1:].add_(1.0)
