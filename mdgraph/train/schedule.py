"""Learning rate, loss weights and averaging at a step: numbers the captured step reads."""

import math
from dataclasses import dataclass

from mdgraph.train.configuration import TrainConfig


@dataclass(frozen=True)
class Controls:
    """What changes from step to step.

    Attributes:
        learning_rate: of the optimiser.
        decay: of the running mean of the weights.
        weights: of the losses of energy, forces and stress.
    """

    learning_rate: float
    decay: float
    weights: tuple[float, float, float]

    def numbers(self) -> list[float]:
        """In the order of `TrainingStep.controls`."""
        return [self.learning_rate, self.decay, *self.weights]


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
    terms = (config.loss.energy, config.loss.forces, config.loss.stress)
    weights = [term.weight[0] + progress * (term.weight[1] - term.weight[0]) for term in terms]
    return Controls(rate * factor, decay, (weights[0], weights[1], weights[2]))
