"""Damaged files of every format: refused in a sentence, or read as what they say.

Each case is read in a process of its own, with a bound on time and on memory. Whatever a reader
accepts is the content of the sound file, or what a second reader, written for this, finds in the
damaged one.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.build
import ase.io
import h5py
import numpy as np
import pytest
import torch
import yaml
from copper_frames import copper, labelled
from ensembles import DYNAMICS, toy
from forked import in_fork
from hypothesis import HealthCheck, Phase, given, settings, strategies
from hypothesis.strategies import DataObject
from mutations import (
    Mutation,
    damaged_archive,
    damaged_bytes,
    damaged_hdf5,
    damaged_json,
    damaged_text,
    damaged_tree,
)
from published_files import matgl_content, torchmdnet_content, write_matgl
from random_networks import TENSORNET, network
from repository import ROOT
from written_frames import frame, water

from mdgraph.checkpoints import load, save
from mdgraph.data import Provenance, open_dataset, read_split, write_dataset
from mdgraph.data.importing import import_file
from mdgraph.data.keys import Request
from mdgraph.data.splits import random_split, write_split
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.io.formats import create_trajectory, read_trajectory
from mdgraph.io.structures import read_systems
from mdgraph.io.tensor_files import read_tensors, serialize
from mdgraph.models import TensorNetConfig
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.protocol import read_protocol
from mdgraph.runs.training import read_training
from mdgraph.train.progress import Checkpoint, Progress, read_checkpoint, write_checkpoint
from mdgraph.units import NUMBERS

Reading = dict[str, Any]
"""What a file holds: arrays, numbers and texts by name."""


@dataclass(frozen=True)
class Format:
    """A format and who reads it.

    Attributes:
        write: makes a sound file, or folder, of a name within a folder; returns its path.
        read: by mdgraph.
        second: reads the same by other means, as much as it can; None where a checksum or a
            second copy in the file refuses every change.
        mutations: that are drawn from.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Reading]
    second: Callable[[Path], Reading] | None
    mutations: tuple[Mutation, ...]


def structures(path: Path) -> Reading:
    found: Reading = {}
    for number, system in enumerate(read_systems(path)):
        found |= {
            f"{number} numbers": system.numbers,
            f"{number} positions": system.positions,
            f"{number} cell": system.cell,
        }
    return found


def plain_xyz(path: Path, ends_whole: bool = True) -> Reading:
    """Frames of extended XYZ by the columns species and pos alone."""
    lines = path.read_text(errors="replace").split("\n")
    found: Reading = {}
    row = number = 0
    while row < len(lines) and lines[row].strip():
        if not ends_whole and not any(line.strip() for line in lines[row + 1 :]):
            break
        atoms = int(lines[row])
        columns = re.search(r'Properties="?([\w:]+)', lines[row + 1], re.IGNORECASE)
        names = columns[1].split(":") if columns else ["species", "S", "1", "pos", "R", "3"]
        places, width = {}, 0
        for name, _, count in zip(*[iter(names)] * 3, strict=True):
            places[name] = width
            width += int(count)
        rows = [line.split() for line in lines[row + 2 : row + 2 + atoms]]
        if row + 2 + atoms >= len(lines) and not ends_whole:
            break  # a killed writer leaves a part of its last frame
        assert len(rows) == atoms
        start = places["pos"]
        species = [one[places["species"]] for one in rows] if "species" in places else []
        found[f"{number} numbers"] = np.array([NUMBERS.get(name, name) for name in species], int)
        positions = [[float(value) for value in one[start : start + 3]] for one in rows]
        found[f"{number} positions"] = np.array(positions)
        row, number = row + 2 + atoms, number + 1
    return found


def plain_trajectory(path: Path) -> Reading:
    found = plain_xyz(path, ends_whole=False)
    count = sum(name.endswith("positions") for name in found)
    return found | {"frames": count}


