"""Flags of torch that belong to the process, and types and modes of the caller."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from network_cases import NETWORKS
from random_networks import TENSORNET, crystal, energy_of, evaluated, lists_for, network
from torch_flags import SETTINGS, common_flag, flags_set, read_flags

from mdgraph.evaluators import AutogradEvaluator
from mdgraph.neighbors import NeighborList
from mdgraph.precision import full_float32
from mdgraph.state import State


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_flags_are_neither_inherited_nor_changed(name: str, device: str) -> None:
    """In single precision, where positions, cells and features all pass through products."""
    potential = network(**TENSORNET | {"channels": 32}).at_precision(torch.float32).to(device)
    evaluator = AutogradEvaluator(potential)
    system = crystal(12)
    results = []
    for setting in ("nothing", name):
        with flags_set(setting):
            before = read_flags()
            state = State([system], device, torch.float32)
            lists = [NeighborList(state, cutoff, 0.5) for cutoff in evaluator.cutoffs]
            state.positions += 0.3
            for one in lists:
                one.update_(state.positions, state.cell)
            evaluator.evaluate_(state, lists)
            assert read_flags() == before
        results.append((state.energies, state.forces, state.virial))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", SETTINGS)
def test_products_are_pinned_inside_and_flags_restored_after_an_error(name: str) -> None:

    @full_float32()
    def fail() -> None:
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        raise ZeroDivisionError

    with flags_set(name):
        before = read_flags()
        with pytest.raises(ZeroDivisionError):
            fail()
        assert read_flags() == before


def test_flags_that_follow_the_common_one_still_do_afterwards() -> None:
    with flags_set("common tf32"):
        with full_float32():
            pass
        common_flag("ieee")
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"


@contextmanager
def default_type(kind: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def callers() -> dict[str, Any]:
    return {
        "no_grad": torch.no_grad(),
        "inference_mode": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "default float64": default_type(torch.float64),
        "default bfloat16": default_type(torch.bfloat16),
    }


@pytest.mark.parametrize("name", callers())
def test_the_mode_of_the_caller_does_not_matter(name: str) -> None:
    settings = NETWORKS["TensorNet2, everything"]
    potential, system = network(**settings), crystal(charge=1.0)
    expected = evaluated(potential, system, kind=torch.float32)
    state = State([system])
    evaluator = AutogradEvaluator(potential.at_precision(torch.float32))
    lists = lists_for(state, potential)
    with callers()[name]:
        for one in lists:
            one.update_(state.positions, state.cell)
        evaluator.evaluate_(state, lists)
    for attribute in ("energies", "forces", "energy", "virial"):
        assert torch.equal(getattr(state, attribute), getattr(expected, attribute))


def test_a_potential_built_under_another_default_type_is_the_same() -> None:
    system = crystal(charge=1.0)
    for settings in (NETWORKS["TensorNet2, everything"], NETWORKS["spherical Bessel"]):
        weights = network(**settings).state_dict()
        energies = []
        for kind in (torch.float32, torch.float64, torch.bfloat16):
            with default_type(kind):
                potential = network(**settings)
                potential.load_state_dict(weights)
                energies.append(energy_of(potential, system))
        assert torch.equal(energies[0], energies[1])
        assert torch.equal(energies[0], energies[2])
