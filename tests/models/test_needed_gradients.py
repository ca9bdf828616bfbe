"""Backward passes take the gradients that somebody asks for, and do nothing for the others."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from feature_cases import CASES, PRODUCTS, X, Y, random
from random_networks import TENSORNET, TENSORNET2, atoms_of, crystal, lists_for, molecule, network
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from undirected_pairs import listed

from mdgraph.gpu import launch
from mdgraph.gpu.launch import needed_gradients
from mdgraph.models.ops.features import update_features
from mdgraph.models.ops.messages import message, undirected_message
from mdgraph.state import State

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_, PAIRS = listed([crystal(2)], 4.8, DEVICE)
SLOTS = PAIRS.index.shape[1]
assert PAIRS.undirected is not None
UNDIRECTED = len(PAIRS.undirected.one)


class Operations(TorchDispatchMode):
    """Counts what torch does, and with it the kernels: each needs room for what it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        self.counts[str(operation)] += 1
        return operation(*given, **(named or {}))


def operations_of_slopes(value: Tensor, by: Sequence[Tensor]) -> Counter[str]:
    # A thread of its own would not be counted.
    with torch.autograd.set_multithreading_enabled(False), Operations() as found:
        torch.autograd.grad(value, by, retain_graph=True)
    assert found.counts
    return found.counts


def use_kernels(monkeypatch: pytest.MonkeyPatch, use: bool) -> None:
    """On a GPU where there is one, else in Triton's interpreter."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mdgraph.") and hasattr(module, "has_kernels"):
            monkeypatch.setattr(module, "has_kernels", lambda x: use)


OPERATIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "weighed": (CASES["weighed"][0], CASES["weighed"][2]),
    "mixed": (CASES["mixed"][0], CASES["mixed"][2]),
    "product": (PRODUCTS["product5"], (X, Y)),
    "updated": (lambda x, change: update_features(x, change, None), (X, Y)),
    "message": (
        lambda weights, features: message([weights], features, PAIRS),
        (random(2, SLOTS, 3, 2, seed=20), random(2, 9, 2, seed=21)),
    ),
    "undirected message": (
        lambda weights, features: undirected_message(weights, features, PAIRS),
        (random(UNDIRECTED, 3, 2, seed=22), random(2, 9, 2, seed=23)),
    ),
}


@pytest.mark.parametrize("computed", [False, True], ids=["leaves", "computed"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_unneeded_gradients_cost_nothing(
    name: str, computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two derivatives by one input are as much work whether the others ask for theirs or not."""
    use_kernels(monkeypatch, name == "updated")
    function, values = OPERATIONS[name]
    for place in range(len(values)):
        found = []
        for others in (False, False, True):  # the first makes what is made once
            held = [
                value.to(DEVICE).clone().requires_grad_(others or number == place)
                for number, value in enumerate(values)
            ]
            held = [value * 1.0 for value in held] if computed else held
            total = function(*held).sin().sum()
            (slope,) = torch.autograd.grad(total, held[place], create_graph=True)
            bent = slope.sin().sum()
            found.append([operations_of_slopes(one, [held[place]]) for one in (total, bent)])
        assert found[1] == found[2]


@pytest.mark.parametrize(
    ("settings", "use"),
    [(TENSORNET, False), (TENSORNET | {"layers": 1}, True), (TENSORNET2, False)],
    ids=["TensorNet", "kernels", "TensorNet2"],
)
def test_forces_cost_as_much_with_weights_that_are_trained_as_with_frozen_ones(
    settings: dict[str, Any], use: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernels(monkeypatch, use)
    potential = network(**settings | {"channels": 3}).to(DEVICE)
    if use:
        state, one = listed([molecule(2)], potential.cutoffs[0], DEVICE)
        pairs = (one,)
    else:
        state = State([molecule(3)], DEVICE)
        lists = lists_for(state, potential)
        pairs = tuple(one.pairs(state.positions, state.cell) for one in lists)
    leaves = [vectors for one in pairs for vectors in one.vectors]
    found = []
    for trained in (False, False, True):
        energies = potential.requires_grad_(trained)(atoms_of(state), pairs)
        found.append(operations_of_slopes(energies.sum(), leaves))
    assert found[1] == found[2]


class Weighted(torch.autograd.Function):
    """x w + b, which notes whose gradients are computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ran: list[str]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ran = ran
        return x * weight + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), gradient = ctx.saved_tensors, gradients[0]

        def noted(name: str, value: Tensor) -> Tensor:
            ctx.ran.append(name)
            return value

        found = needed_gradients(
            ctx,
            lambda: noted("x", gradient * weight),
            lambda: noted("weight", gradient * x),
            lambda: noted("bias", gradient),
        )
        return *found, None


class TestAsked:
    """Leaves, values that were computed, and one that is frozen, however gradients are taken."""

    def weighted(self) -> tuple[Tensor, dict[str, Tensor], list[str]]:
        names: list[str] = []
        leaves = {name: torch.tensor(3.0, requires_grad=True) for name in ("x", "weight")}
        bias = torch.tensor(5.0)
        result = Weighted.apply(leaves["x"].square(), leaves["weight"], bias, names)
        return result, leaves, names

    @pytest.mark.parametrize(
        ("by", "expected"), [("x", [18.0]), ("weight", [9.0]), ("x weight", [18.0, 9.0])]
    )
    def test_runs_the_ways_to_those_who_asked(self, by: str, expected: list[float]) -> None:
        result, leaves, ran = self.weighted()
        slopes = torch.autograd.grad(result, [leaves[name] for name in by.split()])
        assert ran == by.split()
        assert [float(slope) for slope in slopes] == expected

    def test_runs_the_ways_to_all_leaves_that_ask_in_a_backward_of_everything(self) -> None:
        result, leaves, ran = self.weighted()
        result.backward()
        assert ran == ["x", "weight"]
        assert [float(leaf.grad) for leaf in leaves.values()] == [18.0, 9.0]

    def test_runs_the_ways_to_the_inputs_of_a_backward(self) -> None:
        result, leaves, ran = self.weighted()
        result.backward(inputs=[leaves["weight"]])
        assert ran == ["weight"]
        assert leaves["x"].grad is None

    def test_without_torchs_answer_every_input_with_a_gradient_counts_as_asked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launch, "_WILL_RUN", None)
        result, leaves, ran = self.weighted()
        (slope,) = torch.autograd.grad(result, leaves["x"])
        assert ran == ["x", "weight"]
        assert float(slope) == 18.0

    def test_this_torch_answers(self) -> None:
        """Else kernels run for nothing, and no other test of this room could notice."""
        assert launch._WILL_RUN is not None