def pdb(path: Path) -> Reading:
    """Atoms of all models together, as repeated ones begin another model."""
    return {"positions": np.concatenate([one.positions for one in read_systems(path)])}


def plain_pdb(path: Path) -> Reading:
    """Positions by the columns of each record."""
    lines = path.read_text(errors="replace").splitlines()
    atoms = [line for line in lines if line.startswith(("ATOM  ", "HETATM"))]
    rows = [[float(line[start : start + 8]) for start in (30, 38, 46)] for line in atoms]
    return {"positions": np.array(rows)}


def by_ase(path: Path) -> Reading:
    found: Reading = {}
    for number, atoms in enumerate(ase.io.read(path, ":")):
        found |= {f"{number} numbers": atoms.numbers, f"{number} positions": atoms.positions}
    return found


def plain_mmcif(path: Path) -> Reading:
    lines = path.read_text(errors="replace").splitlines()
    names = [line.strip() for line in lines if line.startswith("_atom_site.")]
    columns = [names.index(f"_atom_site.Cartn_{axis}") for axis in "xyz"]
    rows = [line.split() for line in lines if line.startswith(("ATOM", "HETATM"))]
    return {"0 positions": np.array([[float(row[place]) for place in columns] for row in rows])}


def trajectory(path: Path) -> Reading:
    with read_trajectory(path) as reader:
        found: Reading = {"frames": len(reader), "steps": reader.steps}
        for number, one in enumerate(reader):
            found |= {f"{number} positions": one.positions, f"{number} energy": one.energy}
            found |= {f"{number} forces": one.forces, f"{number} cell": one.cell}
    return found


def by_h5py(path: Path) -> Reading:
    with h5py.File(path) as file:
        all_of_it = file["particles/all"]
        steps = all_of_it["position/step"][:]
        found: Reading = {"steps": steps}
        for number in range(len(steps)):
            found[f"{number} positions"] = all_of_it["position/value"][number]
    return found


def tensors_of(potential: Any) -> Reading:
    weights = {name: value.numpy() for name, value in potential.state_dict().items()}
    return weights | {"config": potential.config.model_dump_json(exclude={"name", "assumptions"})}


def potential_file(path: Path) -> Reading:
    return tensors_of(load(path))


def hyper_parameters(path: Path) -> Reading:
    """What a changed checkpoint says, of what shows in the configuration."""
    values = torch.load(path, weights_only=True)["hyper_parameters"]
    return {
        "channels": values["embedding_dimension"],
        "layers": values["num_layers"],
        "cutoff": float(values["cutoff_upper"]),
        "cutoff_lower": float(values["cutoff_lower"]),
    }


def chosen_of(path: Path) -> Reading:
    config = load(path).config
    return {name: getattr(config, name) for name in ("channels", "layers", "cutoff")} | {
        "cutoff_lower": config.cutoff_lower
    }


def imported(path: Path) -> Reading:
    found: Reading = {}
    for number, one in enumerate(import_file(path, Request())[0]):
        one.check(f"Frame {number}")
        found |= {f"{number} positions": one.positions, f"{number} energy": one.energy}
        found |= {f"{number} numbers": one.numbers, f"{number} forces": one.forces}
    return found


def plain_tables(path: Path) -> Reading:
    """The frames of an archive, or of an HDF5 file with one group a molecule, in eV and A."""
    found: Reading = {}
    number = 0
    opened = h5py.File(path) if path.suffix == ".h5" else np.load(path)
    with opened as file:
        groups = [file[name] for name in sorted(file)] if path.suffix == ".h5" else [file]
        for group in groups:
            if isinstance(group, h5py.Dataset) or not len(group):
                continue
            positions = group["positions"][...]
            assert positions.dtype.kind == "f"
            energies = np.atleast_1d(group["energy"][...]).reshape(len(positions))
            for row, places in enumerate(positions):
                found |= {f"{number} positions": places, f"{number} energy": energies[row]}
                # Without forces frames are taken, with a warning.
                found[f"{number} forces"] = group["forces"][row] if "forces" in group else None
                found |= {f"{number} numbers": group["atomic_numbers"][...]}
                number += 1
    return found


