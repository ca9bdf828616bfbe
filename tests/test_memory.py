"""The memory that a run says it needs is what it then takes."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SMALL = ("ethanol-pbe, 9", "mixed, reference, 24")


def ratio(memory: ModuleType, name: str, reference: Path | None) -> float:
    cases = memory.cases([24, 192, 648, 3000, 24000], reference)
    (case,) = [one for one in cases if f"{one.name}, {len(one.atoms)}" == name]
    said, taken = memory.measured(case, "cpu")
    return said / taken


@pytest.mark.parametrize("name", SMALL)
def test_memory_is_announced_within_a_third(name: str, script: Callable[[str], ModuleType]) -> None:
    memory = script("memory")
    assert abs(ratio(memory, name, None) - 1.0) < memory.ALLOWED


@pytest.mark.slow
@pytest.mark.timeout(1800)  # ten minutes of two cores
def test_memory_of_all_cases_is_announced_within_a_third(
    script: Callable[[str], ModuleType], reference_folder: Path
) -> None:
    memory = script("memory")
    off = {}
    for case in memory.cases([24, 192, 648, 3000, 24000], reference_folder):
        said, taken = memory.measured(case, "cpu")
        if abs(said / taken - 1.0) > memory.ALLOWED:
            off[f"{case.name}, {len(case.atoms)}"] = (said, taken)
    assert off == {}


@pytest.mark.slow
def test_memory_includes_compiling(
    script: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    memory = script("memory")
    first, second = (ratio(memory, "ethanol-pbe, 9", None) for _ in range(2))
    assert abs(first - 1.0) < memory.ALLOWED
    assert abs(second - 1.0) < memory.ALLOWED
