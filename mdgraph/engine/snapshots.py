"""Snapshots: copies of everything that a step changes, in buffers that are used again."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.online import OnlineObservables


class Contents:
    """The tensors of a simulation that a step changes, and from which it goes on."""

    def __init__(
        self, calculation: Calculation, integrator: Integrator, online: OnlineObservables
    ) -> None:
        self._calculation = calculation
        self._integrator = integrator
        self._online = online

    def tensors(self) -> dict[str, Any]:
        """The buffers themselves, as they lie in a snapshot; not copies."""
        lists = self._calculation.lists
        return {
            "state": self._calculation.state.tensors(),
            "integrator": self._integrator.tensors(),
            "online": self._online.tensors(),
            "lists": [(one.reference_positions, one.reference_cell) for one in lists],
        }

    def copy(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """A copy, in new tensors or in those of an older copy; on the device, does not sync."""
        own = self.tensors()
        into = _like(own) if into is None else into
        tensors = {name: into[name] for name in own}
        sources: dict[torch.dtype, list[Tensor]] = {}
        targets: dict[torch.dtype, list[Tensor]] = {}
        for source, target in zip(_leaves(own), _leaves(tensors), strict=True):
            sources.setdefault(source.dtype, []).append(source)
            targets.setdefault(source.dtype, []).append(target)
        with torch.no_grad():
            for kind, several in targets.items():
                # One kernel for all tensors of a type.
                torch._foreach_copy_(several, sources[kind], non_blocking=True)
        return into

    def restore(self, copy: Mapping[str, Any]) -> None:
        """Writes a copy back and builds the lists from their references; does not sync."""
        self._calculation.state.restore(copy["state"])
        self._integrator.restore(copy["integrator"])
        self._online.restore(copy["online"])
        for one, (positions, cell) in zip(self._calculation.lists, copy["lists"], strict=True):
            one.rebuild_(positions, cell)


def _like(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return torch.empty_like(tree)
    if isinstance(tree, dict):
        return {name: _like(part) for name, part in tree.items()}
    return type(tree)(_like(part) for part in tree)


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