def frames_of_set(path: Path) -> Reading:
    with open_dataset(path) as dataset:
        found: Reading = {"groups": list(dataset.groups)}
        for number, one in enumerate(dataset.frames()):
            one.check(f"Frame {number}")
            found |= {f"{number} positions": one.positions, f"{number} energy": one.energy}
            found |= {f"{number} forces": one.forces, f"{number} numbers": one.numbers}
    return found


def plain_set(path: Path) -> Reading:
    found: Reading = {}
    with h5py.File(path) as file:
        ends = np.cumsum(file["frames/atoms"][:])
        for number, end in enumerate(ends):
            rows = slice(end - file["frames/atoms"][number], end)
            for name in ("positions", "forces", "numbers"):
                found[f"{number} {name}"] = file[f"atoms/{name}"][rows]
            found[f"{number} energy"] = file["frames/energy"][number]
    return found


def numbers_in(values: Any, prefix: str = "") -> Reading:
    """Every number of nested mappings and sequences, by its place."""
    if isinstance(values, dict):
        pairs = list(values.items())
    elif isinstance(values, list | tuple):
        pairs = list(enumerate(values))
    else:
        plain = isinstance(values, int | float) and not isinstance(values, bool)
        return {prefix: float(values)} if plain else {}
    return {
        name: number
        for key, value in pairs
        for name, number in numbers_in(value, f"{prefix}/{key}").items()
    }


def by_yaml(path: Path) -> Reading:
    return numbers_in(yaml.safe_load(path.read_text()))


def md_settings(path: Path) -> Reading:
    return numbers_in(read_configuration(MDConfig, path, {}).model_dump())


def training_settings(path: Path) -> Reading:
    return numbers_in(read_training(path, {}).model_dump())


def stages(path: Path) -> Reading:
    found = read_protocol(path, None, path.parent / "out")
    return {"stages": len(found)}


def stages_by_yaml(path: Path) -> Reading:
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # as configurations are read
    return {"stages": len(yaml.safe_load(text)["stages"])}


def record(path: Path) -> Reading:
    return numbers_in(RunDirectory(path.parent).read_record())


def by_json(path: Path) -> Reading:
    return numbers_in(json.loads(path.read_text(errors="replace")))


def parts(path: Path) -> Reading:
    with open_dataset(path.parent / "set.h5") as dataset:
        found = read_split(path, dataset)
    return {name: np.array(value) for name, value in found.parts()}


def parts_by_json(path: Path) -> Reading:
    found = json.loads(path.read_text(errors="replace"))
    return {name: np.array(found[name]) for name in ("train", "validation")}


def restart(path: Path) -> Reading:
    run = toy(DYNAMICS["langevin"]())
    load_restart_(run, path)
    return {name: value.numpy() for name, value in run.state.tensors().items()} | {"step": run.step}


def training_checkpoint(path: Path) -> Reading:
    found = read_checkpoint(path)
    tensors = {name: value.numpy() for name, value in found.tensors.items()}
    return tensors | {"step": found.progress.step, "network": found.network.model_dump_json()}


# ---- sound files


def write_atoms(name: str, **options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        cell = ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True)
        cell.rattle(0.05, seed=1)
        ase.io.write(folder / name, cell, **options)
        return folder / name

    return write


def write_pdb(folder: Path) -> Path:
    atoms = ase.build.molecule("CH3CH2OH")
    atoms.set_cell([9.0, 9.5, 10.0])
    ase.io.write(folder / "ethanol.pdb", atoms)
    return folder / "ethanol.pdb"


