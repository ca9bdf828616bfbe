"""Checkpoints of TorchMD-Net: every layout gives the energies of the potential it came from."""

import argparse
import itertools
import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_files import ROWS, torchmdnet_content
from random_networks import TENSORNET, TENSORNET2, crystal, energy_of, molecule, network
from scipy.spatial.distance import pdist

from mdgraph import load
from mdgraph.checkpoints.torchmdnet import REPULSION
from mdgraph.errors import CheckpointError
from mdgraph.models import TensorNetPotential
from mdgraph.system import System

CHARGED = TENSORNET | {"charge_factor": True}
COULOMB = {"coulomb": {"cutoff": 6.0}}
ZBL = {"kind": "torchmdnet_prior", "cutoff": 3.0}
NETWORK_REPULSION = {"kind": "torchmdnet_network", "cutoff": 3.4}

POTENTIALS = {
    "O(3)": CHARGED,
    "SO(3)": CHARGED | {"group": "SO(3)"},
    "gauss and lower cutoff": CHARGED
    | {"radial_basis": {"kind": "gaussian", "number": 5}, "cutoff_lower": 0.9}
    | {"self_interaction": False},
    "no layers, deep head": CHARGED | {"layers": 0, "readout": {"hidden": (4, 5, 3)}},
    "ssp and ZBL": CHARGED | {"activation": "ssp_float32", "repulsion": [ZBL]},
    "TensorNet2": TENSORNET2 | COULOMB | {"repulsion": [NETWORK_REPULSION]},
    "TensorNet2, all pairs": TENSORNET2 | {"coulomb": {"cutoff": None}},
    "TensorNet2, SO(3), no Coulomb": TENSORNET2 | {"group": "SO(3)"},
}


def potential_for(settings: dict[str, Any], before_3: bool) -> TensorNetPotential:
    """Releases from 3.0 see neighbors from the other side, which SO(3) notices."""
    direction = "from_neighbor" if before_3 else "to_neighbor"
    return network(**settings, edge_direction=direction, rounded_third=True)


def same_energies(found: TensorNetPotential, expected: TensorNetPotential) -> bool:
    systems = [molecule(charge=1.0)]
    if expected.config.coulomb is None or expected.config.coulomb.cutoff is not None:
        systems.append(crystal())
    pairs = [(energy_of(found, one), energy_of(expected, one)) for one in systems]
    return all(torch.allclose(one, other, rtol=0, atol=1e-11) for one, other in pairs)


def saved(path: Path, content: dict[str, Any]) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("before_3", [False, True], ids=["3.0", "before 3.0"])
@pytest.mark.parametrize("settings", POTENTIALS.values(), ids=POTENTIALS)
def test_a_checkpoint_has_the_energies_of_its_potential(
    tmp_path: Path, settings: dict[str, Any], before_3: bool
) -> None:
    expected = potential_for(settings, before_3)
    path = saved(tmp_path / "model.ckpt", torchmdnet_content(expected, before_3))
    found = load(path)
    assert found.species == tuple(range(1, ROWS))
    assert found.config.origin == "TorchMD-Net"
    assert found.config.name == "model"
    assert same_energies(found, expected)


LAYOUTS = {
    # before 3.0, distance.box, check_errors, layout asked for, words that say why
    "2.4": (True, False, True, "auto", "lacks distance.box"),
    "2.4, loaded by another program": (True, False, False, "auto", "lacks distance.box"),
    "early": (True, False, None, "auto", "lacks distance.box"),
    "2.5 to 2.6.1": (True, True, True, "auto", "hold check_errors"),
    "2.6.2": (True, True, None, "before-3.0", "as asked for"),
    "3.0": (False, True, None, "auto", "2.6.2 looks the same"),
    "3.0, loaded by another program": (False, True, False, "auto", "check_errors is False"),
    "3.0 by hand": (False, False, True, "3.0", "as asked for"),
}


