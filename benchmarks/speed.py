"""Times energy, forces and virial, and whole steps, with memory and errors beside them.

    python benchmarks/speed.py [--aceff aceff-1.1.ckpt] [--matpes FOLDER] [--million] ...

One line a structure. Water: clusters of 24 and 165 atoms, else periodic boxes of liquid
density (about 54 neighbors within 5 A), with TorchMD-Net's sizes (128 channels, 2 layers, 32
functions, 5 A) and random weights: the cost does not depend on them. AceFF: structures
given, or a stand-in of its elements. MatPES: rattled rock salt (about 26 neighbors).

Times are means over many calls, host included, and of these the median of five, where there is
time for five: of a replay of the graph that brings the list up to date and evaluates energy,
forces and virial; and of a Langevin step as `Simulation` runs it, with a list built at every step;
`steps.py` has more of steps. A CPU has no graphs, and keeps its list by a skin.
Memory is all that torch held at most. Errors are against float64 on the same positions: of
the energy of an atom, of forces over the RMS force component, RMS and for the worst atom, and
of the stress of a box, the worst component (where atoms are sampled, what their virial errs by
at the density of the box); "compared" says for how many atoms. "ratio" is the peer's time
over the first of ours.
"""

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from cases import (
    CLUSTERS,
    Table,
    conditions,
    device_argument,
    hardware,
    print_heading,
    print_row,
    random_potential,
    run_script,
    salt,
    solution,
    water,
)

from mdgraph import load
from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.engine.simulation import WORTHWHILE
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused.evaluator import EVALUATORS, chosen_evaluator
from mdgraph.fused.verification import SECONDS, verify
from mdgraph.gpu.graphs import captured
from mdgraph.io.structures import read_system
from mdgraph.models import TensorNetPotential
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.processes import keep_workspaces_small
from mdgraph.runs.bench import begin_peak, milliseconds, peak_memory, repeating
from mdgraph.runs.folder import evaluator_name
from mdgraph.system import System

SIZES = {"cuda": [24, 165, 648, 3000, 12288, 24000, 98304], "cpu": [24, 192, 648]}
STAND_IN_SIZES = (24, 165, 2268, 23559)
SALT_CELLS = (2, 4, 8, 11)  # 64, 512, 4096 and 10,648 atoms
MILLION = 1_000_002  # a multiple of three: whole molecules


@dataclass(frozen=True)
class Peer:
    """Another program's time, ms, and peak memory, GB."""

    milliseconds: float | str | None = None
    gigabytes: float | None = None


NO_PEER = Peer()

# TorchMD-Net 3.1.0 with its Warp kernels, torch 2.11+cu130, float32, 2026-11-20: energy and
# forces with its list, no virial; the best of eager, CUDA graph and torch.compile, and of its
# two lists. Memory is that of the graph. See docs/benchmarks.md.
TORCHMD_NET = {
    24: Peer(1.37, 0.24),
    165: Peer(2.24, 0.61),
    648: Peer(4.66, 1.8),
    3000: Peer(16.7, 7.4),
    12288: Peer(58.9, 30.0),
    24000: Peer(108.7, 58.0),
    98304: Peer("too large"),  # for 140 GB
}

# MatGL 4.1.2 with its Warp kernels, the same card and day: one call through ASE with list,
# energy, forces and stress.
MATGL = {64: Peer(20.9), 512: Peer(22.1), 4096: Peer(39.6), 10648: Peer(80.8, 7.4)}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    structure: str
    system: System
    peer: Peer = NO_PEER


