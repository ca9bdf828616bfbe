"""What may be handed over as a potential: evaluators keep their precision and device."""

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import openmm
import pytest
import torch
from random_networks import TENSORNET, crystal, molecule, network
from toys import HarmonicWells

from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

POTENTIAL = network(**TENSORNET | {"layers": 0})


@cache
def fused(precision: str) -> FusedTensorNet:
    return FusedTensorNet(POTENTIAL, precision)


@pytest.fixture
def given(request: pytest.FixtureRequest) -> Any:
    """A precision stands for the fused evaluator of it, which takes long to make."""
    return fused(request.param) if isinstance(request.param, str) else request.param


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            "mixed",
            {"precision": "double"},
            (
                "The FusedTensorNet was made for precision mixed, but double is asked for; "
                "ask for mixed, or give its potential."
            ),
        ),
        (
            "double",
            {},
            (
                "The FusedTensorNet was made for precision double, but mixed is asked for; "
                "ask for double, or give its potential."
            ),
        ),
        (
            "mixed",
            {"evaluator": "reference"},
            (
                "FusedTensorNet is an evaluator already and cannot become the evaluator reference; "
                "give its potential, or leave the name out."
            ),
        ),
        (
            AutogradEvaluator(POTENTIAL.at_precision(torch.float32)),
            {"precision": "double"},
            (
                "The evaluator's weights are float32, but precision double is asked for; "
                "ask for mixed, or give its potential as loaded."
            ),
        ),
        (
            SimpleNamespace(cutoffs=(), evaluate_=None, device=torch.device("cuda:1")),
            {},
            (
                "The SimpleNamespace was made on cuda:1, but cpu is asked for; ask for cuda:1, or "
                "give its potential."
            ),
        ),
        (
            openmm.System(),
            {},
            (
                "System is not a potential; give a path, the name of a shipped potential, a "
                "Potential or an Evaluator."
            ),
        ),
    ],
    indirect=["given"],
    ids=["precision", "default precision", "evaluator", "weights", "device", "no potential"],
)
def test_evaluators_that_do_not_match_the_options_are_refused(
    given: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        MDGraphCalculator(given, device="cpu", **options)
    assert str(caught.value) == message
    with pytest.raises(InputError):
        Calculation([molecule()], given, device="cpu", **options)


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ("mixed", "mixed"),
        ("double", "double"),
        (AutogradEvaluator(POTENTIAL), "double"),
        (AutogradEvaluator(POTENTIAL), "mixed"),
        (HarmonicWells(torch.zeros(6, 3), 1.0), "double"),
    ],
    indirect=["given"],
)
def test_evaluators_that_match_the_options_are_used_unchanged(given: Any, precision: str) -> None:
    at = Calculation([crystal()], given, device="cpu", precision=precision)
    assert at.evaluator is given


def test_a_potential_of_any_dtype_is_converted_to_the_precision() -> None:
    given: TensorNetPotential = POTENTIAL.at_precision(torch.float64)
    at = Calculation([molecule()], given, device="cpu", precision="double", evaluator="fused")
    assert isinstance(at.evaluator, FusedTensorNet)
    assert (at.evaluator.precision.name, at.evaluator.device.type) == ("double", "cpu")


def test_an_object_with_cutoffs_and_evaluate_runs_as_an_evaluator() -> None:
    class Still:
        cutoffs = (3.0,)

        def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
            state.energies.copy_(lists[0].count)
            state.energy.copy_(state.grouping.sum(state.energies))
            state.forces.zero_()
            state.virial.zero_()

    system = molecule()
    at = Calculation([system], Still(), device="cpu", precision="double")
    at.compute()
    apart = np.linalg.norm(system.positions[:, None] - system.positions, axis=-1)
    neighbors = int((apart < 3.0 + at.skin).sum()) - len(system)
    assert float(at.state.energy[0]) == neighbors > 0
    assert at.evaluator.species is None
    assert at.evaluator.uses_charge
    assert not at.evaluator.rounds
    assert at.list_of("network") is at.lists[0]


def test_a_potential_without_species_is_refused() -> None:
    class Nameless(torch.nn.Module):
        cutoffs = (3.0,)

    with pytest.raises(InputError, match="The potential Nameless has no species; give it species"):
        Calculation([molecule()], Nameless(), device="cpu")