@pytest.mark.parametrize("case", LAYOUTS.values(), ids=LAYOUTS)
def test_layout_is_decided_by_the_file(
    tmp_path: Path, case: tuple[bool, bool, bool | None, Any, str]
) -> None:
    before_3, box, check_errors, layout, reason = case
    expected = potential_for(CHARGED, before_3)
    content = torchmdnet_content(expected, before_3)
    box_name = "model.representation_model.distance.box"
    content["state_dict"].pop(box_name, None)
    content["hyper_parameters"].pop("check_errors", None)
    if box:
        content["state_dict"][box_name] = torch.zeros(3, 3)
    if check_errors is not None:
        content["hyper_parameters"]["check_errors"] = check_errors
    path = saved(tmp_path / "model.ckpt", content)
    found = load(path, layout=layout)
    assert reason in found.config.assumptions[0]
    assert same_energies(found, expected)
    other = load(path, layout="3.0" if before_3 else "before-3.0")
    assert not same_energies(other, expected)


def test_old_model_names_are_read(tmp_path: Path) -> None:
    expected = potential_for(TENSORNET2 | COULOMB, before_3=True)
    content = torchmdnet_content(expected, before_3=True)
    content["hyper_parameters"]["model"] = "tensornet-nqe"
    assert same_energies(load(saved(tmp_path / "m.ckpt", content)), expected)


def test_hyper_parameters_may_hold_paths_namespaces_and_numpy_scalars(tmp_path: Path) -> None:
    expected = potential_for(CHARGED, before_3=False)
    content = torchmdnet_content(expected)
    content["hyper_parameters"] |= {
        "num_rbf": np.int64(5),
        "cutoff_upper": np.float64(3.4),
        "activation": np.str_("silu"),
        "log_dir": pathlib.PosixPath("runs/1"),
        "parent": argparse.Namespace(when=np.datetime64("2026-01-02"), seed=np.uint8(3)),
    }
    assert same_energies(load(saved(tmp_path / "m.ckpt", content)), expected)
    content["hyper_parameters"] = argparse.Namespace(**content["hyper_parameters"])
    assert same_energies(load(saved(tmp_path / "n.ckpt", content)), expected)


def test_prior_arguments_kept_apart_replace_those_in_place(tmp_path: Path) -> None:
    expected = potential_for(CHARGED | {"repulsion": [ZBL]}, before_3=False)
    content = torchmdnet_content(expected)
    priors = content["hyper_parameters"]["prior_model"]
    content["hyper_parameters"]["prior_args"] = [*priors[0].values(), *priors[1].values()]
    content["hyper_parameters"]["prior_model"] = ["Atomref", {"ZBL": {"cutoff_distance": 9.9}}]
    found = load(saved(tmp_path / "m.ckpt", content))
    assert same_energies(found, expected)
    assert not any("units" in said for said in found.config.assumptions)


def test_disabled_references_stay_out(tmp_path: Path) -> None:
    expected = potential_for(CHARGED, before_3=False)
    content = torchmdnet_content(expected)
    content["hyper_parameters"]["prior_model"] = {"Atomref": {"enable": False}}
    found = load(saved(tmp_path / "m.ckpt", content))
    expected.references.zero_()
    assert same_energies(found, expected)
    assert any("without the atomic references" in said for said in found.config.assumptions)


def test_a_prior_may_name_the_elements(tmp_path: Path) -> None:
    expected = potential_for(CHARGED | {"repulsion": [ZBL]}, before_3=False)
    content = torchmdnet_content(expected)
    numbers = torch.zeros(ROWS, dtype=torch.int64)
    numbers[[1, 6, 8]] = torch.tensor([1, 6, 8])
    content["state_dict"]["model.prior_model.1.atomic_number"] = numbers
    found = load(saved(tmp_path / "m.ckpt", content))
    assert found.species == (1, 6, 8)
    assert same_energies(found, expected)
    content["state_dict"]["model.prior_model.1.atomic_number"] = numbers.clamp(min=1)
    with pytest.raises(CheckpointError, match="one element several rows"):
        load(saved(tmp_path / "m.ckpt", content))


