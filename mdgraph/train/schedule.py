"""Learning rate, loss weights and averaging at a step: numbers that the step reads."""

import math
from dataclasses import dataclass

from mdgraph.train.configuration import TrainConfig
from mdgraph.train.terms import TERMS


@dataclass(frozen=True)
class Controls:
    """What changes from step to step.

    Attributes:
        learning_rate: of the optimiser.
        decay: of the running mean of the weights.
        weights: of the terms of the loss, in the order of `TERMS`.
        displaced: weight of displaced frames.
        step: from 0; what moves their atoms is drawn by it.
    """

    learning_rate: float
    decay: float
    weights: tuple[float, ...]
    displaced: float
    step: int

    def numbers(self) -> list[float]:
        """The first of `TrainingStep.controls`."""
        return [self.learning_rate, self.decay, self.displaced, *self.weights]


def controls_at(config: TrainConfig, step: int, steps: int, factor: float) -> Controls:
    """Controls of a step.

    Args:
        config: the schedules.
        step: from 0.
        steps: of the whole training.
        factor: on the learning rate, by plateaus and rollbacks.
    """
    progress = min(1.0, step / steps)
    high, low = config.learning_rate, min(config.final_learning_rate, config.learning_rate)
    if config.warmup and progress < config.warmup:
        rate = high * (step + 1) / (config.warmup * steps + 1)
    elif config.schedule == "cosine":
        turn = math.pi * (progress - config.warmup) / (1.0 - config.warmup)
        rate = low + 0.5 * (high - low) * (1.0 + math.cos(turn))
    else:
        rate = high
    # At the start a long memory would remember random weights.
    decay = min(config.average, (1.0 + step) / (10.0 + step))
    if config.average_from is not None:
        # Stochastic weight averaging, DOI 10.48550/arXiv.1803.05407: a plain mean.
        since = step - math.ceil(config.average_from * steps)
        decay = since / (since + 1.0) if since >= 0 else decay
    ends = [getattr(config.loss, name).weight for name in (*TERMS, "displaced")]
    *weights, displaced = (first + progress * (last - first) for first, last in ends)
    return Controls(rate * factor, decay, tuple(weights), displaced, step)
