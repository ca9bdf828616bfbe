"""Places in the repository."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BENCHMARKS: Final = ROOT / "benchmarks"
TESTS: Final = ROOT / "tests"
SUPPORT: Final = TESTS / "support"
