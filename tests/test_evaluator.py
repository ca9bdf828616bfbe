"""What the energy promises: its derivatives, its symmetries, its precision, its smoothness."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from ase_pairs import pairs_by_ase
from numpy.typing import NDArray
from random_networks import (
    TENSORNET,
    TENSORNET2,
    atoms_of,
    crystal,
    energy_of,
    evaluated,
    lists_for,
    molecule,
    network,
    spread_atoms,
)
from torch import Tensor

from mdgraph.evaluators import AutogradEvaluator
from mdgraph.models import TensorNetPotential
from mdgraph.models.activations import ACTIVATIONS
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.pairs import forces_and_virials
from mdgraph.precision import full_float32
from mdgraph.state import State
from mdgraph.system import System

CHARGED = TENSORNET | {"charge_factor": True}
COULOMB = TENSORNET2 | {"coulomb": {"cutoff": 5.1}}
ALL_PAIRS = TENSORNET2 | {"coulomb": {}}

BASES = {
    "expnorm": {"kind": "expnorm", "number": 6},
    "gaussian": {"kind": "gaussian", "number": 6},
    "smooth Bessel": {"kind": "smooth_bessel", "number": 3},
    "spherical Bessel": {"kind": "spherical_bessel", "number": 6, "orders": 3},
}
REPULSIONS = ("torchmdnet_prior", "torchmdnet_network", "matgl")

NETWORKS: dict[str, dict[str, Any]] = {
    "O(3)": TENSORNET,
    "SO(3)": TENSORNET | {"group": "SO(3)"},
    "SO(3), to neighbor": TENSORNET | {"group": "SO(3)", "edge_direction": "to_neighbor"},
    "no self interaction": TENSORNET | {"self_interaction": False},
    "lower cutoff": TENSORNET | {"cutoff_lower": 1.1},
    "no layers": TENSORNET | {"layers": 0},
    "charge factor": CHARGED,
    "charge factor, SO(3)": CHARGED | {"group": "SO(3)"},
    "gated": TENSORNET | {"readout": {"kind": "gated", "hidden": (6, 5)}},
    "no readout activation": TENSORNET | {"readout_activation": False},
    **{name: TENSORNET | {"activation": name} for name in ACTIVATIONS if name != "silu"},
    **{name: TENSORNET | {"radial_basis": basis} for name, basis in BASES.items()},
    **{name: TENSORNET | {"repulsion": ({"kind": name, "cutoff": 3.0},)} for name in REPULSIONS},
    "far repulsion": TENSORNET | {"repulsion": ({"kind": "torchmdnet_prior", "cutoff": 4.3},)},
    "TensorNet2": TENSORNET2,
    "TensorNet2, SO(3)": TENSORNET2 | {"group": "SO(3)", "self_interaction": False},
    "TensorNet2, lower cutoff": TENSORNET2 | {"cutoff_lower": 1.1},
    "TensorNet2, smooth Bessel": TENSORNET2 | {"radial_basis": BASES["smooth Bessel"]},
    "TensorNet2, gated": TENSORNET2 | {"readout": {"kind": "gated", "hidden": (6,)}},
    "TensorNet2, Coulomb": COULOMB,
    "TensorNet2, all pairs": ALL_PAIRS,
    "TensorNet2, everything": COULOMB
    | {"repulsion": [{"kind": kind, "cutoff": 3.0} for kind in REPULSIONS]},
}
SOME = {
    name: NETWORKS[name]
    for name in ("O(3)", "SO(3)", "charge factor", "gated", "TensorNet2, everything")
}


STEP = 3e-4
"""A, of numerical differences."""

ENDS = (1.1, 3.0, 3.4, 4.3, 5.1)
"""A, where windows end above."""


@cache
def clear_of_ends(make: Callable[..., System], atoms: int, charge: float, pbc: Any) -> System:
    """A system none of whose pairs crosses the end of a window within a few steps."""
    for seed in range(200):
        system = make(atoms, charge, seed).replace(pbc=pbc)
        pairs = np.array(list(pairs_by_ase(system, max(ENDS) + 1.0).values()))
        distances = np.linalg.norm(pairs, axis=1)
        if all(np.abs(distances - end).min() > 10 * STEP for end in ENDS):
            return system
    raise AssertionError("no such system")


def systems_for(settings: dict[str, Any]) -> list[System]:
    """A charged molecule and, where the Coulomb energy allows it, a charged crystal."""
    one = clear_of_ends(molecule, 7, -1.0, False)
    if settings.get("coulomb") == {}:
        return [one, clear_of_ends(molecule, 9, 2.0, False)]
    return [one, clear_of_ends(crystal, 6, 1.0, True)]


# Derivatives


def slope(energy: Any) -> float:
    """Central difference of fourth order."""
    near = energy(STEP) - energy(-STEP)
    far = energy(2 * STEP) - energy(-2 * STEP)
    return (8.0 * near - far) / (12.0 * STEP)


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_forces_and_virial_are_differences_of_the_energy(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    rng = np.random.default_rng(21)
    for system in systems_for(settings):
        state = evaluated(potential, system)
        forces, virial = state.forces.numpy(), state.virial[0].numpy()
        assert np.abs(forces).max() > 1e-3
        # A random direction has a part along every component.
        direction = rng.normal(size=forces.shape)

        def along(step: float, system: System = system, way: Any = direction) -> float:
            moved = system.replace(positions=system.positions + step * way)
            return float(energy_of(potential, moved))

        scale = np.linalg.norm(forces) * np.linalg.norm(direction)
        assert abs(slope(along) + (forces * direction).sum()) < 1e-9 * scale

        # Any deformation, turning included: the virial is that of the whole gradient.
        strain = rng.normal(size=(3, 3)) / 3

        def strained(step: float, system: System = system, way: Any = strain) -> float:
            deformation = np.eye(3) + step * way
            positions, cell = system.positions @ deformation, system.cell @ deformation
            return float(energy_of(potential, system.replace(positions=positions, cell=cell)))

        scale = np.linalg.norm(virial) * np.linalg.norm(strain)
        assert abs(slope(strained) + (virial * strain).sum()) < 1e-9 * scale


@pytest.mark.parametrize("pbc", [(True, True, False), (False, True, False)])
def test_derivatives_along_partly_periodic_directions(pbc: tuple[bool, bool, bool]) -> None:
    potential = network(**COULOMB)
    system = clear_of_ends(crystal, 6, 1.0, pbc)
    state = evaluated(potential, system)
    rng = np.random.default_rng(22)
    direction = rng.normal(size=state.forces.shape)
    strain = rng.normal(size=(3, 3)) / 3

    def energy(step: float) -> float:
        deformation = np.eye(3) + step * strain
        positions = (system.positions + step * direction) @ deformation
        moved = system.replace(positions=positions, cell=system.cell @ deformation)
        return float(energy_of(potential, moved))

    expected = -(state.forces.numpy() * direction).sum() - (state.virial[0].numpy() * strain).sum()
    assert slope(energy) == pytest.approx(expected, rel=1e-7)


def force_loss(potential: TensorNetPotential, state: State, graph: bool) -> Tensor:
    """A loss of forces and virials as training has it."""
    lists = lists_for(state, potential)
    pairs = tuple(one.pairs(state.positions, state.cell) for one in lists)
    energies = potential(atoms_of(state), pairs)
    leaves = [vectors for one in pairs for vectors in one.vectors]
    gradients = torch.autograd.grad(energies.sum(), leaves, create_graph=graph)
    loss = energies.square().sum()
    start = 0
    for one in pairs:
        stop = start + len(one.blocks)
        forces, virials = forces_and_virials(one, gradients[start:stop])
        loss = loss + forces.square().sum() + state.grouping.sum(virials).square().sum()
        start = stop
    return loss


@pytest.mark.parametrize(
    "name", ["O(3)", "SO(3)", "gated", "spherical Bessel", "TensorNet2, everything"]
)
def test_a_loss_of_forces_has_the_gradient_of_its_differences(name: str) -> None:
    potential = network(**NETWORKS[name])
    state = State([molecule(5, charge=1.0), crystal(4)])
    loss = force_loss(potential, state, graph=True)
    parameters = list(potential.parameters())
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    generator = torch.Generator().manual_seed(23)
    start = [parameter.detach().clone() for parameter in parameters]
    for _ in range(2):
        ways = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]

        def along(step: float, ways: list[Tensor] = ways) -> float:
            with torch.no_grad():
                for parameter, value, way in zip(parameters, start, ways, strict=True):
                    parameter.copy_(value + 0.1 * step * way)
            return float(force_loss(potential, state, graph=False).detach())

        pieces = zip(gradients, ways, strict=True)
        expected = 0.1 * sum(float((g * way).sum()) for g, way in pieces)
        assert slope(along) == pytest.approx(expected, rel=1e-6)
        along(0.0)


# Symmetries


def random_rotation(seed: int, sign: float = 1.0) -> NDArray[np.float64]:
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return matrix * np.sign(np.linalg.det(matrix)) * sign


def close(one: Tensor, other: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_rotations_turn_forces_and_virial_and_leave_the_energy(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    signs = (1.0,) if settings.get("group") == "SO(3)" else (1.0, -1.0)
    for number, system in enumerate(systems_for(settings)):
        state = evaluated(potential, system)
        for sign in signs:
            turn = random_rotation(number, sign)
            turned = evaluated(
                potential,
                system.replace(positions=system.positions @ turn, cell=system.cell @ turn),
            )
            matrix = torch.from_numpy(turn)
            close(turned.energies, state.energies)
            close(turned.forces, state.forces @ matrix)
            close(turned.virial, matrix.T @ state.virial @ matrix)


def test_only_the_smaller_group_tells_mirror_images_apart() -> None:
    system = molecule()
    mirrored = system.replace(positions=system.positions * [1.0, 1.0, -1.0])
    for settings in (TENSORNET, TENSORNET2):
        same = network(**settings)
        assert float(energy_of(same, system) - energy_of(same, mirrored)) == pytest.approx(
            0.0, abs=1e-11
        )
        chiral = network(**settings | {"group": "SO(3)"})
        assert abs(float(energy_of(chiral, system) - energy_of(chiral, mirrored))) > 1e-6


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_translation_wrapping_and_order_of_atoms_do_not_matter(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    rng = np.random.default_rng(24)
    for system in systems_for(settings):
        state = evaluated(potential, system)
        close(state.forces.sum(0), torch.zeros(3, dtype=torch.float64))
        close(state.virial, state.virial.mT)
        leaps = rng.integers(-5, 5, system.positions.shape) * system.pbc
        order = rng.permutation(len(system))
        other = evaluated(
            potential,
            System(
                system.numbers[order],
                (system.positions + leaps @ system.cell + [12.0, -7.0, 3.3])[order],
                cell=system.cell,
                pbc=system.pbc,
                charge=system.charge,
            ),
        )
        close(other.energies, state.energies[order])
        close(other.forces, state.forces[order])
        close(other.virial, state.virial)


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_distant_copies_and_supercells_add_up(settings: dict[str, Any]) -> None:
    """Charges are shared out with a regularised division, which is extensive to about 1e-6."""
    potential = network(**settings)
    shift = float(potential.shift)
    tolerance = 1e-5 if settings["channels"] and "charge_channels" in settings else 1e-11
    one, far = molecule(), np.array([80.0, 0.0, 0.0])
    two = System(np.tile(one.numbers, 2), np.concatenate([one.positions, one.positions + far]))
    double = 2.0 * float(energy_of(potential, one)) - shift
    assert float(energy_of(potential, two)) == pytest.approx(double, rel=tolerance)

    cell = crystal()
    for axis in range(3):
        images = np.concatenate([cell.positions, cell.positions + cell.cell[axis]])
        stretch = np.where(np.arange(3) == axis, 2.0, 1.0)
        big = System(np.tile(cell.numbers, 2), images, cell=cell.cell * stretch[:, None], pbc=True)
        double = 2.0 * float(energy_of(potential, cell)) - shift
        assert float(energy_of(potential, big)) == pytest.approx(double, rel=tolerance)


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_a_batch_gives_what_each_system_gives_alone(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    slab = crystal(5, charge=-1.0, seed=3).replace(pbc=(True, True, False))
    systems = [crystal(charge=1.0), molecule(3), System([6], [[0.0, 0.0, 0.0]]), slab]
    systems += [molecule(9, charge=-2.0), crystal(2, seed=4)]
    together = evaluated(potential, *systems)
    start = 0
    for number, system in enumerate(systems):
        alone = evaluated(potential, system)
        stop = start + len(system)
        close(together.energies[start:stop], alone.energies)
        close(together.forces[start:stop], alone.forces)
        close(together.energy[number], alone.energy[0])
        close(together.virial[number], alone.virial[0])
        start = stop


def test_the_charge_matters_where_it_is_used_and_only_there() -> None:
    for settings, uses in (TENSORNET, False), (CHARGED, True), (TENSORNET2, True):
        potential = network(**settings)
        assert potential.uses_charge == uses
        neutral, charged = energy_of(potential, molecule(), molecule(charge=1.0))
        assert (abs(float(neutral - charged)) > 1e-6) == uses


def test_predicted_charges_add_up_to_the_charge_of_each_system() -> None:
    potential = network(**TENSORNET2)
    systems = [molecule(charge=1.0), crystal(), molecule(4, charge=-2.0)]
    state = State(systems)
    (neighbors,) = lists_for(state, potential)
    rows = potential.rows[state.elements]
    with torch.no_grad():
        _, charges = potential.network.with_charges(
            rows, atoms_of(state), neighbors.pairs(state.positions, state.cell)
        )
    total = state.grouping.sum(charges)
    expected = state.charge[:, None].expand_as(total)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-3)


# Precision


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_mixed_precision_is_close_to_double(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    systems = [one.replace(positions=one.positions + 500.0) for one in systems_for(settings)]
    exact = evaluated(potential, *systems)
    force = exact.forces.square().mean().sqrt()
    mixed = evaluated(potential, *systems, kind=torch.float32)
    assert mixed.forces.dtype == torch.float64
    assert (mixed.energies - exact.energies).abs().max() < 2e-6 * exact.energies.abs().max()
    assert (mixed.forces - exact.forces).abs().max() < 1e-4 * force
    assert (mixed.virial - exact.virial).abs().max() < 1e-4 * exact.virial.abs().max()


@pytest.mark.parametrize("settings", SOME.values(), ids=SOME)
def test_single_precision_is_close_to_double(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    systems = systems_for(settings)
    exact = evaluated(potential, *systems)
    force = exact.forces.square().mean().sqrt()
    single = evaluated(potential, *systems, kind=torch.float32, state_kind=torch.float32)
    assert single.forces.dtype == torch.float32
    assert (single.energies - exact.energies).abs().max() < 1e-5 * exact.energies.abs().max()
    assert (single.forces - exact.forces).abs().max() < 1e-3 * force


def test_large_references_are_added_in_double() -> None:
    potential = network(**TENSORNET)
    bare = evaluated(potential, molecule(), kind=torch.float32)
    potential.references -= 1e5
    large = evaluated(potential, molecule(), kind=torch.float32)
    torch.testing.assert_close(large.energies + 1e5, bare.energies, rtol=0, atol=1e-9)


# Flags of the process and of the caller


def old_flag(value: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = value


def new_flag(value: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = value


def common_flag(value: str) -> None:
    torch.backends.fp32_precision = value


def processor_flag(value: str) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = value


SETTINGS = {
    "nothing": lambda: None,
    "allow_tf32": lambda: old_flag(True),
    "no allow_tf32": lambda: old_flag(False),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "highest": lambda: torch.set_float32_matmul_precision("highest"),
    "tf32": lambda: new_flag("tf32"),
    "ieee": lambda: new_flag("ieee"),
    "common tf32": lambda: common_flag("tf32"),
    "processor bf16": lambda: processor_flag("bf16"),
}


def read_flags() -> dict[str, object]:
    """Every way to ask; torch refuses some after others were set, which must stay so too."""
    questions = {
        "old": torch.get_float32_matmul_precision,
        "older": lambda: torch.backends.cuda.matmul.allow_tf32,
        "new": lambda: torch.backends.cuda.matmul.fp32_precision,
        "processor": lambda: torch.backends.mkldnn.matmul.fp32_precision,
        "common": lambda: torch.backends.fp32_precision,
    }
    answers: dict[str, object] = {}
    for name, question in questions.items():
        try:
            answers[name] = question()
        except RuntimeError as refusal:
            answers[name] = str(refusal).partition(".")[0]
    return answers


@contextmanager
def flags_set(name: str) -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    for reset in (new_flag, processor_flag, common_flag):
        reset("none")
    try:
        SETTINGS[name]()
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        for reset in (new_flag, processor_flag, common_flag):
            reset("none")


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


# Buffers


def test_buffers_are_written_in_place_and_repeat_to_the_bit() -> None:
    potential = network(**NETWORKS["TensorNet2, everything"])
    state = State([crystal(charge=1.0), molecule()])
    evaluator = AutogradEvaluator(potential.at_precision(torch.float32))
    lists = lists_for(state, potential)
    names = ("energies", "forces", "energy", "virial", "positions", "cell")
    places = [getattr(state, name).data_ptr() for name in names]
    evaluator.evaluate_(state, lists)
    first = {name: getattr(state, name).clone() for name in names}
    for _ in range(2):
        evaluator.evaluate_(state, lists)
    assert [getattr(state, name).data_ptr() for name in names] == places
    for name in names:
        assert torch.equal(getattr(state, name), first[name])
        assert not getattr(state, name).requires_grad
    close(state.energy, state.grouping.sum(state.energies))


# Smoothness

WINDOWED = {name: settings for name, settings in NETWORKS.items() if settings.get("coulomb") != {}}


def far_end(settings: dict[str, Any]) -> float:
    coulomb = (settings.get("coulomb") or {}).get("cutoff", 0.0)
    repulsion = max((part["cutoff"] for part in settings.get("repulsion", ())), default=0.0)
    return max(settings["cutoff"], coulomb, repulsion)


def pair_apart(distance: float) -> System:
    way = np.array([0.48, -0.6, 0.64])
    return System([8, 1], [[0.0, 0.0, 0.0], list(distance * way)])


@pytest.mark.parametrize("settings", WINDOWED.values(), ids=WINDOWED)
def test_a_pair_at_its_cutoff_or_beyond_is_exactly_no_pair(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    end = far_end(settings)
    for kind in (torch.float64, torch.float32):
        copy = potential.at_precision(kind)
        alone = evaluated(copy, pair_apart(end + 30.0)).energies
        # With a skin the pair is in the list; without one it is not.
        for distance, skin in (end * (1 + 1e-15), 1.0), (end + 0.9, 1.0), (end + 0.2, 0.0):
            state = evaluated(copy, pair_apart(distance), skin=skin)
            assert torch.equal(state.energies, alone)
            assert (state.forces == 0.0).all()
            assert (state.virial == 0.0).all()


@pytest.mark.parametrize("settings", WINDOWED.values(), ids=WINDOWED)
def test_the_energy_is_smooth_where_pairs_enter_and_leave(settings: dict[str, Any]) -> None:
    """Across every end of a window in a crowd; the reaction field alone has a kinked end."""
    potential = network(**settings)
    crowd = spread_atoms(5, np.eye(3) * 2.6, False, seed=6)
    ends = {settings["cutoff"], settings.get("cutoff_lower", 0.0), far_end(settings)}
    ends |= {part["cutoff"] for part in settings.get("repulsion", ())}
    coulomb = (settings.get("coulomb") or {}).get("cutoff")
    for end in ends - {0.0}:
        away = crowd[0] + end * np.array([-0.48, -0.64, -0.6])
        away = crowd[0] + (away - crowd[0]) * end / np.linalg.norm(away - crowd[0])

        def at(step: float, away: Any = away) -> State:
            outward = (away - crowd[0]) / np.linalg.norm(away - crowd[0])
            positions = np.concatenate([crowd, [away + step * outward]])
            system = System([8, 1, 1, 6, 1, 1], positions, charge=1.0)
            return evaluated(potential, system)

        below, above = at(-1e-7), at(1e-7)
        force = float(below.forces.abs().max())
        assert abs(float(below.energy - above.energy)) < 1e-5 * (force + 1.0)
        if end != coulomb:
            assert (below.forces - above.forces).abs().max() < 1e-4 * (force + 1.0)
