"""Fixtures and settings for all tests."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("MDGRAPH_SHARED", ROOT.parent / "shared"))

# The same cases in every run; the suite's own time limit bounds each test.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def _shared(name: str) -> Path:
    """A folder of data too large to travel with the source.

    Whoever has none of it skips the tests that need it. In continuous integration a part
    that is missing fails them instead, so that no check is lost unseen.
    """
    folder = SHARED / name
    if folder.is_dir():
        return folder
    reason = f"no '{name}' folder in {SHARED}; set MDGRAPH_SHARED to where it lies"
    if os.environ.get("CI") and SHARED.is_dir():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """Published checkpoints and the numbers they must give."""
    return _shared("reference")


@pytest.fixture(scope="session")
def datasets_folder() -> Path:
    """Public training sets."""
    return _shared("datasets")


@pytest.fixture(scope="session")
def structures_folder() -> Path:
    """Structure files as users have them."""
    return _shared("structures")
