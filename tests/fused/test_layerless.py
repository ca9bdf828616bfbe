"""Networks without layers, whose kernels between moments and their gradient are few.

Triton's interpreter runs the kernels where there is no CUDA device.
"""

from typing import Any

import pytest
import torch
from backends import CUDA, device_of
from random_networks import TENSORNET, crowd, crystal, evaluated, lists_for, molecule, network

from mdgraph.decomposition import DecomposedEvaluator
from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.fused.cuda import weights
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

NONE = TENSORNET | {"layers": 0, "channels": 16, "self_interaction": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "as shipped": NONE | {"channels": 32, "radial_basis": {"number": 12}},
    "odd widths": NONE | {"channels": 21, "readout": {"hidden": (19,)}, "self_interaction": True},
    "gated": NONE | {"readout": {"kind": "gated", "hidden": (6,)}},
    "other activations": NONE | {"activation": "tanh", "readout_activation": False},
}
"""The first has more functions than a block."""


def computed(
    settings: dict[str, Any], *systems: System, precision: str = "mixed", **of_lists: Any
) -> State:
    evaluator = FusedTensorNet(network(**settings), precision, device_of("triton"), "triton")
    state = State(systems, device_of("triton"))
    evaluator.evaluate_(state, lists_for(state, evaluator.potential, **of_lists))
    return state


@pytest.mark.parametrize("name", SETTINGS)
def test_few_kernels_agree_with_the_oracle_and_with_the_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS[name]
    for system in (crystal(4), crowd(19)) if CUDA or name == "odd widths" else (molecule(5),):
        exact = evaluated(network(**settings), system)
        one = computed(settings, system)
        with monkeypatch.context() as patch:
            patch.setattr(weights, "NARROW", 0)
            several = computed(settings, system)
        scale = float(exact.forces.square().mean().sqrt())
        for state in (one, several):
            error = (state.forces.cpu() - exact.forces).square().mean().sqrt()
            assert float(error) < 2e-5 * scale
            assert float((state.energies.cpu() - exact.energies).abs().max()) < 5e-6
            virial = (state.virial.cpu() - exact.virial).abs().max()
            assert float(virial) < 2e-5 * float(exact.virial.abs().max())
        assert float((one.forces - several.forces).abs().max()) < 1e-5 * scale


def test_bits_depend_on_no_capacity_skin_or_other_system() -> None:
    settings = SETTINGS["gated"]
    systems = crystal(40 if CUDA else 2), molecule(5)
    one = computed(settings, systems[0])
    both = computed(settings, *systems)
    # Long rows are looked at twice, by kernels of their own.
    longer = [computed(settings, systems[0], **more) for more in ({"capacity": 300}, {"skin": 0.7})]
    atoms = len(one.forces)
    for other in (*longer, both):
        assert torch.equal(one.forces, other.forces[:atoms])
        assert torch.equal(one.energies, other.energies[:atoms])
        assert torch.equal(one.virial[0], other.virial[0])
    alone = computed(settings, systems[1])
    assert torch.equal(alone.forces, both.forces[atoms:])


def test_forces_of_pairs_are_opposite() -> None:
    """To the bit, so their sum is that of float64's rounding."""
    state = computed(SETTINGS["odd widths"], crystal(40 if CUDA else 3))
    assert float(state.forces.abs().max()) > 1e-2
    assert float(state.forces.sum(0).abs().max()) < 1e-14 * len(state.forces) ** 0.5


def test_domains_have_the_forces_of_the_whole() -> None:
    evaluator = FusedTensorNet(network(**NONE), "mixed", device_of("triton"), "triton")
    system = crystal(24 if CUDA else 3)
    divided = DecomposedEvaluator(evaluator, len(system), BrickGrid((2, 1, 1)))
    states = [State([system], device_of("triton")) for _ in range(2)]
    for state, whole in zip(states, (divided, evaluator), strict=True):
        whole.evaluate_(state, lists_for(state, evaluator.potential))
    scale = states[1].forces.square().mean().sqrt()
    assert float((states[0].forces - states[1].forces).abs().max()) < 2e-6 * float(scale)
    torch.testing.assert_close(states[0].virial, states[1].virial, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        (SETTINGS["as shipped"], True),
        (SETTINGS["as shipped"] | {"channels": 33}, False),
        (SETTINGS["as shipped"] | {"readout": {"hidden": (33,)}}, False),
        (NONE | {"readout": {"hidden": (4, 5)}}, False),
        (NONE | {"layers": 1}, False),
        (NONE | {"architecture": "tensornet2", "charge_channels": 2}, False),
    ],
)
def test_other_networks_take_other_kernels(settings: dict[str, Any], taken: bool) -> None:
    evaluator = FusedTensorNet(network(**settings), "mixed", device_of("triton"), "triton")
    assert evaluator._network._model.layerless is taken  # type: ignore[attr-defined]


def test_reverse_slots_are_left_out_where_no_kernel_reads_them() -> None:
    """Forces that are read from slots which no build has filled would be wrong."""
    potential, device = network(**NONE), device_of("triton")
    evaluator = FusedTensorNet(potential, "mixed", device, "triton")
    assert evaluator.one_way == (0,)
    assert FusedTensorNet(network(**NONE | {"layers": 1}), "mixed", device, "triton").one_way == ()
    assert FusedTensorNet(potential, "mixed", "cpu", "compiled").one_way == ()
    whole, left_out = (State([crystal(3)], device) for _ in range(2))
    evaluator.evaluate_(whole, lists_for(whole, potential))
    item = NeighborList(left_out, potential.cutoffs[0])
    item.reverse.fill_(2**30)
    evaluator.evaluate_(left_out, [item])
    assert torch.equal(whole.forces, left_out.forces)


@pytest.mark.skipif(not CUDA, reason="the interpreter would take minutes")
@pytest.mark.parametrize("precision", ["mixed", "fast"])
def test_tiles_of_many_atoms_agree_with_the_oracle(precision: str) -> None:
    settings, system = SETTINGS["as shipped"], crowd(125)
    exact = evaluated(network(**settings), system)
    state = computed(settings, system, precision=precision)
    scale = float(exact.forces.square().mean().sqrt())
    error = (state.forces.cpu() - exact.forces).square().mean().sqrt()
    # `fast` errs by 2.24e-3 on a GPU and by less than 2e-3 in the interpreter.
    assert float(error) < (2e-5 if precision == "mixed" else 3e-3) * scale