def write_mmcif(folder: Path) -> Path:
    names = ("group_PDB", "id", "type_symbol", "label_atom_id", "Cartn_x", "Cartn_y", "Cartn_z")
    lines = ["data_water", "_cell.length_a 9.0", "_cell.length_b 9.0", "_cell.length_c 9.0"]
    lines += [f"_cell.angle_{name} 90.0" for name in ("alpha", "beta", "gamma")]
    lines += ["loop_", *(f"_atom_site.{name}" for name in names)]
    lines += [
        "HETATM 1 O O 0.0 0.0 0.0",
        "HETATM 2 H H1 0.96 0.0 0.0",
        "HETATM 3 H H2 -0.2 0.9 0.0",
    ]
    path = folder / "water.mmcif"
    path.write_text("\n".join([*lines, "#", ""]))
    return path


def write_trajectory(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        with create_trajectory(folder / name, water()) as writer:
            for step in (0, 10, 20):
                writer.append(frame(step))
        return folder / name

    return write


def write_restart(folder: Path) -> Path:
    run = toy(DYNAMICS["langevin"]())
    run.run(11)
    save_restart(run, folder / "checkpoint.safetensors")
    return folder / "checkpoint.safetensors"


def write_training(folder: Path) -> Path:
    potential = network(**TENSORNET)
    path = folder / "checkpoint.safetensors"
    write_checkpoint(
        path, Checkpoint(dict(potential.state_dict()), Progress(step=7), potential.config)
    )
    return path


def write_native(folder: Path) -> Path:
    save(network(**TENSORNET), folder / "model.safetensors")
    return folder / "model.safetensors"


def write_ckpt(folder: Path) -> Path:
    torch.save(torchmdnet_content(network(**TENSORNET)), folder / "model.ckpt")
    return folder / "model.ckpt"


def write_folder(folder: Path) -> Path:
    settings_of = TENSORNET | {
        "self_interaction": False,
        "readout_activation": False,
        "readout": {"kind": "gated", "hidden": (6, 6, 6)},
        "radial_basis": {"kind": "smooth_bessel", "number": 3},
    }
    return write_matgl(folder / "matgl", *matgl_content(network(**settings_of)))


def write_tables(folder: Path) -> Path:
    with h5py.File(folder / "tables.h5", "w") as file:
        for number, atoms in enumerate(copper(4)):
            group = file.create_group(f"molecule{number}")
            group["atomic_numbers"] = atoms.numbers
            group["positions"] = atoms.positions[None]
            group["energy"] = np.array([atoms.get_potential_energy()])
            group["forces"] = atoms.get_forces()[None]
    return folder / "tables.h5"


def write_archive(folder: Path) -> Path:
    frames = copper(6)[::2]
    np.savez(
        folder / "frames.npz",
        atomic_numbers=frames[0].numbers,
        positions=np.stack([one.positions for one in frames]),
        energy=np.array([one.get_potential_energy() for one in frames]),
        forces=np.stack([one.get_forces() for one in frames]),
    )
    return folder / "frames.npz"


def write_frames(folder: Path) -> Path:
    ase.io.write(folder / "frames.extxyz", copper(4))
    return folder / "frames.extxyz"


def write_set(folder: Path) -> Path:
    frames = [labelled(one) for one in copper(10)]
    write_dataset(folder / "set.h5", [(frames, Provenance("made"))])
    return folder / "set.h5"


def write_parts(folder: Path) -> Path:
    with open_dataset(write_set(folder)) as dataset:
        write_split(random_split(dataset, 0.2, 0.0, 0), folder / "split.json")
    return folder / "split.json"


def write_md(folder: Path) -> Path:
    return Path(shutil.copy(ROOT / "examples" / "water_md.yaml", folder / "md.yaml"))


def write_protocol(folder: Path) -> Path:
    return Path(shutil.copy(ROOT / "examples" / "water_protocol.yaml", folder / "protocol.yaml"))


def write_recipe(folder: Path) -> Path:
    return Path(shutil.copy(ROOT / "potentials" / "water-pbe0" / "train.yaml", folder))


def write_record(folder: Path) -> Path:
    chosen = {"captured_as_cuda_graph": False, "skin_A": 1.0, "steps_per_replay": 4}
    RunDirectory(folder).write_record(
        {
            "configuration": {"timestep_fs": 0.5, "steps": 100},
            "potential": {"sha256": "0" * 64, "name": "mine"},
            "structure": {"atoms": 3, "formula": "H2O", "charge_e": 0.0},
            "chosen": chosen,
            "environment": {"gpu": None, "threads": 1},
        }
    )
    return folder / "run.json"


# ---- mutations of what has a structure of its own


def of_file(name: str, mutation: Mutation) -> Mutation:
    """The mutation of one file of a folder."""
    return lambda data, path: mutation(data, path / name)


def damaged_checkpoint(data: DataObject, path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"] = damaged_tree(data, content["hyper_parameters"])
    torch.save(content, path)


def damaged_tensor_file(data: DataObject, path: Path) -> None:
    """Changes metadata or a tensor, with the checksum of what it says then."""
    tensors, metadata = read_tensors(path, "a file")
    if data.draw(strategies.booleans()):
        key = data.draw(strategies.sampled_from(sorted(metadata)))
        metadata[key] = json.dumps(damaged_tree(data, json.loads(metadata[key])))
    else:
        name = data.draw(strategies.sampled_from(sorted(tensors)))
        value = tensors[name]
        change = data.draw(strategies.sampled_from(["drop", "shape", "type", "nan"]))
        if change == "drop":
            del tensors[name]
        elif change == "shape":
            tensors[name] = value[None].repeat(2, *[1] * value.dim())
        elif change == "type":
            tensors[name] = value.to(torch.int8)
        elif value.is_floating_point():
            tensors[name] = value * float("nan")
    path.write_bytes(serialize(tensors, metadata))


def config_of(path: Path) -> Reading:
    """The numbers of the configuration that a file of ours states."""
    _, metadata = read_tensors(path, "a file")
    stated = json.loads(metadata["mdgraph"])
    stated.pop("name", None)
    return {"numbers": TensorNetConfig.model_validate(stated).model_dump_json(exclude={"name"})}


def read_config(path: Path) -> Reading:
    return {"numbers": load(path).config.model_dump_json(exclude={"name"})}


TEXT = (damaged_text, damaged_text, damaged_bytes)
FORMATS: dict[str, Format] = {
    "extxyz": Format(write_atoms("cell.extxyz"), structures, plain_xyz, TEXT),
    "pdb": Format(write_pdb, pdb, plain_pdb, TEXT),
    "cif": Format(write_atoms("cell.cif"), structures, by_ase, TEXT),
    "mmcif": Format(write_mmcif, structures, plain_mmcif, TEXT),
    "poscar": Format(write_atoms("POSCAR", format="vasp"), structures, by_ase, TEXT),
    "h5md": Format(
        write_trajectory("t.h5"), trajectory, by_h5py, (damaged_hdf5, damaged_hdf5, damaged_bytes)
    ),
    "xyz trajectory": Format(write_trajectory("t.extxyz"), trajectory, plain_trajectory, TEXT),
    "restart": Format(write_restart, restart, None, (damaged_bytes,)),
    "checkpoint of a training": Format(write_training, training_checkpoint, None, (damaged_bytes,)),
    "potential": Format(write_native, potential_file, None, (damaged_bytes,)),
    "potential's description": Format(write_native, read_config, config_of, (damaged_tensor_file,)),
    "TorchMD-Net": Format(write_ckpt, potential_file, None, (damaged_bytes,)),
    "TorchMD-Net's settings": Format(
        write_ckpt, chosen_of, hyper_parameters, (damaged_checkpoint,)
    ),
    "MatGL": Format(
        write_folder,
        potential_file,
        None,
        (
            of_file("state.pt", damaged_bytes),
            of_file("model.pt", damaged_bytes),
            of_file("model.json", damaged_bytes),
            of_file("model.json", damaged_json),
        ),
    ),
    "hdf5 tables": Format(
        write_tables, imported, plain_tables, (damaged_hdf5, damaged_hdf5, damaged_bytes)
    ),
    "npz": Format(write_archive, imported, plain_tables, (damaged_archive, damaged_bytes)),
    "xyz data": Format(write_frames, imported, plain_xyz, TEXT),
    "data set": Format(
        write_set, frames_of_set, plain_set, (damaged_hdf5, damaged_hdf5, damaged_bytes)
    ),
    "split": Format(write_parts, parts, parts_by_json, (damaged_json, *TEXT)),
    "md.yaml": Format(write_md, md_settings, by_yaml, TEXT),
    "protocol.yaml": Format(write_protocol, stages, stages_by_yaml, TEXT),
    "train.yaml": Format(write_recipe, training_settings, by_yaml, TEXT),
    "run.json": Format(write_record, record, by_json, (damaged_json, *TEXT)),
}


def same(found: Any, expected: Any) -> bool:
    """Whether numbers agree to what a text of them holds, and texts wholly."""
    if found is None or expected is None:
        return found is expected
    if isinstance(found, str) or isinstance(expected, str):
        return bool(found == expected)
    first, second = np.asarray(found), np.asarray(expected)
    if first.shape != second.shape or first.dtype.kind in "OSU":
        return bool(first.shape == second.shape and (first == second).all())
    return bool(np.allclose(first, second, rtol=1e-6, atol=2e-6, equal_nan=True))


def agree(found: Reading, expected: Reading) -> bool:
    """Whether two readings say the same of all that both speak of, which is something."""
    both = found.keys() & expected.keys()
    return (bool(both) or not expected) and all(same(found[name], expected[name]) for name in both)


def check_case(name: str, sound: tuple[Path, Reading], data: DataObject) -> str:
    """Reads one damaged file; returns what became of it."""
    one = FORMATS[name]
    source, expected = sound
    folder = source.parent.parent / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source.parent, folder)
    path = folder / source.name
    data.draw(strategies.sampled_from(one.mutations))(data, path)
    outcome = in_fork(lambda: one.read(path))
    if outcome.kind == "refused":
        sentence = str(outcome.value)
        assert sentence.rstrip().endswith((".", "?")), sentence
        assert len(sentence) < 5000, sentence[:1000]
        return "refused"
    assert outcome.kind == "value", f"{outcome.kind}: {outcome.value}"
    if outcome.value.keys() == expected.keys() and agree(outcome.value, expected):
        return "the same"
    assert one.second is not None, "accepted, though it is not what was written"
    again = in_fork(lambda: one.second(path))
    assert again.kind == "value", f"accepted as {outcome.value}, but the second reader: {again}"
    assert agree(outcome.value, again.value), f"{outcome.value} is not {again.value}"
    return "read as it is"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Reading]]:
    """Path and content of a sound file of each format, made once."""
    made: dict[str, tuple[Path, Reading]] = {}

    def make(name: str) -> tuple[Path, Reading]:
        if name not in made:
            folder = tmp_path_factory.mktemp("format") / "sound"
            folder.mkdir()
            path = FORMATS[name].write(folder)
            made[name] = path, FORMATS[name].read(path)
        return made[name]

    return make


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_or_read_as_they_are(
    name: str, sound: Callable[[str], tuple[Path, Reading]]
) -> None:
    fuzz(name, sound(name), 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files_are_refused_or_read_as_they_are(
    name: str,
    sound: Callable[[str], tuple[Path, Reading]],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("cases", fuzz(name, sound(name), 90))


def fuzz(name: str, file: tuple[Path, Reading], cases: int) -> dict[str, int]:
    counts: dict[str, int] = {}

    @given(data=strategies.data())
    # Shrinking a case would take longer than it takes to look at it.
    @settings(
        max_examples=cases,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(data: DataObject) -> None:
        kind = check_case(name, file, data)
        counts[kind] = counts.get(kind, 0) + 1

    torch.set_num_threads(1)  # threads do not survive a fork
    run()
    return counts
