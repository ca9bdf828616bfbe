"""What a training starts from: reference energies, another potential, new elements."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import training_sets
from ase import Atoms
from ase.build import bulk
from copper_frames import written
from published_files import matgl_content, torchmdnet_content, write_matgl
from random_networks import TENSORNET, TENSORNET2, evaluated, network, spread_atoms
from training_sets import NETWORK, clusters, prepare, settings, weights_of

from mdgraph.checkpoints import load
from mdgraph.data import open_dataset
from mdgraph.errors import InputError, UnknownSpeciesError
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.models.potential import check_species
from mdgraph.system import System
from mdgraph.train.loop import Training, train
from mdgraph.train.progress import training_hash
from mdgraph.train.references import isolated_atoms
from mdgraph.train.setup import with_elements, with_only
from mdgraph.units import NUMBERS

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.mark.parametrize("box", [0.0, 12.0])
def test_isolated_atoms_give_the_references(tmp_path: Path, box: float) -> None:
    """Alone, or as codes of plane waves have them; a crystal of one atom is none."""
    frames = clusters(12)
    single = [
        type(frames[0])(
            np.array([number]),
            np.zeros((1, 3)),
            box * np.eye(3),
            np.full(3, box > 0.0),
            energy=energy,
            forces=np.zeros((1, 3)),
        )
        for number, energy in ((8, -432.1), (29, -45000.25))
    ]
    shifted = []
    for frame in frames:
        energy = frame.energy + sum({8: -432.1, 29: -45000.25}[int(n)] for n in frame.numbers)
        shifted.append(type(frame)(**(vars(frame) | {"energy": energy})))
    path = prepare(tmp_path, [*shifted, *single], split=None, seed=3, refit=False, steps=1)
    training = Training(settings(path), resume=False, quiet=True)
    references = training.potential.references
    assert float(references[0] - references[1]) == pytest.approx(-432.1 + 45000.25, abs=1e-6)
    assert not {12, 13} & set(training.parts.every.tolist())
    with written(tmp_path / "crystal.h5", [training_sets.labelled(bulk("Cu", a=8.0))]) as dataset:
        assert isolated_atoms(dataset) == {}
    config = settings(path, references={"O": -1.0}, out=str(tmp_path / "b"))
    with pytest.raises(InputError, match="Cu has no energy among references"):
        Training(config, resume=False, quiet=True)


def test_least_squares_takes_the_least_norm_of_one_composition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepare(tmp_path, clusters(24)[0::2], references="least-squares", refit=False, steps=1)
    with caplog.at_level(logging.INFO):
        training = Training(settings(path), resume=False, quiet=True)
    assert "the compositions determine 1 of 2, so the solution of least norm" in caplog.text
    oxygen, copper = training.potential.references.tolist()
    assert copper == pytest.approx(4.0 * oxygen)


def test_normalized_weights_keep_the_variance(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(8), initialization="normalized", seed=5)
    drawn = [Training(settings(path), resume=False, quiet=True).potential for _ in range(2)]
    layers = [one for one in drawn[0].modules() if isinstance(one, torch.nn.Linear)]
    spread = torch.cat([one.weight.detach().flatten() * one.in_features**0.5 for one in layers])
    assert float(spread.std()) == pytest.approx(1.0, abs=4.0 / (2.0 * len(spread)) ** 0.5)
    assert all((one.bias == 0.0).all() for one in layers if one.bias is not None)
    first, second = (one.state_dict() for one in drawn)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_fine_tuning_keeps_what_is_frozen(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(16), steps=40)
    train(settings(path), quiet=True)
    start = str(tmp_path / "out")
    tuned = {"start_from": start, "out": str(tmp_path / "tuned"), "steps": 20, "potential": None}
    config = settings(prepare(tmp_path, [], **tuned, freeze=["embedding", "layers.0"], seed=1))
    train(config, quiet=True)
    before, after = weights_of(tmp_path / "out"), weights_of(tmp_path / "tuned")
    frozen = [name for name in before if ".embedding." in name or ".layers.0." in name]
    assert len(frozen) > 10
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert not torch.equal(before["network.linear.weight"], after["network.linear.weight"])
    assert torch.equal(before["scale"], after["scale"])
    # The checkpoint holds what is frozen too: nothing else is needed to go on.
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "tuned" / "model.safetensors").unlink()
    train(config, resume=True, quiet=True)
    again = weights_of(tmp_path / "tuned")
    assert all(torch.equal(value, again[name]) for name, value in after.items())


def test_an_element_is_added_to_a_potential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Silver begins as copper; what knew copper and oxygen alone gives the same energies."""
    path = prepare(tmp_path, clusters(16), steps=40)
    train(settings(path), quiet=True)
    frames = []
    for frame in clusters(16, seed=5):
        silver = np.where(np.arange(5) == 2, 47, frame.numbers)
        frames.append(training_sets.labelled(Atoms(silver, frame.positions)))
    (tmp_path / "more").mkdir()
    tuned = {"start_from": str(tmp_path / "out"), "potential": None}
    config = settings(prepare(tmp_path / "more", frames, **tuned, steps=40, validations=1))
    with caplog.at_level(logging.INFO):
        training = Training(config, resume=False, quiet=True)
    assert "Ag as Cu" in caplog.text
    assert training.potential.species == (8, 29, 47)
    table = training.potential.network.embedding.species.weight
    assert torch.equal(table[2], table[1])
    before = load(tmp_path / "out")
    assert torch.equal(before.network.embedding.species.weight, table[:2].double())
    outcome = training.run()
    held = open_dataset(tmp_path / "more" / "set.h5")
    spread = np.sqrt(np.mean(held.column("forces", 0, len(held)) ** 2))
    assert outcome.metrics["validation"]["force_rmse_meV_per_A"] < 0.5 * 1e3 * spread
    assert load(tmp_path / "more" / "out").species == (8, 29, 47)
    assert not torch.equal(table[2], table[1])


