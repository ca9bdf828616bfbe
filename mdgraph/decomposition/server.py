"""Ranks other than 0, which do what it calls for."""

import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mdgraph.decomposition.divided_system import DividedSystem
from mdgraph.decomposition.evaluator import DecomposedEvaluator
from mdgraph.decomposition.exchange import Call, CallMessage, ProcessExchange
from mdgraph.decomposition.references import SystemReference
from mdgraph.errors import LostRankError
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.signals import SIGNALS


def join_ranks() -> ProcessExchange | None:
    """Joins the ranks that torchrun started; those other than 0 do not come back from here.

    They evaluate domains until rank 0 ends, and exit. Signals are left to rank 0, which ends them.

    Returns:
        What rank 0 calls the others by; None without other ranks.

    Raises:
        InputError: see `ProcessRank.joined`.
    """
    exchange = ProcessExchange.joined()
    if exchange is None or exchange.leads:
        return exchange
    for ending in SIGNALS:
        signal.signal(ending, signal.SIG_IGN)
    logging.getLogger("mdgraph").setLevel(logging.WARNING)  # rank 0 tells what all do
    try:
        _Server(exchange).serve()
    except LostRankError as error:
        raise SystemExit(1) from error
    raise SystemExit(0)


@dataclass(frozen=True)
class DividedPart:
    """What a rank has of a system, and of one of its evaluators."""

    evaluator: DecomposedEvaluator
    divided: DividedSystem


class Follower(Protocol):
    """Takes steps on a rank other than 0."""

    def follow(self, request: Any) -> None:
        """Takes those that rank 0 asks for."""
        ...

    def forget(self) -> None:
        """Drops graphs."""
        ...


class Beginning(Protocol):
    """What rank 0 sends so that other ranks can take steps of a system.

    Attributes:
        before: number of the steps whose place these take, or 0.
    """

    before: int

    def follower(self, part: Callable[[int], DividedPart], before: Follower | None) -> Follower:
        """What takes them.

        Args:
            part: what this rank has of each divided system, by its number.
            before: what took the steps before.
        """
        ...


class _Server:
    """Does on a rank other than 0 what rank 0 calls for."""

    def __init__(self, exchange: ProcessExchange) -> None:
        self._exchange = exchange
        self._evaluators: dict[int, DecomposedEvaluator] = {}
        self._systems: dict[int, DividedSystem] = {}
        self._steps: dict[int, Follower] = {}
        self._device = torch.device("cpu")

    def serve(self) -> None:
        """Until rank 0 ends; raises LostRankError."""
        while (message := self._exchange.receive()).call is not Call.END:
            self._do(message)

    def _do(self, message: CallMessage) -> None:
        number, content = message.number, message.content
        match message.call:
            case Call.ADD:
                self._device = self._exchange.open_(content.device_type)
                whole = FusedTensorNet(content.potential, content.precision, self._device)
                self._evaluators[number] = DecomposedEvaluator(
                    whole, content.atoms, content.grid, self._exchange
                )
            case Call.BEGIN:
                self._begin(number, content)
            case Call.GROW:
                self._systems[number].divide_()
            case Call.EVALUATE:
                self._systems[number].evaluate_()
            case Call.BEGIN_STEPS:
                before = self._steps.pop(content.before, None)
                self._steps[number] = content.follower(self.part, before)
            case Call.STEPS:
                self._steps[number].follow(content)
            case Call.FORGET:
                if number in self._steps:
                    self._steps[number].forget()
            case Call.DROP_STEPS:
                self._steps.pop(number, None)
            case Call.DROP:
                self._systems.pop(number, None)
            case Call.DROP_EVALUATOR:
                self._evaluators.pop(number, None)

    def _begin(self, number: int, content: SystemReference) -> None:
        evaluator = self._evaluators[content.evaluator]
        planes = torch.from_numpy(content.planes).to(evaluator.whole.device)
        evaluator.margin = content.margin
        divided = self._systems[number] = evaluator.part(number, content, planes)
        divided.divide_()

    def part(self, number: int) -> "DividedPart":
        """What there is of a system that is divided."""
        divided = self._systems[number]
        (evaluator,) = [one for one in self._evaluators.values() if one.has(divided)]
        return DividedPart(evaluator, divided)