def dispersion_content(**changes: Any) -> tuple[dict[str, Any], TensorNetPotential]:
    """With the prior D2 after the references, and the potential without it."""
    bare = potential_for(CHARGED, before_3=False)
    content = torchmdnet_content(bare)
    values = {"cutoff_distance": 5.0, "energy_scale": 1.602176634e-19, "distance_scale": 1e-10}
    content["hyper_parameters"]["prior_model"].append({"D2": values | changes})
    tables = {"C_6": [np.nan, 0.14, *[1.0] * 4, 1.75, 1.23, 0.70], "R_r": [np.nan, *[0.13] * 8]}
    prefix = "model.prior_model.1."
    for name, table in tables.items():
        content["state_dict"][f"{prefix}{name}"] = torch.tensor(table)
    content["state_dict"][f"{prefix}Z_map"] = torch.arange(ROWS)
    content["state_dict"][f"{prefix}distances.box"] = torch.zeros(3, 3)
    return content, bare


def test_dispersion_is_that_of_the_formula(tmp_path: Path) -> None:
    content, bare = dispersion_content()
    found = load(saved(tmp_path / "m.ckpt", content))
    assert found.species == tuple(range(1, 9))
    assert any("D2 sees all images" in sentence for sentence in found.config.assumptions)
    system = molecule()
    distances = pdist(system.positions)
    table = content["state_dict"]["model.prior_model.1.C_6"].double().numpy()
    pairs = np.array(list(itertools.combinations(system.numbers, 2)))
    coefficients = np.sqrt(table[pairs].prod(axis=1))
    scaled, reach = 0.1 * distances, 2.0 * float(np.float32(0.13))
    terms = coefficients / scaled**6 / (1.0 + np.exp(-20.0 * (scaled / reach - 1.0)))
    in_joule_per_mole = -terms[distances < 5.0].sum()
    expected = in_joule_per_mole / (1.602176634e-19 * 6.02214076e23)
    difference = (energy_of(found, system) - energy_of(bare, system)).item()
    assert difference == pytest.approx(expected, abs=1e-11)
    assert abs(expected) > 1e-3


def test_mean_over_atoms_counts_one_more_than_there_are(tmp_path: Path) -> None:
    content = torchmdnet_content(potential_for(CHARGED, before_3=False))
    content["state_dict"]["model.mean"] = torch.tensor(0.0)
    whole = load(saved(tmp_path / "sum.ckpt", content))
    content["hyper_parameters"]["reduce_op"] = "mean"
    mean = load(saved(tmp_path / "mean.ckpt", content))
    assert any("one more than their number" in sentence for sentence in mean.config.assumptions)
    energies = [energy_of(one, molecule(7), molecule(3)) for one in (whole, mean)]
    torch.testing.assert_close(energies[1] * torch.tensor([8.0, 4.0]), energies[0])


def test_repulsion_within_the_network_ends_at_the_lower_cutoff(tmp_path: Path) -> None:
    settings = TENSORNET2 | {"cutoff_lower": 0.9, "self_interaction": False}
    settings |= {"repulsion": [NETWORK_REPULSION | {"cutoff_lower": 0.9}]}
    expected = potential_for(settings, before_3=False)
    found = load(saved(tmp_path / "m.ckpt", torchmdnet_content(expected)))
    assert found.config.repulsion[0].cutoff_lower == 0.9
    near, apart = (System([8, 1], [[0.0, 0.0, 0.0], [x, 0.0, 0.0]]) for x in (0.89, 50.0))
    torch.testing.assert_close(energy_of(found, near), energy_of(found, apart))


