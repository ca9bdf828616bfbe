"""ExchangeRecord: what became of exchanges, from the places of replicas after each."""

from collections.abc import Sequence
from pathlib import Path

from mdgraph.io.log import read_log


def attempted_pairs(states: int, attempt: int) -> list[int]:
    """The lower place of each pair that an attempt is made for: even ones, odd ones in turn.

    Of two states, which have one pair, every attempt is made for that one.
    """
    return list(range(attempt % 2 if states > 2 else 0, states - 1, 2))


class ExchangeRecord:
    """Attempts and acceptances of each pair of neighbors, and round trips of each replica.

    Attributes:
        attempted: for each pair (n, n + 1) of the ladder, how often.
        accepted: how often of these.
        round_trips: of each replica, from the bottom of the ladder to its top and back.
    """

    def __init__(self, replicas: int, interval: int) -> None:
        """Empty.

        Args:
            replicas: how many.
            interval: steps from one exchange to the next.
        """
        self._interval = interval
        self.attempted = [0] * (replicas - 1)
        self.accepted = [0] * (replicas - 1)
        self.round_trips = [0] * replicas
        self._states: list[int] = []
        self._seen_bottom = [False] * replicas
        self._seen_top = [False] * replicas

    @classmethod
    def read(cls, path: str | Path, interval: int) -> "ExchangeRecord":
        """That of a log of exchanges, whose first row is the start.

        Raises:
            FileError: the file cannot be read or is no log.
        """
        table = read_log(path)
        steps = table.pop("step").tolist()
        rows = [[int(state) for state in row] for row in zip(*table.values(), strict=True)]
        record = cls(len(table), interval)
        for place, (step, row) in enumerate(zip(steps, rows, strict=True)):
            if place == 0:
                record.begin(row)
            else:
                record.add(step, row)
        return record

    def begin(self, states: Sequence[int]) -> None:
        """Takes the places from which replicas start."""
        self._states = list(states)
        self._visit()

    def add(self, step: int, states: Sequence[int]) -> None:
        """Takes the places after the exchanges of one step."""
        place = {state: replica for replica, state in enumerate(states)}
        for low in attempted_pairs(len(states), step // self._interval):
            self.attempted[low] += 1
            self.accepted[low] += self._states[place[low]] == low + 1
        self._states = list(states)
        self._visit()

    def _visit(self) -> None:
        last = len(self._states) - 1
        for replica, state in enumerate(self._states):
            if state == 0:
                self.round_trips[replica] += self._seen_top[replica]
                self._seen_bottom[replica], self._seen_top[replica] = True, False
            elif state == last:
                self._seen_top[replica] = self._seen_bottom[replica]

    def rates(self) -> list[float]:
        """Share of attempts that were accepted, of each pair; NaN where there were none."""
        return [
            done / tried if tried else float("nan")
            for done, tried in zip(self.accepted, self.attempted, strict=True)
        ]
