"""The self-check on a GPU, where a run is larger than what the reference sees."""

import time
from typing import Any

import pytest
import torch
from random_networks import TENSORNET, TENSORNET2, network

from mdgraph.engine import Calculation
from mdgraph.fused.verification import self_check
from mdgraph.precision import PRECISIONS
from mdgraph.runs.bench import water

pytestmark = pytest.mark.gpu


CHARGED = TENSORNET2 | {"coulomb": {"cutoff": 6.0}}


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        (TENSORNET, "mixed"),
        (TENSORNET, "single"),
        (TENSORNET, "fast"),
        (CHARGED, "mixed"),
        (CHARGED, "single"),
        # `fast` errs by 5e-3 of these weights' forces, so their run is rightly refused.
    ],
)
def test_full_size_passes_in_a_few_seconds(settings: dict[str, Any], precision: str) -> None:
    potential = network(**settings)
    at = Calculation([water(12_000)], potential, device="cuda", precision=precision)
    at.compute()
    before = at.state.snapshot()
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = self_check(at.evaluator, at.state, at.lists, PRECISIONS[precision], seconds=0.0)
    # 5 s on a machine of its own, kernels compiled; other tests run beside this one.
    assert time.perf_counter() - start < 20.0
    assert found is not None
    assert found.how.startswith("in clusters")
    assert all(torch.equal(one, before[name]) for name, one in at.state.tensors().items())
