"""The compiled D3(BJ) has the numbers of the reference, for any batch and number of threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cuda_water import liquid

from mdgraph.engine import Calculation, Simulation, VelocityVerlet
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.fused import d3 as blocked
from mdgraph.fused.cpu.d3 import FusedD3
from mdgraph.fused.d3 import BlockedD3
from mdgraph.fused.evaluator import chosen_evaluator
from mdgraph.models import D3Potential, d3_config
from mdgraph.precision import precision_named
from mdgraph.state import BatchCapacity
from mdgraph.system import System

NAMES = ("energies", "energy", "forces", "virial")


def mixture(seed: int, pbc: tuple[bool, bool, bool] = (True,) * 3, atoms: int = 8) -> System:
    """Atoms of several elements, some nearly bonded, in a cell shorter than the cutoffs."""
    rng = np.random.default_rng(seed)
    grid = 2.1 * np.stack(np.meshgrid(*[np.arange(2.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cell = np.array([[4.6, 0.0, 0.0], [0.5, 4.8, 0.0], [-0.3, 0.4, 5.0]])
    cell[~np.array(pbc)] = 0.0
    numbers = rng.choice([1, 6, 8, 55], size=8)[:atoms]
    return System(numbers, (grid + 0.4 * rng.normal(size=(8, 3)))[:atoms], cell, pbc)


@pytest.fixture(params=[False, True], ids=["pairs", "triples"])
def potential(request: pytest.FixtureRequest) -> D3Potential:
    return D3Potential(
        d3_config(
            "pbe0", 7.0, coordination_cutoff=5.0, three_body=request.param, three_body_cutoff=5.5
        )
    )


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("pbc", [(True,) * 3, (True, False, True), (False,) * 3])
@pytest.mark.parametrize("precision", ["mixed", "single"])
def test_it_is_the_reference(
    potential: D3Potential, pbc: tuple[bool, bool, bool], precision: str
) -> None:
    systems = [mixture(seed, pbc) for seed in range(3)]
    states = []
    for evaluator in ("reference", "auto"):
        at = Calculation(
            systems, potential, device="cpu", precision=precision, evaluator=evaluator, skin=0.2
        )
        at.compute()
        states.append(at.state)
        expected = AutogradEvaluator if evaluator == "reference" else FusedD3
        assert isinstance(at.evaluator, expected)
    tolerance = 1e-12 if precision == "mixed" else 1e-6
    for name in NAMES:
        torch.testing.assert_close(
            *(getattr(state, name) for state in states), rtol=tolerance, atol=tolerance
        )
    assert float(states[0].energy.abs().min()) > 0.1


def test_bits_do_not_depend_on_threads_or_on_what_was_there(
    potential: D3Potential, restored_threads: None
) -> None:
    results = []
    at = Calculation([mixture(0)], potential, device="cpu")
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        for name in NAMES:
            getattr(at.state, name).fill_(np.nan)
        at.compute()
        results.append({name: getattr(at.state, name).clone() for name in NAMES})
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in NAMES)


def test_other_systems_take_the_places_of_the_first(potential: D3Potential) -> None:
    room = BatchCapacity(8, (1, 6, 8, 55))
    at = Calculation([mixture(0, atoms=6), mixture(1)], potential, device="cpu", room=room)
    at.compute()
    at.assign_([mixture(2), mixture(3, atoms=6)])
    at.compute()
    new = Calculation([mixture(2), mixture(3, atoms=6)], potential, device="cpu")
    new.compute()
    for name in NAMES:
        torch.testing.assert_close(getattr(at.state, name), getattr(new.state, name))


@pytest.mark.parametrize("pbc", [(True,) * 3, (True, False, True), (False,) * 3])
@pytest.mark.parametrize("precision", ["mixed", "single"])
def test_blocks_of_torch_operations_are_the_reference(
    potential: D3Potential,
    pbc: tuple[bool, bool, bool],
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked, "MOST_TRIPLES", 2**16)  # in parts
    systems = [mixture(seed, pbc) for seed in range(3)]
    states = []
    for evaluator in (BlockedD3(potential, precision), chosen(potential, "double", precision)):
        at = Calculation(systems, evaluator, device="cpu", precision=precision, skin=0.2)
        at.compute()
        states.append(at.state)
    tolerance = 1e-12 if precision == "mixed" else 1e-5
    for name in NAMES:
        torch.testing.assert_close(
            *(getattr(state, name) for state in states), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    ("pbc", "precision", "coordination", "triples"),
    [
        ((True,) * 3, "double", 5.0, 0.0),
        ((True, False, True), "double", 7.0, 0.0),
        ((False,) * 3, "mixed", 5.0, 0.0),
        ((True,) * 3, "mixed", 7.0, 0.0),
        ((True, False, True), "single", 5.0, 0.0),
        ((True,) * 3, "double", 5.0, 4.2),
        ((False,) * 3, "double", 5.0, 7.0),
        ((True, False, True), "mixed", 5.0, 4.2),
    ],
)
def test_kernels_of_triton_are_the_compiled_ones(
    pbc: tuple[bool, bool, bool], precision: str, coordination: float, triples: float
) -> None:
    """On CUDA, or by the interpreter; pairs are in float64 with `double`, else in float32."""
    pytest.importorskip("triton")
    from mdgraph.fused.cuda.d3 import KernelD3

    three = {"three_body": triples > 0.0, "three_body_cutoff": triples or None}
    potential = D3Potential(d3_config("pbe0", 7.0, coordination_cutoff=coordination, **three))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    systems = [mixture(0, pbc), mixture(1, pbc, atoms=5)]
    states = []
    for evaluator in (KernelD3(potential, precision, device), FusedD3(potential, precision)):
        at = Calculation(systems, evaluator, device=evaluator.device, precision=precision, skin=0.3)
        for name in NAMES:
            getattr(at.state, name).fill_(np.nan)
        at.compute()
        states.append(at.state)
    tolerance = {"double": 1e-12, "mixed": 2e-6, "single": 1e-5}[precision]
    for name in NAMES:
        own, other = (getattr(state, name).cpu() for state in states)
        scale = float(other.abs().max())
        torch.testing.assert_close(own, other, rtol=0.0, atol=tolerance * scale)
    forces = states[0].forces.cpu().double()
    assert float(forces[:8].sum(0).abs().max()) < 4.0 * tolerance * float(forces.abs().max())


@pytest.mark.gpu
@pytest.mark.parametrize("triples", [False, True])
@pytest.mark.parametrize("precision", ["double", "mixed", "single"])
def test_kernels_on_cuda_are_those_of_the_cpu(precision: str, triples: bool) -> None:
    from mdgraph.fused.cuda.d3 import KernelD3

    potential = D3Potential(d3_config("pbe0", 12.0, three_body=triples, three_body_cutoff=7.0))
    systems = [liquid(300), liquid(20, seed=2)]
    states = []
    for evaluator in (KernelD3(potential, precision, "cuda"), FusedD3(potential, precision)):
        at = Calculation(systems, evaluator, device=evaluator.device, precision=precision)
        at.compute()
        states.append(at.state)
    tolerance = {"double": 1e-12, "mixed": 1e-6, "single": 1e-5}[precision]
    for name in NAMES:
        own, other = (getattr(state, name).cpu() for state in states)
        torch.testing.assert_close(own, other, rtol=0.0, atol=tolerance * float(other.abs().max()))


@pytest.mark.gpu
def test_one_atom_has_no_energy_on_cuda() -> None:
    from mdgraph.fused.cuda.d3 import KernelD3

    potential = D3Potential(d3_config("pbe0", 12.0, three_body=True, three_body_cutoff=7.0))
    atom = System(numbers=[8], positions=[[0.0, 0.0, 0.0]])
    at = Calculation([atom], KernelD3(potential, "mixed", "cuda"), device="cuda")
    at.compute()
    assert float(at.state.energy) == 0.0


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["kernels", "blocks", "triples"])
def test_a_graph_gives_the_bits_of_eager_steps(kind: str) -> None:
    from mdgraph.fused.cuda.d3 import KernelD3

    potential = D3Potential(
        d3_config("pbe0", 9.0, three_body=kind != "kernels", three_body_cutoff=4.0)
    )
    made = BlockedD3 if kind == "blocks" else KernelD3
    runs = [
        Simulation(
            liquid(20),
            made(potential, "mixed", "cuda"),
            VelocityVerlet(0.5),
            device="cuda",
            seed=5,
            temperature=300.0,
            maximum_temperature=float("inf"),
            graph=graph,
            skin=0.3,
        )
        for graph in ("on", "off")
    ]
    for run in runs:
        run.run(60)
    one, other = (run.state.tensors() for run in runs)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def chosen(potential: D3Potential, form: str, precision: str) -> Evaluator:
    """The reference, as of `double`, or the fast evaluator."""
    name = "reference" if form == "double" else "auto"
    return chosen_evaluator(potential, precision_named(precision), torch.device("cpu"), name)


def test_double_takes_the_reference_and_others_what_suits_the_device(
    potential: D3Potential,
) -> None:
    cpu, meta = torch.device("cpu"), torch.device("meta")
    mixed = precision_named("mixed")
    assert isinstance(
        chosen_evaluator(potential, precision_named("double"), cpu), AutogradEvaluator
    )
    assert isinstance(chosen_evaluator(potential, mixed, cpu), FusedD3)
    assert isinstance(chosen_evaluator(potential, mixed, meta), BlockedD3)
