"""Answers that take long, kept part by part."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically


class Parts:
    """Parts of the answer, each kept in a file as soon as it is known."""

    def __init__(self, options: argparse.Namespace) -> None:
        free = ("state", "ase", "frames", "picture", "json", "device")
        self._path = options.state
        self._asked = {name: one for name, one in vars(options).items() if name not in free}
        self._found: dict[str, Any] = {}
        if self._path is not None and self._path.exists():
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["asked"] != self._asked:
                raise InputError(
                    f"{self._path} was made with {kept['asked']}; give these options again."
                )
            self._found = kept["found"]

    def get(self, name: str, find: Callable[[], Any]) -> Any:
        """The part of that name; `find` makes it of lists and numbers where it is not known."""
        if name not in self._found:
            begin = time.perf_counter()
            self._found[name] = find()
            taken = time.perf_counter() - begin
            print(f"{name}: {taken:.1f} s", file=sys.stderr, flush=True)
            if self._path is not None:
                text = json.dumps({"asked": self._asked, "found": self._found})
                write_atomically(self._path, lambda path: path.write_text(text, encoding="utf-8"))
        return self._found[name]
