"""How fast a potential runs on a structure, and how exact."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.engine.calculation import device_named
from mdgraph.errors import CapacityError, InputError
from mdgraph.fused.agreement import Agreement, compare
from mdgraph.graphs import captured
from mdgraph.io.structures import read_system
from mdgraph.memory import available_memory, estimated_memory, memory_failures
from mdgraph.precision import PRECISIONS
from mdgraph.runs.configuration import BenchConfig
from mdgraph.runs.potential import Source, read_potential, say_neutral, with_charge
from mdgraph.runs.record import environment, evaluator_name, formula
from mdgraph.system import System

_TEMPERATURE: Final = 300.0
_FRICTION: Final = 1.0
"""K and 1/ps of the steps that are timed."""

_REPEATS: Final = 5
_MOST_CALLS: Final = 100


def accuracy(configuration: BenchConfig) -> dict[str, Any]:
    """Errors of energy, forces and stress in every precision, against `double`.

    All atoms are compared, at the positions of the file: `single` also rounds those.

    Raises:
        MDGraphError: anything that cannot be; CapacityError where `double` does not fit in
            memory.
    """
    if "precision" in configuration.model_fields_set:
        raise InputError("--verify looks at every precision; leave --precision out.")
    device = device_named(configuration.device)
    source, system = _read(configuration)

    def calculated(precision: str, evaluator: str) -> Calculation:
        calculation = Calculation(
            [system],
            source.potential,
            device=device,
            precision=precision,
            skin=0.0,
            evaluator=evaluator,
        )
        if precision == "double":
            _check_memory(source, calculation)
        calculation.compute()
        return calculation

    errors = {}
    with memory_failures(device):
        exact = calculated("double", "reference").state
        for precision in PRECISIONS:
            if precision != "double":
                found = calculated(precision, configuration.evaluator)
                agreement = compare(found.state, exact, np.arange(len(system)), "all")
                errors[precision] = _errors(agreement, system) | {
                    "evaluator": evaluator_name(found.evaluator)
                }
    force = float(exact.forces.square().mean().sqrt())
    return _about(source, system, device) | {"force_rms_eV_per_A": force, "errors": errors}


def _errors(agreement: Agreement, system: System) -> dict[str, Any]:
    volume = system.volume
    return {
        "energy_eV_per_atom": agreement.energy,
        "force_rms_eV_per_A": agreement.force_rms,
        "force_rms_relative": agreement.relative_rms,
        "force_worst_eV_per_A": agreement.force_worst,
        "force_worst_relative": agreement.relative_worst,
        "force_worst_atom": agreement.force_atom,
        "stress_eV_per_A3": agreement.virial * len(system) / volume if volume > 0.0 else None,
    }


def _check_memory(source: Source, calculation: Calculation) -> None:
    capacities = [one.capacity for one in calculation.lists]
    atoms = calculation.state.grouping.atoms
    needed = estimated_memory(source.potential, atoms, capacities, calculation.precision)
    free = available_memory(calculation.device)
    if needed > free:
        raise CapacityError(
            f"The reference in float64 needs about {needed / 1e9:.1f} GB for {atoms:,} atoms, and "
            f"{calculation.device} has {free / 1e9:.1f} GB free; give a smaller structure."
        )


def accuracy_table(found: Mapping[str, Any]) -> str:
    """What `accuracy` found, to be read by people."""
    lines = [
        f"{_title(found)}; RMS force {found['force_rms_eV_per_A']:.3g} eV/A",
        "Errors against double; in brackets over the RMS force (0.3 eV/A at least)",
        f"{'':<10}{'energy':>10}{'force, RMS':>22}{'force, worst':>22}{'atom':>8}{'stress':>10}",
        f"{'':<10}{'eV/atom':>10}{'eV/A':>22}{'eV/A':>22}{'':>8}{'eV/A^3':>10}",
    ]
    for precision, error in found["errors"].items():
        rms, worst = (
            f"{error[f'force_{kind}_eV_per_A']:.1e} ({error[f'force_{kind}_relative']:.1e})"
            for kind in ("rms", "worst")
        )
        stress = error["stress_eV_per_A3"]
        lines.append(
            f"{precision:<10}{error['energy_eV_per_atom']:>10.1e}{rms:>22}{worst:>22}"
            f"{error['force_worst_atom']:>8}{'-' if stress is None else f'{stress:.1e}':>10}"
            f"  {error['evaluator']}"
        )
    return "\n".join(lines)


def speed(configuration: BenchConfig) -> dict[str, Any]:
    """Times of energy, forces and virial with a list up to date, and of whole steps.

    Raises:
        MDGraphError: anything that cannot be, or a structure that falls apart while stepping.
    """
    device = device_named(configuration.device)
    source, system = _read(configuration)
    with memory_failures(device):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        simulation = Simulation(
            system,
            source.potential,
            LangevinMiddle(configuration.timestep_fs, _TEMPERATURE, _FRICTION),
            device=device,
            precision=configuration.precision,
            evaluator=configuration.evaluator,
            check=False,
        )
        evaluation = _milliseconds(_evaluation(simulation.calculation), device, configuration)
        step = _milliseconds(simulation.run, device, configuration)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return _about(source, system, device) | {
        "precision": configuration.precision,
        "evaluator": evaluator_name(simulation.calculation.evaluator),
        "captured_as_cuda_graph": simulation.graphed,
        "skin_A": simulation.calculation.skin,
        "energy_forces_virial_ms": evaluation,
        "step_ms": step,
        "timestep_fs": configuration.timestep_fs,
        "ns_per_day": configuration.timestep_fs * 1e-6 * 86400e3 / step,
        "peak_memory_bytes": peak,
    }


def speed_text(found: Mapping[str, Any]) -> str:
    """What `speed` found, to be read by people."""
    speed = f"{found['ns_per_day']:.3g} ns/day at {found['timestep_fs']:g} fs"
    lines = [
        f"{_title(found)}; {found['precision']}, {found['evaluator']} evaluator",
        f"Energy, forces, virial  {found['energy_forces_virial_ms']:.4g} ms",
        f"Whole step              {found['step_ms']:.4g} ms ({speed})",
    ]
    if found["peak_memory_bytes"] is not None:
        lines.append(f"Peak memory             {found['peak_memory_bytes'] / 1e9:.3f} GB")
    return "\n".join(lines)


def _evaluation(calculation: Calculation) -> Callable[[int], None]:
    """A function that evaluates so many times, as replays of a graph where there is one."""

    def evaluate() -> None:
        calculation.evaluator.evaluate_(calculation.state, calculation.lists)

    graph = captured(evaluate, calculation.device) if calculation.device.type == "cuda" else None
    once = evaluate if graph is None else graph.replay

    def repeated(calls: int) -> None:
        for _ in range(calls):
            once()

    return repeated


def _milliseconds(
    function: Callable[[int], object], device: torch.device, configuration: BenchConfig
) -> float:
    """Median time of one of the calls that `function` makes, after one to warm up."""

    def timed(calls: int) -> float:
        begin = time.perf_counter()
        function(calls)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / calls

    timed(1)
    fitting = configuration.seconds / (_REPEATS * max(timed(1), 1e-9))
    calls = min(_MOST_CALLS, max(1, math.floor(fitting)))
    return 1e3 * float(np.median([timed(calls) for _ in range(_REPEATS)]))


def _read(configuration: BenchConfig) -> tuple[Source, System]:
    source = read_potential(configuration)
    path = configuration.structure
    system = source.start() if path is None else read_system(path)
    say_neutral([system], configuration, source)
    return source, with_charge(system, configuration, source)


def _about(source: Source, system: System, device: torch.device) -> dict[str, Any]:
    return {
        "potential": source.name,
        "atoms": len(system),
        "formula": formula(system),
        "device": str(device),
        "environment": environment(device),
    }


def _title(found: Mapping[str, Any]) -> str:
    about = found["environment"]
    threads = about["threads"]
    processor = f"{about['processor']}, {threads} thread{'s' * (threads != 1)}"
    hardware = about["gpu"] or processor
    return f"{found['potential']}, {found['formula']} ({found['atoms']:,} atoms), {hardware}"