@pytest.mark.parametrize(
    ("new", "known", "nearest"),
    [
        ("S", "HCNO", "O"),
        ("F", "HCNO", "O"),
        ("Br", "H C F Cl", "Cl"),
        ("Na", "H Mg Cl", "Mg"),
        ("Nd", "O Fe Y Lu", "Lu"),
        ("Au", "Cu Ag Pt", "Ag"),
        ("He", "H C Ne", "Ne"),
        ("Hf", "Ti Zr La", "Zr"),
    ],
)
def test_the_nearest_element(new: str, known: str, nearest: str) -> None:
    symbols = known.split() if " " in known else list(known)
    species = tuple(NUMBERS[symbol] for symbol in symbols)
    start = TensorNetPotential(TensorNetConfig(species=species, **NETWORK))
    found, said = with_elements(start, [NUMBERS[new]])
    assert f"{new} as {nearest}." in said
    assert found.species == (*species, NUMBERS[new])
    assert with_elements(found, species)[0] is found


@pytest.mark.parametrize("dialect", ["TorchMD-Net", "TensorNet2", "MatGL"])
def test_elements_of_the_data_alone_keep_every_bit(dialect: str, tmp_path: Path) -> None:
    """A file of each program, read and narrowed to H and O, gives what it gave, and refuses C."""
    if dialect == "MatGL":
        settings_of = TENSORNET | {"species": (1, 6, 8), "self_interaction": False}
        settings_of |= {
            "readout": {"kind": "gated", "hidden": (6, 6, 6)},
            "radial_basis": {"number": 5},
        }
        settings_of |= {"readout_activation": False, "edge_direction": "to_neighbor"}
        path = write_matgl(tmp_path / "matgl", *matgl_content(network(**settings_of)))
    else:
        path = tmp_path / "torchmdnet.ckpt"
        species = {"species": (1, 6, 8)}
        own = TENSORNET2 | {"coulomb": {"cutoff": 5.1}} if dialect == "TensorNet2" else TENSORNET
        torch.save(torchmdnet_content(network(**(own | species))), path)
    broad = load(path)
    assert isinstance(broad, TensorNetPotential)
    narrow = with_only(broad, (1, 8))
    assert set(narrow.species) == {1, 8} < set(broad.species)
    assert with_only(narrow, (1, 8)) is narrow
    numbers = np.array([8, 1, 1, 8, 1])
    places = spread_atoms(5, 4.0 * np.eye(3), False, 3)
    system = System(numbers, places)
    before, after = evaluated(broad, system), evaluated(narrow, system)
    assert float(before.forces.abs().max()) > 0.0
    assert torch.equal(before.energy, after.energy)
    assert torch.equal(before.forces, after.forces)
    check_species(broad.species, [6])
    with pytest.raises(UnknownSpeciesError, match="does not know C"):
        check_species(narrow.species, [6])


def test_a_training_keeps_the_elements_of_the_data(tmp_path: Path) -> None:
    """Oxygen alone does not leave the folder; by default it does, and no hash of it changes."""
    path = prepare(tmp_path, clusters(16), steps=1)
    train(settings(path), quiet=True)
    copper = [
        training_sets.labelled(Atoms([29] * 5, frame.positions)) for frame in clusters(16, seed=5)
    ]
    (tmp_path / "more").mkdir()
    tuned = {"start_from": str(tmp_path / "out"), "potential": None, "steps": 1, "validations": 1}
    config = settings(prepare(tmp_path / "more", copper, **tuned))
    every = Training(config, resume=False, quiet=True)
    assert every.potential.species == (8, 29)
    shutil.rmtree(config.out)
    chosen = config.model_copy(update={"elements": "data"})
    train(chosen, quiet=True)
    assert load(config.out).species == (29,)
    dataset = open_dataset(config.data)
    default = config.model_copy(update={"elements": "all"})
    assert training_hash(default, dataset) == training_hash(config, dataset)
    assert training_hash(chosen, dataset) != training_hash(config, dataset)
