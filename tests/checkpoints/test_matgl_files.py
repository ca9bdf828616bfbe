"""Folders of MatGL: every convention gives the energies of the potential it came from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_files import matgl_content, write_matgl
from random_networks import TENSORNET, crystal, energy_of, molecule, network

from mdgraph import load
from mdgraph.errors import CheckpointError, MDGraphError
from mdgraph.models import TensorNetPotential

MATGL = TENSORNET | {
    "self_interaction": False,
    "readout_activation": False,
    "readout": {"kind": "gated", "hidden": (6, 6, 6)},
    "radial_basis": {"kind": "gaussian", "number": 5},
}
SO3 = MATGL | {"group": "SO(3)"}

POTENTIALS = {
    "Gaussian": MATGL,
    "smooth Bessel": MATGL | {"radial_basis": {"kind": "smooth_bessel", "number": 3}},
    "spherical Bessel": MATGL
    | {"radial_basis": {"kind": "spherical_bessel", "number": 6, "orders": 2}},
    "ExpNorm": MATGL | {"radial_basis": {"number": 5}, "activation": "softplus"},
    "softplus2": MATGL | {"activation": "ssp"},
    "no blocks": MATGL | {"layers": 0, "activation": "sigmoid"},
    "repulsion": MATGL | {"repulsion": [{"kind": "matgl", "cutoff": 3.4}]},
    "SO(3)": SO3 | {"activation": "tanh"},
}


def potential_for(
    settings: dict[str, Any], before_3: bool = False, fused: bool = False
) -> TensorNetPotential:
    """Old releases see neighbors from the other side, and so do the fused kernels."""
    direction = "to_neighbor" if before_3 == fused else "from_neighbor"
    potential = network(**settings, edge_direction=direction, rounded_third=fused)
    if potential.config.radial_basis.kind == "gaussian":
        potential.network.basis.width.fill_(0.5)
    return potential


def same_energies(found: TensorNetPotential, expected: TensorNetPotential) -> bool:
    return all(
        torch.allclose(energy_of(found, one), energy_of(expected, one), rtol=0, atol=1e-11)
        for one in (molecule(), crystal())
    )


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("before_3", [False, True], ids=["3.0", "before 3.0"])
@pytest.mark.parametrize("settings", POTENTIALS.values(), ids=POTENTIALS)
def test_a_matgl_folder_has_the_energies_of_its_potential(
    tmp_path: Path, settings: dict[str, Any], before_3: bool, fused: bool
) -> None:
    expected = potential_for(settings, before_3, fused)
    folder = write_matgl(tmp_path / "mine", *matgl_content(expected, before_3, fused))
    found = load(folder)
    assert found.species == expected.species
    assert found.config.origin == "MatGL"
    assert found.config.name == "mine"
    assert same_energies(found, expected)
    said = "releases before 3.0" if before_3 else "releases from 3.0"
    assert said in found.config.assumptions[0]


@pytest.mark.parametrize("files", [("model.pt",), ("model.json",)], ids=str)
def test_either_of_two_descriptions_suffices(tmp_path: Path, files: tuple[str, ...]) -> None:
    expected = potential_for(MATGL, before_3=True)
    folder = write_matgl(tmp_path / "mine", *matgl_content(expected, before_3=True), files)
    assert same_energies(load(folder), expected)


def test_a_file_without_a_version_is_from_before_3(tmp_path: Path) -> None:
    expected = potential_for(MATGL, before_3=True)
    arguments, tensors = matgl_content(expected, before_3=True)
    del arguments["model"]["@model_version"]
    folder = write_matgl(tmp_path / "mine", arguments, tensors)
    assert same_energies(load(folder), expected)


def test_the_convention_can_be_given_as_layout(tmp_path: Path) -> None:
    """Fused weights of 2.2 carry the version of 3.0."""
    expected = potential_for(SO3, before_3=True, fused=True)
    arguments, tensors = matgl_content(expected, before_3=True, fused=True)
    arguments["model"]["@model_version"] = 2
    folder = write_matgl(tmp_path / "mine", arguments, tensors)
    found = load(folder)
    assert "'before-3.0'" in found.config.assumptions[0]
    assert not same_energies(found, expected)
    assert same_energies(load(folder, layout="before-3.0"), expected)


def bare(potential: TensorNetPotential) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    arguments, tensors = matgl_content(potential)
    tensors = {
        name.removeprefix("model."): value
        for name, value in tensors.items()
        if name.startswith("model.")
    }
    return arguments["model"]["init_args"], tensors


def test_a_network_without_a_potential_has_neither_scale_nor_references(tmp_path: Path) -> None:
    expected = potential_for(MATGL)
    folder = write_matgl(tmp_path / "mine", *bare(expected))
    expected.scale.fill_(1.0)
    expected.shift.zero_()
    expected.references.zero_()
    assert same_energies(load(folder), expected)


def test_a_network_that_hides_its_version_needs_a_layout(tmp_path: Path) -> None:
    folder = write_matgl(tmp_path / "mine", *bare(potential_for(MATGL)), ("model.pt",))
    with pytest.raises(CheckpointError, match=r"give the layout, 'before-3\.0' or '3\.0'"):
        load(folder)
    assert load(folder, layout="3.0").species == (8, 1, 6)


def test_weights_of_compiled_models_are_read(tmp_path: Path) -> None:
    expected = potential_for(MATGL)
    arguments, tensors = matgl_content(expected)
    tensors = {name.replace("model.", "model._orig_mod.", 1): v for name, v in tensors.items()}
    assert same_energies(load(write_matgl(tmp_path / "mine", arguments, tensors)), expected)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=["list", "array", "tensor"])
def test_references_are_used_as_stored(tmp_path: Path, kind: Any) -> None:
    expected = potential_for(MATGL)
    arguments, tensors = matgl_content(expected)
    exact = torch.tensor([-13.6, 2.0 / 3.0, -1027.123456789], dtype=torch.float64)
    arguments["element_refs"] = exact if kind is torch.tensor else kind(exact.tolist())
    tensors["element_refs.property_offset"] = exact
    whole = load(write_matgl(tmp_path / "whole", arguments, tensors))
    assert torch.equal(whole.references, exact)
    assert not any("element_refs" in sentence for sentence in whole.config.assumptions)
    tensors["element_refs.property_offset"] = exact.float()
    rounded = load(write_matgl(tmp_path / "rounded", arguments, tensors))
    assert torch.equal(rounded.references, exact.float().double())
    (sentence,) = (s for s in rounded.config.assumptions if "element_refs" in s)
    assert "property_offset is used as stored" in sentence
    assert "by up to 4.37e-05" in sentence


@pytest.mark.parametrize("alpha", [0.0, 0.4, -0.3])
def test_softexp_has_the_parameter_that_layers_share(tmp_path: Path, alpha: float) -> None:
    alpha = float(np.float32(alpha))
    softexp = {"activation": "softexp", "activation_parameter": alpha}
    expected = potential_for(MATGL | softexp)
    arguments, tensors = matgl_content(expected)
    shared = ["activation", "tensor_embedding.act", "layers.0.act"]
    tensors |= {f"model.{name}.alpha": torch.tensor(alpha) for name in shared}
    found = load(write_matgl(tmp_path / "mine", arguments, tensors))
    assert found.config.activation_parameter == alpha
    assert same_energies(found, expected)
    tensors["model.layers.0.act.alpha"] = torch.tensor(0.7)
    with pytest.raises(CheckpointError, match="2 values of the parameter of softexp"):
        load(write_matgl(tmp_path / "other", arguments, tensors))


def test_references_without_their_tensor_are_refused(tmp_path: Path) -> None:
    arguments, tensors = matgl_content(potential_for(MATGL))
    arguments["element_refs"] = [-13.6, 0.6, -1027.1]
    tensors.pop("element_refs.property_offset", None)
    with pytest.raises(CheckpointError, match=r"lacks element_refs\.property_offset"):
        load(write_matgl(tmp_path / "mine", arguments, tensors))


def changed(place: str, **values: Any) -> dict[str, Any]:
    return {"place": place, "values": values}


REFUSED = {
    "intensive": (changed("network", is_intensive=True), "intensive property"),
    "state": (changed("network", include_state=True), "global state"),
    "several targets": (changed("network", ntargets=3), "3 numbers an atom"),
    "activation": (changed("network", activation_type="relu"), "activation_type 'relu'"),
    "no parameter": (changed("network", activation_type="softexp"), "0 values of the parameter"),
    "basis": (changed("network", rbf_type="Magic"), "rbf_type 'Magic'"),
    "no elements": (changed("network", element_types=None), "does not name its element_types"),
    "no such element": (changed("network", element_types=["H", "O", "Xx"]), "('Xx')"),
    "one element twice": (changed("network", element_types=["H", "H", "O"]), "distinct"),
    "architecture": (changed("model", **{"@class": "M3GNet"}), "MatGL's M3GNet"),
    "version": (changed("model", **{"@model_version": "two"}), "@model_version of 'two'"),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_models_without_an_energy_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    arguments, tensors = matgl_content(potential_for(MATGL))
    model = arguments["model"]
    target = model if change["place"] == "model" else model["init_args"]
    target.update(change["values"])
    folder = write_matgl(tmp_path / "mine", arguments, tensors)
    with pytest.raises(CheckpointError) as raised:
        load(folder)
    assert sentence in str(raised.value)
    assert str(folder) in str(raised.value)


def test_references_of_several_states_are_refused(tmp_path: Path) -> None:
    arguments, tensors = matgl_content(potential_for(MATGL))
    tensors["element_refs.property_offset"] = torch.zeros(2, 3)
    with pytest.raises(CheckpointError, match=r"element_refs.property_offset \(2 x 3 instead of"):
        load(write_matgl(tmp_path / "mine", arguments, tensors))


def test_dgl_weights_from_before_3_are_refused(tmp_path: Path) -> None:
    arguments, tensors = matgl_content(potential_for(MATGL, before_3=True), before_3=True)
    tensors["model.tensor_embedding.emb3.weight"] = torch.zeros(6, 12)
    tensors["model.tensor_embedding.emb3.bias"] = torch.zeros(6)
    with pytest.raises(CheckpointError, match="DGL form of TensorNet before"):
        load(write_matgl(tmp_path / "mine", arguments, tensors))
    arguments["model"]["@model_version"] = 2
    assert load(write_matgl(tmp_path / "later", arguments, tensors)).species == (8, 1, 6)


def test_a_folder_without_a_description_is_refused(tmp_path: Path) -> None:
    arguments, tensors = matgl_content(potential_for(MATGL))
    folder = write_matgl(tmp_path / "mine", arguments, tensors, files=())
    with pytest.raises(CheckpointError, match=r"neither model\.pt nor model\.json"):
        load(folder)
    (folder / "model.json").write_text("[1,")
    with pytest.raises(CheckpointError, match="is not JSON"):
        load(folder)


@pytest.mark.parametrize("name", ["state.pt", "model.pt", "model.json"])
def test_one_file_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_matgl(tmp_path / "mine", *matgl_content(potential_for(MATGL)))
    with pytest.raises(MDGraphError, match="give the folder"):
        load(folder / name)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"a":' * 50_000])
def test_a_description_nested_too_deep_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_matgl(tmp_path / "mine", *matgl_content(potential_for(MATGL)))
    (folder / "model.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not JSON"):
        load(folder)


def test_unknown_versions_are_refused(tmp_path: Path) -> None:
    arguments, tensors = matgl_content(potential_for(MATGL))
    arguments["model"]["@model_version"] = 99
    folder = write_matgl(tmp_path / "mine", arguments, tensors)
    with pytest.raises(CheckpointError, match=r"version 99 of MatGL's TensorNet.*known here.*1, 2"):
        load(folder)
    assert load(folder, layout="3.0").config.origin == "MatGL"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cutoff", 9.0),
        ("element_types", ["H", "C", "N"]),
        ("element_types", ["H"]),
        ("activation_type", "tanh"),
        ("@model_version", 1),
    ],
)
def test_descriptions_that_contradict_each_other_are_refused(
    tmp_path: Path, key: str, value: Any
) -> None:
    folder = write_matgl(tmp_path / "mine", *matgl_content(potential_for(MATGL)))
    description = json.loads((folder / "model.json").read_text())
    inner = description["kwargs"]["model"]
    (inner if key.startswith("@") else inner["init_args"])[key] = value
    (folder / "model.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=f"{key}: model.pt and model.json differ"):
        load(folder)
