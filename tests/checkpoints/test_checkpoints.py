"""mdgraph's own file, names of potentials, and files that are none: one sentence each."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies
from published_files import matgl_content, torchmdnet_content, write_matgl
from random_networks import TENSORNET, TENSORNET2, crystal, energy_of, evaluated, molecule, network
from safetensors import safe_open
from safetensors.torch import save_file
from torch import serialization

import mdgraph
from mdgraph import shipped
from mdgraph.checkpoints import convert, describe, load, save, shipped_potentials
from mdgraph.errors import CheckpointError, FileError, InputError, MDGraphError
from mdgraph.io.tensor_files import read_tensors, serialize
from mdgraph.models import TensorNetConfig, TensorNetPotential

ZBL = [{"kind": "torchmdnet_prior", "cutoff": 3.0}, {"kind": "matgl", "cutoff": 3.4}]


@pytest.fixture
def potential() -> TensorNetPotential:
    return network(**TENSORNET, level_of_theory="PBE0", licence="MIT", name="mine")


@pytest.fixture
def native(tmp_path: Path, potential: TensorNetPotential) -> Path:
    path = tmp_path / "model.safetensors"
    save(potential, path)
    return path


@pytest.fixture
def ckpt(tmp_path: Path, potential: TensorNetPotential) -> Path:
    path = tmp_path / "model.ckpt"
    torch.save(torchmdnet_content(potential), path)
    return path


@pytest.mark.parametrize(
    "settings",
    [
        TENSORNET | {"repulsion": ZBL},
        TENSORNET2 | {"coulomb": {"cutoff": 5.0}},
        TENSORNET | {"radial_basis": {"kind": "smooth_bessel", "number": 3}},
    ],
    ids=["repulsion", "TensorNet2", "Bessel"],
)
def test_a_potential_survives_its_file(tmp_path: Path, settings: dict[str, Any]) -> None:
    potential = network(**settings)
    path = tmp_path / "model.safetensors"
    save(potential, path)
    for found in (load(path), load(tmp_path), load(str(path))):
        assert found.config == potential.config
        assert torch.equal(energy_of(found, crystal()), energy_of(potential, crystal()))


def test_save_replaces_a_file_only_with_overwrite(
    native: Path, potential: TensorNetPotential
) -> None:
    before = native.read_bytes()
    with torch.no_grad():
        potential.shift += 1.0
    with pytest.raises(FileError, match=r"model\.safetensors: it exists already"):
        save(potential, native)
    assert native.read_bytes() == before
    save(potential, native, overwrite=True)
    assert native.read_bytes() != before
    assert [*native.parent.iterdir()] == [native]


def test_only_values_that_float32_cannot_hold_are_stored_in_float64(
    tmp_path: Path, potential: TensorNetPotential
) -> None:
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.copy_(parameter.float())
        potential.references /= 3.0
    path = tmp_path / "model.safetensors"
    save(potential, path)
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("network.linear.weight").dtype == torch.float32
        assert file.get_tensor("references").dtype == torch.float64
    for name, value in load(path).state_dict().items():
        assert torch.equal(value, potential.state_dict()[name])


def test_convert_keeps_the_energies(tmp_path: Path, ckpt: Path) -> None:
    target = tmp_path / "converted.safetensors"
    convert(ckpt, target)
    original, converted = load(ckpt), load(target)
    assert torch.equal(energy_of(converted, crystal()), energy_of(original, crystal()))
    assert converted.config == original.config
    with pytest.raises(FileError, match="exists already"):
        convert(ckpt, target)


GATED = TENSORNET | {
    "self_interaction": False,
    "readout_activation": False,
    "readout": {"kind": "gated", "hidden": (6, 6, 6)},
    "radial_basis": {"kind": "gaussian", "number": 5},
    "edge_direction": "from_neighbor",
}
WRITERS: dict[str, Callable[[Path, TensorNetPotential], Path]] = {
    "mdgraph": lambda folder, potential: _written(folder / "m.safetensors", potential),
    "TorchMD-Net": lambda folder, potential: _written(folder / "m.ckpt", potential),
    "MatGL": lambda folder, potential: write_matgl(folder / "m", *matgl_content(potential)),
}


def _written(path: Path, potential: TensorNetPotential) -> Path:
    if path.suffix == ".ckpt":
        torch.save(torchmdnet_content(potential), path)
    else:
        save(potential, path)
    return path


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("", "zero"),
        ("scale", "the scale"),
        (r"readout\.(linears\.1|values\.3)\.", "its readout"),
        (r"readout\.\w+\.0\.weight", "its readout"),
        (r"network\.linear\.weight", "before its readout"),
        (r"network\.embedding\.mixing", "its embedding"),
    ],
)
def test_a_network_of_zeros_is_refused(
    tmp_path: Path, writer: str, names: str, reason: str
) -> None:
    for repulsion in ([], [ZBL[writer == "MatGL"]]):
        potential = network(**(GATED if writer == "MatGL" else TENSORNET), repulsion=repulsion)
        parts = dict(potential.named_parameters())
        if names == "scale":
            parts["scale"] = potential.scale
        with torch.no_grad():
            for name, value in parts.items():
                if re.match(names, name):
                    value.zero_()
        folder = tmp_path / str(len(repulsion))
        folder.mkdir()
        path = WRITERS[writer](folder, potential)
        with pytest.raises(
            CheckpointError, match=f"gives no force on any structure, since .*{reason}.*; save it"
        ):
            load(path)


@pytest.mark.parametrize("names", [r"readout\.linears\.1\.", r"network\.charges"])
def test_charges_alone_give_a_force(tmp_path: Path, names: str) -> None:
    """Whether zeros are refused goes by the forces that are there."""
    potential = network(**TENSORNET2, coulomb={"cutoff": 5.0})
    with torch.no_grad():
        for name, value in potential.named_parameters():
            if re.match(names, name):
                value.zero_()
    path = tmp_path / "model.safetensors"
    save(potential, path)
    assert evaluated(load(path), molecule(charge=1.0)).forces.abs().max() > 1e-6
    with torch.no_grad():
        for name, value in potential.named_parameters():
            if name.startswith(("network.charges", "readout.linears.1")):
                value.zero_()
    save(potential, path, overwrite=True)
    with pytest.raises(CheckpointError, match="since the weights of a layer of its readout"):
        load(path)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [TENSORNET, TENSORNET2, GATED], ids=["1", "2", "gated"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_fresh_and_nearly_silent_networks_are_read(
    tmp_path: Path, settings: dict[str, Any], layers: int, seed: int
) -> None:
    """As built, with half of their weights zero, and so small that forces are."""
    torch.manual_seed(seed)
    config = TensorNetConfig.model_validate(settings | {"layers": layers})
    potential, path = TensorNetPotential(config), tmp_path / "model.safetensors"
    save(potential, path)
    load(path)
    with torch.no_grad():
        for value in potential.parameters():
            value.mul_(torch.rand_like(value) < 0.5)
            value.view(-1)[0] = 1e-30
    save(potential, path, overwrite=True)
    load(path)


def test_save_asks_for_its_own_suffix(tmp_path: Path, potential: TensorNetPotential) -> None:
    with pytest.raises(InputError, match=r"give a name that ends in \.safetensors"):
        save(potential, tmp_path / "model.ckpt")
    with pytest.raises(FileError, match="no such file or folder"):
        save(potential, tmp_path / "absent" / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_describe_gives_architecture_species_cutoff_and_units(
    ckpt: Path, potential: TensorNetPotential
) -> None:
    about = describe(potential)
    assert about["architecture"] == "TensorNet"
    assert about["species"] == ["O", "H", "C"]
    assert about["cutoff_A"] == 3.4
    assert about["parameters"] == sum(p.numel() for p in potential.parameters())
    assert about["units"] == {"energy": "eV", "length": "A"}
    assert (about["level_of_theory"], about["licence"]) == ("PBE0", "MIT")
    assert about["assumed"] == []
    assert json.loads(json.dumps(about)) == about
    read = describe(ckpt, layout="before-3.0")
    assert read["licence"] == "not stated"
    assert "as asked for" in read["assumed"][0]
    coulomb = describe(network(**TENSORNET2, coulomb={"cutoff": 12.0}))
    assert coulomb["coulomb"] == "reaction field, 12 A"
    assert coulomb["uses_charge"]


def rewritten(path: Path, change: Callable[[dict[str, str], dict[str, Any]], None]) -> None:
    """Changes the metadata and tensors of a file of ours, with the checksum of what it says now."""
    tensors, metadata = read_tensors(path, "a potential")
    change(metadata, tensors)
    path.write_bytes(serialize(tensors, metadata))


def test_a_newer_schema_is_told_apart_from_a_damaged_one(native: Path) -> None:
    def newer(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        metadata["mdgraph"] = metadata["mdgraph"].replace(
            '"schema_version":1', '"schema_version":2'
        )

    def unknown(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        metadata["mdgraph"] = metadata["mdgraph"].replace('"schema_version":2', '"magic":1')

    def no_json(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        metadata["mdgraph"] = "{"

    def nothing(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        metadata.clear()

    for change, sentence in (
        (newer, r"newer mdgraph \(schema 2, this one reads 1\); upgrade"),
        (unknown, "by the setting magic"),
        (no_json, "not JSON"),
        (nothing, "no configuration of mdgraph"),
    ):
        rewritten(native, change)
        with pytest.raises(CheckpointError, match=sentence):
            load(native)


def test_tensors_of_our_own_file_are_checked(native: Path) -> None:
    def change(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        del tensors["scale"]
        tensors["network.linear.bias"] = torch.zeros(3)
        tensors["magic"] = torch.zeros(1)

    rewritten(native, change)
    with pytest.raises(
        CheckpointError, match=r"lacks scale.*network\.linear\.bias \(3 instead of 6\).*magic"
    ):
        load(native)


def test_shipped_potentials_are_found_by_name(
    tmp_path: Path,
    native: Path,
    potential: TensorNetPotential,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "site" / "mdgraph"
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    assert shipped_potentials() == {}
    beside, inside = tmp_path / "site/potentials/water-pbe0", package / "potentials/ethanol"
    for folder in (beside, inside):
        folder.mkdir(parents=True)
        shutil.copy(native, folder / "model.safetensors")
    (package / "potentials" / "empty").mkdir()
    assert shipped_potentials() == {"ethanol": inside, "water-pbe0": beside}
    assert load("ethanol").config == potential.config
    assert load(Path("ethanol")).config == potential.config

    monkeypatch.chdir(tmp_path)
    Path("ethanol").mkdir()
    assert load("ethanol").config == potential.config
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load("./ethanol")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load(Path("ethanol"))
    with pytest.raises(FileError, match=r"'water-pbe' and no .* that name; .*, water-pbe0; check"):
        load("water-pbe")


def test_the_package_loads_on_first_use(native: Path) -> None:
    assert mdgraph.load(native).config.name == "mine"
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = mdgraph.lode


def test_an_unknown_layout_is_refused(native: Path) -> None:
    with pytest.raises(InputError, match="choose auto"):
        load(native, layout="2.0")  # type: ignore[arg-type]


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("place", ["hyper_parameters", "state_dict"])
def test_code_in_a_file_never_runs(tmp_path: Path, ckpt: Path, place: str) -> None:
    trace = tmp_path / "trace"
    content = torch.load(ckpt, weights_only=True)
    content[place]["harmless"] = Payload(f"touch {trace}")
    torch.save(content, ckpt)
    with pytest.raises(CheckpointError, match=r"(posix|nt)\.system, which is refused"):
        load(ckpt)
    assert not trace.exists()
    torch.load(ckpt, weights_only=False)
    assert trace.exists()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.arange(3), r"numpy\.ndarray"),
        (collections.deque([1]), r"collections\.deque"),
        (print, r"print"),
        (InputError("no"), r"mdgraph\.errors\.InputError"),
    ],
    ids=["array", "deque", "function", "exception"],
)
def test_other_classes_are_refused_by_name(ckpt: Path, value: Any, name: str) -> None:
    content = torch.load(ckpt, weights_only=True)
    content["hyper_parameters"]["value"] = value
    torch.save(content, ckpt)
    with pytest.raises(CheckpointError, match=rf"{name}.*save it again without"):
        load(ckpt)


def test_the_list_of_allowed_classes_is_neither_inherited_nor_changed(ckpt: Path) -> None:
    content = torch.load(ckpt, weights_only=True)
    content["hyper_parameters"]["value"] = collections.deque([1])
    refused = ckpt.with_name("refused.ckpt")
    torch.save(content, refused)
    with serialization.safe_globals([collections.deque]):
        before = serialization.get_safe_globals()
        with pytest.raises(CheckpointError, match=r"collections\.deque"):
            load(refused)
        load(ckpt)
        assert set(serialization.get_safe_globals()) == set(before)


def replaced_in_pickle(path: Path, old: bytes, new: bytes) -> None:
    """Renames a class within the pickle of a torch file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            assert old in part or not name.endswith("data.pkl")
            archive.writestr(name, part.replace(old, new) if name.endswith("data.pkl") else part)


