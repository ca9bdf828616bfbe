"""Shared by the benchmarks: structures, potentials, command line, conditions and tables."""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import ase.build
import numpy as np
import torch

from mdgraph import __version__
from mdgraph.devices import device_named, finish_gpu_work
from mdgraph.errors import InputError, MDGraphError
from mdgraph.evaluators import Evaluator
from mdgraph.models import RadialBasisConfig, ReadoutConfig, TensorNetConfig, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.runs.bench import water as box
from mdgraph.signals import Interrupted, settle, signals_caught
from mdgraph.state import State
from mdgraph.system import System

CLUSTERS = (24, 165)


def random_potential(channels: int = 128) -> TensorNetPotential:
    """TorchMD-Net's architecture and sizes with random weights, for hydrogen and oxygen."""
    torch.manual_seed(1)
    config = TensorNetConfig(
        species=(1, 8),
        channels=channels,
        layers=2,
        cutoff=5.0,
        radial_basis=RadialBasisConfig(number=32),
        readout=ReadoutConfig(hidden=(max(1, channels // 2),)),
        self_interaction=True,
        charge_factor=True,
    )
    return TensorNetPotential(config)


def water(atoms: int, seed: int = 1) -> System:
    """Water of liquid density; periodic, except for the sizes of clusters."""
    return box(atoms, periodic=atoms not in CLUSTERS, seed=seed)


def repeated(system: System, counts: Sequence[int]) -> System:
    """A periodic system at rest, as many times along each cell vector."""
    shifts = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1).reshape(-1, 3)
    return System(
        numbers=np.tile(system.numbers, len(shifts)),
        positions=(system.positions + (shifts @ system.cell)[:, None]).reshape(-1, 3),
        cell=system.cell * np.array(counts)[:, None],
        pbc=system.pbc,
    )


def solution(atoms: int) -> System:
    """Acetamide, the smallest peptide bond, in that water: four elements."""
    drop = atoms in CLUSTERS
    solvent = water(648 if drop else atoms)
    solute = ase.build.molecule("CH3CONH2")
    places = solute.positions - solute.positions.mean(0) + solvent.positions.mean(0)
    molecules = solvent.positions.reshape(-1, 3, 3)
    distance = np.linalg.norm(molecules[:, :, None] - places, axis=-1).min((1, 2))
    order = np.argsort(distance, kind="stable")
    kept = order[distance[order] > 1.8]
    if drop:
        kept = kept[: (atoms - len(solute)) // 3]
    return System(
        numbers=np.concatenate([solute.numbers, np.tile([8, 1, 1], len(kept))]),
        positions=np.concatenate([places, molecules[np.sort(kept)].reshape(-1, 3)]),
        cell=np.zeros((3, 3)) if drop else solvent.cell,
        pbc=np.full(3, not drop),
    )


def salt(cells: int) -> System:
    """Rock salt with every atom displaced."""
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.64, cubic=True).repeat(cells)
    displacements = np.random.default_rng(0).normal(scale=0.1, size=atoms.positions.shape)
    return System(
        numbers=atoms.numbers,
        positions=atoms.positions + displacements,
        cell=atoms.cell.array,
        pbc=atoms.pbc,
    )


class FreeFlight(Evaluator):
    """An evaluator that computes forces and then sets them to 0; energies stay."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.cutoffs = evaluator.cutoffs
        self._evaluator = evaluator

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        self._evaluator.evaluate_(state, lists)
        state.forces.zero_()


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Runs a script and exits with what it returns, or with 2 after an error raised on purpose.

    A signal, such as that of `timeout`, ends it once the GPU is done with its work: it could else
    end all that share the GPU with it, see `finish_gpu_work`.
    """
    with signals_caught():
        try:
            status = main()
        except MDGraphError as error:
            program = Path(sys.argv[0]).name
            print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
            status = 2
        except Interrupted as error:
            settle()
            status = error.status
        finally:
            finish_gpu_work()
    sys.exit(status)


def device_argument(name: str) -> torch.device:
    """The device of an option; the parser says why there is none."""
    try:
        return device_named(name)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def counts_named(text: str) -> list[int]:
    """Numbers of copies along the axes, of an option such as 2x2x4."""
    counts = text.split("x")
    if len(counts) != 3 or not all(part.isdigit() and int(part) > 0 for part in counts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of copies such as 2x2x4")
    return [int(part) for part in counts]


def processor() -> str:
    """Name of the CPU, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def hardware(device: torch.device) -> str:
    """Name of the GPU, or of the CPU with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.get_num_threads()} threads"


def installed(package: str) -> str | None:
    """Version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def conditions(device: torch.device, precision: str) -> dict[str, Any]:
    """Conditions that stand beside every number."""
    return {
        "hardware": hardware(device),
        "mdgraph": __version__,
        "torch": torch.__version__,
        "triton": installed("triton"),
        "date": date.today().isoformat(),
        "precision": precision,
    }


@dataclass(frozen=True)
class Table:
    """Columns of one width.

    Attributes:
        columns: title, key in a row, and format of each.
        width: characters.
        name: characters of a first column of names, at its left; else 0.
    """

    columns: tuple[tuple[str, str, str], ...]
    width: int
    name: int = 0

    def titles(self) -> str:
        return self._line([title for title, _, _ in self.columns])

    def text(self, row: Mapping[str, Any]) -> str:
        """A row; a dash for a missing value."""

        def cell(value: Any, form: str) -> str:
            if value is None:
                return "-"
            return value if isinstance(value, str) else format(value, form)

        return self._line([cell(row.get(key), form) for _, key, form in self.columns])

    def _line(self, cells: list[str]) -> str:
        names = [f"{cell:<{self.name}}" for cell in cells[:1] if self.name]
        return "".join([*names, *(f"{cell:>{self.width}}" for cell in cells[len(names) :])])


def print_heading(table: Table, common: Mapping[str, Any], as_json: bool) -> None:
    """Prints conditions and titles, unless rows are JSON."""
    if not as_json:
        print(", ".join(f"{name} {value}" for name, value in common.items()))
        print(table.titles())


def print_row(
    table: Table, row: Mapping[str, Any], common: Mapping[str, Any], as_json: bool
) -> None:
    """Prints a row as soon as it is known: as a line of JSON with its conditions, or as text."""
    print(json.dumps({**row, **common}) if as_json else table.text(row), flush=True)
