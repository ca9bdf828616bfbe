"""TrainingStep: one optimizer step on static buffers, captured as a CUDA graph."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.gpu.graphs import captured
from mdgraph.models import TrainablePotential
from mdgraph.precision import float32_products, full_float32
from mdgraph.train.batches import Batch, Inputs, Prediction
from mdgraph.train.config import TERMS, TrainConfig
from mdgraph.train.distributed import Processes
from mdgraph.train.losses import corridor_violations, displacements, draw_numbers, errors, loss
from mdgraph.train.optimizers import StepControls, hidden_matrices, make_optimizer

logger = logging.getLogger(__name__)

_ALIGNED: Final = 64
"""Elements; large tensors begin at multiples of it, so that rows are read as words."""


def flat_params(tensors: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Moves parameters into one buffer.

    Args:
        tensors: of one type; each becomes a view of the buffer, in place.

    Returns:
        the buffer (W,), and the parameters in their order there: each begins at a multiple of
        the power of two in its size, as those with the largest come first.
    """
    order = sorted(
        tensors.values(), key=lambda param: -min(_ALIGNED, param.numel() & -param.numel())
    )
    buffer = torch.cat([param.detach().flatten() for param in order])
    pieces = buffer.split([param.numel() for param in order])
    for param, piece in zip(order, pieces, strict=True):
        param.data = piece.view_as(param)
    return buffer, order


def flatten_gradients(
    params: Sequence[Tensor], gradients: Sequence[Tensor | None], out: Tensor
) -> None:
    """Writes gradients of the parameters into a buffer (W,), 0 for None; does not sync."""
    pairs = zip(params, gradients, strict=True)
    parts = [torch.zeros_like(param) if value is None else value for param, value in pairs]
    torch.cat([part.flatten() for part in parts], out=out)


_TOLERANCES: Final = (1e-5, 1e-4)
"""Relative, of the losses of a graph's first two steps against eager ones. The second follows a
step of the optimizer, which enlarges differences in small gradients."""

_EPSILON: Final = 1e-6
"""Added to a gradient's norm, which divides."""


def can_capture(device: torch.device) -> bool:
    """Whether steps may become CUDA graphs."""
    return device.type == "cuda"


