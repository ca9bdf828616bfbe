"""Old names of modules still import, and say where their contents are."""

import importlib
import sys
from typing import Any

import pytest
from prepared import ended

from mdgraph import engine
from mdgraph.moved import MOVED, STORED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_module_name_gives_the_new_module(
    old: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    new = importlib.import_module(MOVED[old])
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.MonkeyPatch.context() as context:
        context.setattr("warnings.filters", [])
        module = importlib.import_module(old)
    monkeypatch.delitem(sys.modules, old)
    names = [
        name
        for name, value in vars(new).items()
        if getattr(value, "__module__", "") == new.__name__
    ]
    assert names
    assert all(getattr(module, name) is getattr(new, name) for name in names if name[0] != "_")
    messages = [str(warning.message) for warning in recwarn]
    assert messages == (
        []
        if old in STORED
        else [f"{old} is now {MOVED[old]}; the old name goes with release 0.3.0."]
    )


def test_the_documented_imports_of_0_1_0_work(processes: Any) -> None:
    code = """
from mdgraph.analysis.recorded import recorded_figure
from mdgraph.engine.ranks import Ranks
from mdgraph.engine.replica_exchange import ReplicaExchange
from mdgraph.engine.replicas import replica_simulation
from mdgraph.io.atoms import from_ase
"""
    done = ended(processes, ["-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("FutureWarning") == 4


@pytest.mark.parametrize("old", sorted(engine.RENAMED))
def test_an_old_name_of_a_class_gives_the_new_one(old: str) -> None:
    new = engine.RENAMED[old]
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        assert getattr(engine, old) is getattr(engine, new)
