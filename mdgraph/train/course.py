"""The course of a training: what shapes its weights, and must stay when it is resumed."""

import hashlib
from typing import Any, Final

from mdgraph.data import Dataset
from mdgraph.errors import InputError, name_some
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.progress import Progress

_PLACES: Final = {"out", "device", "eager", "resident", "data", "split", "name", "also_log"}
"""Keys that shape no weights."""

_FREE: Final = _PLACES | {"batch", "batch_atoms", "batch_edges", "checkpoint_interval", "patience"}
"""Keys that may change on the way; batches may be shared out anew."""


def training_hash(config: TrainConfig, dataset: Dataset) -> str:
    """SHA-256 of everything that shapes the weights: the configuration and the data."""
    return _hash(config, dataset, _PLACES)


def course_of(
    config: TrainConfig, dataset: Dataset, begun: Progress | None, shares: int
) -> Progress:
    """Where a training stands: as it was begun, or at the start of its course.

    Args:
        config: of the training.
        dataset: that it trains on.
        begun: of one that is resumed.
        shares: of one that begins, see `Progress`.

    Raises:
        InputError: it was begun with others; names what changed.
    """
    course, chosen = _hash(config, dataset, _FREE), _chosen(config)
    if begun is None:
        return Progress(shares=shares, course=course, chosen=chosen)
    if begun.course == course:
        return begun
    before = begun.chosen
    changes = [
        f"{key} was {before.get(key)!r} and is {chosen.get(key)!r}"
        for key in before | chosen
        if before.get(key) != chosen.get(key)
    ]
    text = name_some(changes) if changes else "the data are others"
    if not before:
        text = "the configuration or the data are others"  # an older checkpoint knows no more
    raise InputError(
        f"The training in {config.out} was begun otherwise: {text}; resume with its train.yaml, "
        "or start anew in another folder."
    )


def _hash(config: TrainConfig, dataset: Dataset, free: set[str]) -> str:
    # Without defaults, so that a later mdgraph with more to choose still knows the training.
    chosen = config.model_dump_json(exclude=free, exclude_defaults=True)
    return hashlib.sha256((chosen + dataset.sha256()).encode()).hexdigest()


def _chosen(config: TrainConfig) -> dict[str, Any]:
    """Values by keys, those of parts with dots, as JSON has them."""
    found: dict[str, Any] = {}
    left = list(config.model_dump(mode="json", exclude=_FREE).items())
    while left:
        key, value = left.pop(0)
        if isinstance(value, dict):
            left = [(f"{key}.{inner}", one) for inner, one in value.items()] + left
        else:
            found[key] = value
    return found