class TrainingStep:
    """Potential, optimizer and running mean of the weights, and the step that changes them.

    All weights lie in one buffer, and so do gradients, means and the state of the optimizer, so
    that an operation on all of them is one kernel.

    Attributes:
        potential: trained in place.
        parameters: trained weights by name; views of `weights`.
        weights: (W,) all trained weights.
        average: (W,) their running mean.
        batches: static buffers of the frames of a step, one for each shape.
        controls: (T + 4,) float32 inputs of a step: rate, decay of the running mean, weight of the
            perturbation, weights of the T terms, and whether this process requests a stop.
        totals: (2 T + 1,) float64 sums since they were last zeroed: penalties, squared errors,
            steps. Penalties are weighted and divided by the numbers of labels, without that of
            the perturbation; squared errors are means.
        stops: whether this process requests a stop.
        stop_requests: (1,) float64, number of processes that requested a stop before the last step.
    """

    def __init__(
        self,
        potential: TrainablePotential,
        trained: dict[str, Tensor],
        config: TrainConfig,
        batches: Sequence[Batch],
        processes: Processes,
    ) -> None:
        self.potential, self.parameters = potential, trained
        self._config, self._processes = config, processes
        device = potential.scale.device
        self.batches = list(batches)
        self.weights, self._values = flat_params(trained)
        self.average = self.weights.clone()
        self._gradient = torch.zeros_like(self.weights)
        self.controls = torch.zeros(4 + len(TERMS), dtype=torch.float32, device=device)
        self.stops, self.stop_requests = False, torch.zeros(1, dtype=torch.float64, device=device)
        self.totals = torch.zeros(2 * len(TERMS) + 1, dtype=torch.float64, device=device)
        matrices = hidden_matrices(potential, self._values, config.muon_edges)
        self.optimizer = make_optimizer(
            config, self.weights, self._gradient, self.controls[0], matrices
        )
        self._perturbs = any(config.loss.perturbation.weight)
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything a step changes, by name: contents of a snapshot and of a checkpoint."""
        optimizer = self.optimizer.state[self.weights]
        return {
            "totals": self.totals,
            "weights": self.weights,
            "average": self.average,
            **{f"optimizer.{name}": tensor for name, tensor in optimizer.items()},
        }

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of `tensors` on the host; syncs."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def restore_(self, snapshot: dict[str, Tensor]) -> None:
        """Writes a snapshot back in place, so captured graphs stay valid."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])

    @contextlib.contextmanager
    def with_weights(self, weights: Tensor) -> Iterator[None]:
        """Computes with other weights (W,) within the block."""
        trained = self.weights.clone()
        self.weights.copy_(weights)
        try:
            yield
        finally:
            self.weights.copy_(trained)

    def run(self, shape: int, controls: StepControls) -> None:
        """One step on the frames of the shape's batch; does not sync once captured."""
        numbers = torch.tensor([*controls.numbers(), float(self.stops)], dtype=torch.float32)
        # A blocking copy would wait for all earlier steps.
        self.controls.copy_(numbers, non_blocking=True)
        if self._perturbs:
            self._draw(shape, controls.step)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(partial(self._step, shape))
        graph = self._graphs[shape]
        if graph is None:
            self._step(shape)
        else:
            graph.replay()

    def _draw(self, shape: int, step: int) -> None:
        """Random numbers of the step; they do not depend on how processes share the batch."""
        own = self.batches[shape].random
        rank, size = self._processes.rank, len(own)
        atoms = self.batches[shape].table.size
        random = draw_numbers(self._config.seed, step, size * self._processes.count, atoms)
        own.copy_(torch.from_numpy(random[rank * size : (rank + 1) * size]), non_blocking=True)

    def forget_graphs(self) -> None:
        """Frees the memory of all graphs, which are captured again when needed."""
        self._graphs.clear()
        self._pool = None

    def losses(self) -> tuple[float, list[float]]:
        """Mean loss of the steps in the totals, without the perturbation, and the totals; syncs.

        It is NaN if a weight is not finite, which a loss shows only after the next step.
        """
        totals = self.totals.tolist()
        finite = bool(self.weights.isfinite().all())
        mean = sum(totals[: len(TERMS)]) / max(1.0, totals[-1])
        return (mean if finite else float("nan")), totals

    def leave_group(self) -> None:
        """Waits for the other processes, if there are any, and leaves their group."""
        if self._processes.count > 1:
            # NCCL cannot be left while a graph uses it, and the other processes would not wait
            # as long as the first one works on alone.
            self.forget_graphs()
            self._processes.leave_group()

    def _capture(self, step: Callable[[], None]) -> Any:
        if self._config.eager or not can_capture(self.controls.device):
            return None
        before = self.snapshot()
        expected = self._first_losses(step)
        self.restore_(before)
        graph = captured(step, self.controls.device, pool=self._pool)
        self.restore_(before)
        # All processes replay or none, since they communicate within each step.
        if not self._processes.all_true(graph is not None, self.controls.device) or graph is None:
            return None
        replayed = self._first_losses(graph.replay)
        self.restore_(before)
        tolerances = torch.tensor(_TOLERANCES, dtype=replayed.dtype, device=replayed.device)
        if not bool(((replayed - expected).abs() <= tolerances * expected.abs() + 1e-12).all()):
            logger.warning(
                "A captured step gives the losses %s, an eager one %s; all steps of its shape run "
                "eagerly.",
                replayed.tolist(),
                expected.tolist(),
            )
            return None
        self._pool = graph.pool
        return graph

    def _first_losses(self, step: Callable[[], None]) -> Tensor:
        """Losses of as many steps as there are tolerances."""
        losses = []
        for _ in _TOLERANCES:
            before = self.totals.clone()
            step()
            losses.append((self.totals - before)[: len(TERMS)].sum())
        return torch.stack(losses)

    def _step(self, shape: int) -> None:
        """One step; static shapes, capturable, does not sync."""
        with float32_products("tf32" if self._config.precision == "tf32" else "ieee"):
            self._forward_and_backward(shape)
        clip = self._config.clip
        if clip is not None:
            norm = torch.linalg.vector_norm(self._gradient)
            self._gradient.mul_((clip / (norm + _EPSILON)).clamp(max=1.0))
        with full_float32():  # some optimizers multiply matrices
            self.optimizer.step()
        self.average.lerp_(self.weights, (1.0 - self.controls[1]).to(self.average))

    def _perturbation_term(self, shape: int, prediction: Prediction, inputs: Inputs) -> Tensor:
        """() mean distance of perturbed frames from their corridor, over those of all processes."""
        batch, config = self.batches[shape], self._config.loss.perturbation
        labels = inputs.labels
        displacement = displacements(
            batch.random, labels.positions, labels.atoms, config.max_displacement
        )
        energy_of = partial(batch.perturbed_energy, self.potential, inputs)
        low, high = corridor_violations(
            energy_of, prediction.energy, prediction.forces, displacement, config.well_depth
        )
        off = (low + high) / self.potential.scale
        return (off * labels.energy_weight).sum() / (len(batch) * self._processes.count)

    def _forward_and_backward(self, shape: int) -> None:
        """Writes the gradients and adds to the totals."""
        prediction, inputs = self.batches[shape].predict(self.potential, differentiable=True)
        own = errors(self._config.loss, self.potential.scale, prediction, inputs.labels)
        total = own.counts.clone()
        self._processes.sum_(total)
        weights = self.controls[3:-1].double()
        value = loss(own, weights, total)
        if self._perturbs:
            value = value + self.controls[2] * self._perturbation_term(shape, prediction, inputs)
        value = value * self.batches[shape].share
        with torch.autograd.set_multithreading_enabled(False):  # as in `predict`
            gradients = torch.autograd.grad(value, self._values, allow_unused=True)
        flatten_gradients(self._values, gradients, out=self._gradient)
        shares = torch.cat([weights * own.terms.detach(), own.squares])
        shares = shares / total.repeat(2).clamp(min=1e-12)
        if self._processes.count > 1:
            self._processes.sum_(self._gradient)
            common = torch.cat([shares, self.controls[-1:].double()])
            self._processes.sum_(common)
            shares = common[:-1]
            self.stop_requests.copy_(common[-1:])
        self.totals[:-1].add_(shares)
        self.totals[-1:].add_(1.0)