class Windows:
    """A path that was pickled where Windows runs."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pathlib.WindowsPath, ("C:\\", "runs")


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (pathlib.PosixPath("a/b"), b"cpathlib\nPosixPath", b"cpathlib._local\nPosixPath"),
        (pathlib.PosixPath("a/b"), b"cpathlib._local\nPosixPath", b"cpathlib\nPosixPath"),
        (Windows(), b"WindowsPath", b"WindowsPath"),
        (np.float64(3.0), b"cnumpy._core.multiarray", b"cnumpy.core.multiarray"),
    ],
    ids=["Python 3.13", "Python 3.12", "Windows", "NumPy 1"],
)
def test_class_paths_of_other_versions_are_read(
    ckpt: Path, value: Any, old: bytes, new: bytes
) -> None:
    content = torch.load(ckpt, weights_only=True)
    content["hyper_parameters"]["value"] = value
    torch.save(content, ckpt)
    with zipfile.ZipFile(ckpt) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        if old not in archive.read(name):
            old = new
    replaced_in_pickle(ckpt, old, new)
    assert load(ckpt).species


def with_parts(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")

    return write


def legacy(path: Path) -> None:
    torch.save({"state_dict": {}}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("weights\n" * 9), "is not a checkpoint: neither"),
        (lambda path: path.write_text('{"model": "tensornet"}'), "is not a checkpoint: neither"),
        (legacy, "is not a checkpoint: neither"),
        (with_parts("a.txt", "b.txt"), r"other files \(a\.txt, b\.txt\); unpack it"),
        (with_parts("m/data.pkl", "m/constants.pkl"), "is a TorchScript program"),
        (with_parts("m/data.pkl"), "cannot be read safely"),
    ],
    ids=["empty", "text", "JSON", "old torch", "zip", "TorchScript", "no pickle"],
)
def test_files_that_are_not_checkpoints_are_refused(
    tmp_path: Path, write: Callable[[Path], None], sentence: str
) -> None:
    path = tmp_path / "model.ckpt"
    write(path)
    with pytest.raises(CheckpointError, match=sentence) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_a_missing_file_or_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file or folder"):
        load(tmp_path / "absent.ckpt")
    with pytest.raises(CheckpointError, match="holds no potential: neither"):
        load(tmp_path)
    (tmp_path / "train.yaml").touch()
    with pytest.raises(CheckpointError, match="but the recipe of one, which 'mdgraph train"):
        load(tmp_path)
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"not finished, which 'mdgraph train \S+ --resume'"):
        load(tmp_path)


def test_a_folder_of_a_committee_names_its_members(tmp_path: Path) -> None:
    members = [tmp_path / "mine" / f"seed-{seed}" for seed in (1, 2)]
    for member in members:
        member.mkdir(parents=True)
        (member / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="folders of 2; give one of them") as raised:
        load(tmp_path / "mine")
    assert all(str(member) in str(raised.value) for member in members)


def test_truncated_files_are_refused(native: Path, ckpt: Path) -> None:
    for path in (native, ckpt):
        content = path.read_bytes()
        for part in (0.2, 0.7, 0.99):
            path.write_bytes(content[: int(part * len(content))])
            with pytest.raises(CheckpointError, match="copy or download"):
                load(path)


def test_a_flipped_bit_in_our_own_file_is_noticed(native: Path) -> None:
    sound = native.read_bytes()
    for place in (len(sound) // 2, len(sound) - 3, sound.index(b"PBE0")):
        content = bytearray(sound)
        content[place] ^= 4
        native.write_bytes(content)
        with pytest.raises(CheckpointError, match="its checksum does not hold"):
            load(native)


def test_files_without_a_checksum_are_read(native: Path) -> None:
    """Those of earlier releases have none."""
    before = load(native)
    tensors, metadata = read_tensors(native, "a potential")
    save_file(tensors, native, metadata)
    assert load(native).config == before.config


def test_a_flipped_bit_in_the_weights_is_noticed(ckpt: Path) -> None:
    content = bytearray(ckpt.read_bytes())
    with zipfile.ZipFile(ckpt) as archive:
        part = max(archive.infolist(), key=lambda part: part.file_size)
    content[part.header_offset + 200 + part.file_size // 2] ^= 4
    ckpt.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="is damaged in its part"):
        load(ckpt)


@hypothesis.given(data=strategies.data())
@hypothesis.settings(
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_damaged_bytes_are_refused_in_one_sentence(
    native: Path, ckpt: Path, data: strategies.DataObject
) -> None:
    path = data.draw(strategies.sampled_from([native, ckpt]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(strategies.integers(1, 3))):
        # Descriptions lie at the ends, and they are what a parser stumbles over.
        place = data.draw(strategies.integers(-2500, 2500))
        content[place] = data.draw(strategies.integers(0, 255))
    damaged = path.with_stem("damaged")
    damaged.write_bytes(bytes(content))
    # What is no sentence of ours goes through and fails the test.
    with contextlib.suppress(MDGraphError):
        load(damaged)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt.bak", "model"])
def test_file_formats_are_recognised_by_content(tmp_path: Path, ckpt: Path, name: str) -> None:
    folder = tmp_path / "renamed"
    folder.mkdir()
    other = shutil.copy(ckpt, folder / name)
    assert load(other).config.channels == load(ckpt).config.channels
    if name == "model.safetensors":
        assert load(folder).config.channels == load(ckpt).config.channels


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 10**6),
        ("channels", 10**9),
        ("cutoff", 1e6),
        ("species", [1, 6, 999]),
        ("readout", {"kind": "mlp", "hidden": [4096] * 17}),
        ("repulsion", [{"kind": "matgl", "cutoff": 3.0}] * 9),
        ("name", "x" * 10_001),
    ],
)
def test_a_description_is_bounded_before_it_is_built(native: Path, field: str, value: Any) -> None:
    def change(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        metadata["mdgraph"] = json.dumps(json.loads(metadata["mdgraph"]) | {field: value})

    rewritten(native, change)
    with pytest.raises(CheckpointError, match=f"describes no potential.*by the setting {field}"):
        load(native)


def test_a_network_that_the_file_does_not_fill_takes_no_memory(native: Path) -> None:
    """As described it would have 26 thousand million weights."""

    def change(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        large = {"layers": 64, "channels": 4096}
        metadata["mdgraph"] = json.dumps(json.loads(metadata["mdgraph"]) | large)

    rewritten(native, change)
    with pytest.raises(CheckpointError, match="has wrong shapes in"):
        load(native)


def changed_tensor(change: Callable[[torch.Tensor], object]) -> Callable[[dict[str, Any]], None]:
    def changed(content: dict[str, Any]) -> None:
        name = "model.representation_model.linear.bias"
        content["state_dict"][name] = change(content["state_dict"][name])

    return changed


def bomb() -> list[Any]:
    """Some hundred bytes in a file, and more characters than there are atoms in a star."""
    value: list[Any] = ["x"]
    for _ in range(200):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (changed_tensor(lambda value: "text"), "it lacks representation_model.linear.bias"),
        (changed_tensor(lambda value: value[:1].expand(10**10)), "10000000000 instead of 6"),
        (changed_tensor(lambda value: torch.zeros(1).expand(6)), "that are all stored"),
        (changed_tensor(lambda value: value.to(torch.complex64)), "no array of real numbers"),
        (changed_tensor(lambda value: value.to_sparse()), "no array of real numbers"),
        (lambda content: content["hyper_parameters"].update(max_z=10**9), "has wrong shapes"),
        (lambda content: content["hyper_parameters"].update(num_layers=10**9), "setting layers"),
        (lambda content: content["hyper_parameters"].update(num_rbf=10**400), "a num_rbf of 1000"),
        (lambda content: content["hyper_parameters"].update(reduce_op=bomb()), "reduces its atoms"),
        (lambda content: content["hyper_parameters"].update(model=bomb()), "a model of "),
        (lambda content: content["hyper_parameters"].update(atom_filter=torch.zeros(2)), "array"),
    ],
)
def test_sizes_in_a_checkpoint_are_bounded(
    ckpt: Path, potential: TensorNetPotential, change: Callable[[Any], None], sentence: str
) -> None:
    content = torchmdnet_content(potential)
    change(content)
    torch.save(content, ckpt)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        load(ckpt)
    assert len(str(caught.value)) < 2000


def test_an_archive_that_unpacks_to_much_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", b"\x80\x02}.")
        archive.writestr("bomb/data/0", bytes(20_000_000))
    with pytest.raises(CheckpointError, match=r"2 parts.*unpacks to 20,000,004 bytes"):
        load(path)


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        (5, InputError, "not by int"),
        (None, InputError, "not by NoneType"),
        ("x" * 5000, FileError, "too long"),
        ("a\0b", FileError, "no file or folder"),
        ("~no-such-user/model.ckpt", FileError, "no file or folder"),
        ("/dev/zero", FileError, "it is a device"),
    ],
)
def test_unknown_potential_names_are_refused(
    name: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        load(name)
    assert len(str(caught.value)) < 2000


def test_load_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.ckpt")
    with pytest.raises(FileError, match="it is a pipe"):
        load(tmp_path / "model.ckpt")