REFUSED = {
    "architecture": ({"model": "equivariant-transformer"}, "model 'equivariant-transformer'"),
    "dipole": ({"output_model": "DipoleMoment"}, "output_model 'DipoleMoment'"),
    "largest of atoms": ({"reduce_op": "max"}, "reduces its atoms by 'max'"),
    "filtered atoms": ({"atom_filter": 0}, "leaves atoms out"),
    "basis": ({"rbf_type": "bump"}, "rbf_type 'bump'"),
    "activation": ({"activation": "relu"}, "activation 'relu'"),
    "group": ({"equivariance_invariance_group": "O(2)"}, "setting group"),
    "Coulomb without charges": ({"output_model": "ScalarPlusWeightedCoulomb"}, "tensornet2"),
    "D2 without units": ({"prior_model": [{"Atomref": None}, {"D2": {}}]}, "its energy_scale"),
    "Coulomb prior": ({"prior_model": {"Coulomb": None}}, "prior Coulomb"),
    "unknown prior": ({"prior_model": ["Magic"]}, "prior Magic, which is unknown"),
    "no cutoff": ({"cutoff_upper": None}, "does not say its cutoff_upper"),
    "half a layer": ({"num_layers": 1.5}, "num_layers of 1.5"),
    "a word for a number": ({"num_rbf": "many"}, "num_rbf of 'many'"),
    "a number for a word": ({"model": 3}, "model of 3"),
    "cutoffs": ({"cutoff_lower": 4.0}, "cutoff_lower must be below"),
    "radial functions": ({"num_rbf": 0}, "setting radial_basis.number"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_models_without_an_energy_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    content = torchmdnet_content(potential_for(CHARGED, before_3=False))
    content["hyper_parameters"] |= changes
    path = saved(tmp_path / "model.ckpt", content)
    with pytest.raises(CheckpointError) as raised:
        load(path)
    assert sentence in str(raised.value)
    assert str(path) in str(raised.value)
    assert str(raised.value).endswith(".")


def test_units_other_than_ours_are_refused(tmp_path: Path) -> None:
    content = torchmdnet_content(potential_for(CHARGED | {"repulsion": [ZBL]}, before_3=False))
    content["hyper_parameters"]["prior_model"][1]["ZBL"]["energy_scale"] = 4.3597447e-18
    with pytest.raises(CheckpointError, match=r"units of 4\.35974e-18 J"):
        load(saved(tmp_path / "m.ckpt", content))


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    content = torchmdnet_content(potential_for(CHARGED, before_3=False))
    tensors = content["state_dict"]
    del tensors["model.representation_model.layers.1.linears_tensor.5.weight"]
    tensors["model.representation_model.linear.weight"] = torch.zeros(6, 7)
    tensors["model.std"] = torch.tensor(torch.nan)
    tensors["model.extra.weight"] = torch.zeros(2)
    tensors["model.mean"] = torch.zeros(2)
    with pytest.raises(CheckpointError) as raised:
        load(saved(tmp_path / "m.ckpt", content))
    for part in (
        "lacks representation_model.layers.1.linears_tensor.5.weight",
        "wrong shapes in representation_model.linear.weight (6 x 7 instead of 6 x 18)",
        "mean (2 instead of one number)",
        "not finite in std",
        "unknown extra.weight",
    ):
        assert part in str(raised.value)


RANGES = f"model.{REPULSION}cutoff_ab"


@pytest.mark.parametrize("value", [1.5, 0.0], ids=["by direction", "no length"])
def test_impossible_ranges_of_a_repulsion_are_refused(tmp_path: Path, value: float) -> None:
    content = torchmdnet_content(potential_for(POTENTIALS["TensorNet2"], before_3=False))
    content["state_dict"][RANGES][6, 8] = value
    if value == 0.0:
        content["state_dict"][RANGES][8, 6] = value
    with pytest.raises(CheckpointError, match=r"differ between .* as of C and O;"):
        load(saved(tmp_path / "m.ckpt", content))


@pytest.mark.parametrize("rows", [9, 128])
def test_elements_that_the_repulsion_does_not_know_are_no_species(
    tmp_path: Path, rows: int
) -> None:
    content = torchmdnet_content(potential_for(POTENTIALS["TensorNet2"], before_3=False))
    content["state_dict"][RANGES] = torch.ones(rows, rows)
    content["state_dict"][f"model.{REPULSION}z_pow"] = torch.ones(rows)
    found = load(saved(tmp_path / "m.ckpt", content))
    assert found.species == tuple(range(1, min(rows, ROWS)))


def test_missing_references_are_named(tmp_path: Path) -> None:
    content = torchmdnet_content(potential_for(CHARGED, before_3=False))
    del content["state_dict"]["model.prior_model.0.atomref.weight"]
    with pytest.raises(CheckpointError, match=r"lacks prior_model\.0\.atomref\.weight;"):
        load(saved(tmp_path / "m.ckpt", content))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"weights": torch.zeros(2)}, "no state_dict"),
        ([torch.zeros(2)], "no state_dict"),
        ({"state_dict": {"a": torch.zeros(2)}}, "without hyper_parameters"),
    ],
    ids=["other keys", "a list", "no hyper-parameters"],
)
def test_other_torch_files_are_no_checkpoints(tmp_path: Path, content: Any, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        load(saved(tmp_path / "m.ckpt", content))