def groups(options: argparse.Namespace) -> Iterator[tuple[str, TensorNetPotential, list[Case]]]:
    """Potentials, and the structures for each."""
    sizes = [*options.atoms, *([MILLION] if options.million else [])]
    boxes = [
        Case(
            f"water {'cluster' if n in CLUSTERS else 'box'}", water(n), TORCHMD_NET.get(n, NO_PEER)
        )
        for n in sizes
    ]
    if boxes:
        yield "random weights, 2 layers (peer: TorchMD-Net 3.1.0)", random_potential(), boxes
    if options.aceff:
        structures = [Case(path.stem, read_system(path)) for path in options.aceff_structures]
        made = [Case("acetamide in water", solution(n)) for n in STAND_IN_SIZES]
        potential = load(options.aceff)
        if options.coulomb_cutoff is not None:
            potential = potential.with_coulomb_cutoff(options.coulomb_cutoff)
        yield f"AceFF, {options.aceff.name}", potential, structures or made
    if options.matpes:
        crystals = [salt(cells) for cells in SALT_CELLS]
        cases = [
            Case("rattled NaCl", crystal, MATGL.get(len(crystal), NO_PEER)) for crystal in crystals
        ]
        yield f"MatPES, {options.matpes.name} (peer: MatGL 4.1.2)", load(options.matpes), cases


TIMESTEP = 1e-6  # fs; random weights hold no liquid together, so the atoms stay where they are
MOST_ATOMS_STEPPED = 500_000


class Bench:
    """One potential on one device; its tables are built once.

    Between two structures the evaluator turns to the smallest one of all, so that memory
    holds the buffers of no other large one.
    """

    def __init__(
        self, model: TensorNetPotential, smallest: System, options: argparse.Namespace
    ) -> None:
        self.device: torch.device = options.device
        self.options = options
        self.common = {"device": self.device, "precision": options.precision}
        precision = precision_named(options.precision)
        self.evaluator = chosen_evaluator(model, precision, self.device, options.evaluator)
        self.model = model
        self.smallest = smallest

    def row(self, case: Case) -> dict[str, Any]:
        """Builds, times and checks one structure."""
        row: dict[str, Any] = {"structure": case.structure, "atoms": len(case.system)}
        try:
            self._release()
            return row | self._measured(case)
        except torch.OutOfMemoryError:
            return row | {"evaluation_ms": "too large"}

    def _release(self) -> None:
        """Frees the buffers of the structure before."""
        self._calculation(self.smallest).compute()
        gc.collect()
        begin_peak(self.device)

    def _calculation(self, system: System) -> Calculation:
        return Calculation([system], self.evaluator, cell_varies=False, **self.common)

    def _measured(self, case: Case) -> dict[str, Any]:
        simulation = None
        if len(case.system) <= MOST_ATOMS_STEPPED:
            simulation = self._simulation(case.system)
            calculation = simulation.calculation
        else:
            calculation = self._calculation(case.system)
            calculation.compute()
        row: dict[str, Any] = {
            "listed": float(calculation.lists[0].count.double().mean()),
            "capacity": calculation.lists[0].capacity,
            "evaluation_ms": self._evaluation(calculation),
        }
        if simulation is not None:
            row["step_ms"] = self._step(simulation)
            row["graph"] = simulation.graphed
        if self.device.type == "cuda":
            row["memory_KB"] = (peak_memory(self.device) or 0) / len(case.system) / 1e3
        return row | self._errors(calculation) | self._ratio(case, row["evaluation_ms"])

    def _simulation(self, system: System) -> Simulation:
        integrator = LangevinMiddle(TIMESTEP, 300.0, 1.0)
        skin = 0.0 if self.device.type == "cuda" else None
        return Simulation(system, self.evaluator, integrator, skin=skin, check=False, **self.common)

    def _step(self, simulation: Simulation) -> float:
        if self.device.type == "cuda":
            simulation.choose(WORTHWHILE)  # or that would be timed too
        return milliseconds(simulation.run, self.device, self.options.seconds, simulation.chunk)

    def _evaluation(self, calculation: Calculation) -> float:
        update: Callable[[], object] = calculation.update_
        if self.device.type == "cuda":
            graph = captured(calculation.update_, self.device)
            update = graph.replay if graph else update
        return milliseconds(repeating(update), self.device, self.options.seconds)

    def _errors(self, calculation: Calculation) -> dict[str, Any]:
        """Comes last: the evaluator turns to other states, and graphs lose their buffers.

        What is compared with is made here, as memory would count it otherwise.
        """
        atoms = calculation.state.grouping.atoms
        volume = float(torch.linalg.det(calculation.state.cell[0]).abs())
        agreement = verify(
            self.evaluator,
            AutogradEvaluator(self.model.at_precision(torch.float64).to(self.device)),
            calculation.state,
            calculation.lists,
            seconds=inf if atoms <= self.options.check else SECONDS,
        )
        return {
            "energy_error": agreement.energy,
            "force_error_rms": agreement.force_rms / agreement.force_scale,
            "force_error_worst": agreement.force_worst / agreement.force_scale,
            "force_rms_eV_per_A": agreement.force_scale,
            "stress_error": agreement.virial * atoms / volume if volume else None,
            "compared": agreement.atoms,
        }

    def _ratio(self, case: Case, evaluation: float) -> dict[str, Any]:
        peer = case.peer
        if self.device.type != "cuda" or "H200" not in hardware(self.device):
            return {}
        row: dict[str, Any] = {"peer_ms": peer.milliseconds}
        if peer.gigabytes:
            row["peer_memory_KB"] = 1e6 * peer.gigabytes / len(case.system)
        if isinstance(peer.milliseconds, float):
            row["ratio"] = peer.milliseconds / evaluation
        return row


