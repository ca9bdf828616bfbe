"""How exact a potential is computed on a structure."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mdgraph.engine import Calculation
from mdgraph.errors import CapacityError, InputError
from mdgraph.fused.agreement import SMALLEST_FORCE, Agreement, compare
from mdgraph.memory import Workload, available_memory, estimated_memory, memory_failures
from mdgraph.precision import PRECISIONS
from mdgraph.runs.configuration import BenchConfig
from mdgraph.runs.potential import Source
from mdgraph.runs.record import evaluator_name
from mdgraph.runs.subject import read_subject, title
from mdgraph.system import System


def accuracy(configuration: BenchConfig) -> dict[str, Any]:
    """Errors of energy, forces and stress in every precision, against `double`.

    All atoms are compared, at the positions of the file: `single` also rounds those.

    Raises:
        MDGraphError: anything that cannot be; CapacityError where `double` does not fit in
            memory.
    """
    if "precision" in configuration.model_fields_set:
        raise InputError("--verify looks at every precision; leave --precision out.")
    if configuration.picture is not None:
        raise InputError("--picture draws times; leave it or --verify out.")
    subject = read_subject(configuration)
    source, system, device = subject.source, subject.system, subject.device

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
    return subject.about() | {"force_rms_eV_per_A": force, "errors": errors}


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
    needed = estimated_memory(
        Workload(source.potential, atoms, capacities, calculation.precision, calculation.device)
    )
    free = available_memory(calculation.device)
    if needed > free:
        raise CapacityError(
            f"The reference in float64 needs about {needed / 1e9:.1f} GB for {atoms:,} atoms, and "
            f"{calculation.device} has {free / 1e9:.1f} GB free; give a smaller structure."
        )


def accuracy_table(found: Mapping[str, Any]) -> str:
    """What `accuracy` found, to be read by people."""
    lines = [
        f"{title(found)}; RMS force {found['force_rms_eV_per_A']:.3g} eV/A",
        f"Errors against double; in brackets over the RMS force ({SMALLEST_FORCE:g} eV/A at least)",
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
