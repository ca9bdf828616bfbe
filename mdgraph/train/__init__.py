"""Training: a data set and a configuration in, a potential with its errors out."""

from mdgraph.train.config import TrainConfig

__all__ = ["TrainConfig"]