TABLE = Table(
    (
        ("structure", "structure", ""),
        ("atoms", "atoms", ","),
        ("in list", "listed", ".1f"),
        ("E+F+W ms", "evaluation_ms", ".4g"),
        ("step ms", "step_ms", ".4g"),
        ("KB/atom", "memory_KB", ",.0f"),
        ("dE eV/atom", "energy_error", ".1e"),
        ("dF RMS", "force_error_rms", ".1e"),
        ("dF worst", "force_error_worst", ".1e"),
        ("dS eV/A3", "stress_error", ".1e"),
        ("compared", "compared", ","),
        ("peer ms", "peer_ms", ".4g"),
        ("peer KB", "peer_memory_KB", ",.0f"),
        ("ratio", "ratio", ".1f"),
    ),
    width=11,
    name=28,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="*", help="sizes of water; none: no water")
    parser.add_argument("--million", action="store_true", help="a box of a million atoms too")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--evaluator", default="auto", choices=EVALUATORS)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--seconds", type=float, default=1.0, help="spent on one time")
    parser.add_argument(
        "--check", type=int, default=12288, help="most atoms compared in full; beyond, samples"
    )
    parser.add_argument("--aceff", type=Path, help="checkpoint of AceFF")
    parser.add_argument(
        "--coulomb-cutoff", type=float, help="A, reaction field of AceFF-2.0, which boxes need"
    )
    parser.add_argument("--aceff-structures", type=Path, nargs="+", default=[], help="files for it")
    parser.add_argument("--matpes", type=Path, help="folder of a TensorNet that MatGL wrote")
    parser.add_argument("--json", action="store_true", help="one JSON line a row")
    options = parser.parse_args()
    if options.atoms is None:
        options.atoms = SIZES[options.device.type]
    return options


def main() -> None:
    """Prints the table."""
    keep_workspaces_small()  # as commands do, or the self-check's would count
    options = arguments()
    common = conditions(options.device, options.precision)
    print_heading(TABLE, common, options.json)
    for title, model, cases in groups(options):
        smallest = min((case.system for case in cases), key=len)
        bench = Bench(model, smallest, options)
        used = {"potential": title, "evaluator": evaluator_name(bench.evaluator)}
        if not options.json:
            print(f"{title}; {used['evaluator']} evaluator")
        for case in cases:
            print_row(TABLE, bench.row(case), used | common, options.json)


if __name__ == "__main__":
    run_script(main)
