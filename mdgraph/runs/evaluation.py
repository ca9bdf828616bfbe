"""Energies, forces and stress of frames, from files to a file."""

from pathlib import Path

import numpy as np
from tqdm import tqdm

from mdgraph.engine import Calculation
from mdgraph.engine.calculation import as_evaluator, device_named
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.fused.verification import say_unmeasured, self_check
from mdgraph.io.evaluations import Evaluation
from mdgraph.io.files import write_atomically
from mdgraph.io.structures import read_systems
from mdgraph.memory import memory_failures
from mdgraph.precision import precision_named
from mdgraph.runs.configuration import EvalConfig
from mdgraph.runs.potential import read_potential, say_neutral, with_charge
from mdgraph.system import System


def evaluate(configuration: EvalConfig) -> int:
    """Evaluates every frame of some files and writes them to one; returns their number.

    Raises:
        MDGraphError: anything that cannot be; names the file and the frame. Nothing is
            written then.
    """
    out = Path(configuration.out)
    if out.exists() and not configuration.overwrite:
        raise FileError(
            f"{out} exists already; replace it with --overwrite, or give another name with --out."
        )
    device = device_named(configuration.device)
    precision = precision_named(configuration.precision)
    source = read_potential(configuration)
    frames = [
        (f"{path}, frame {number}", system)
        for path in configuration.structures
        for number, system in enumerate(read_systems(path))
    ]
    say_neutral([system for _, system in frames], configuration, source)
    if not configuration.check:
        say_unmeasured(precision)

    def evaluated(system: System, check: bool) -> Evaluation:
        system = with_charge(system, configuration, source)
        calculation = Calculation([system], evaluator, device=device, precision=precision, skin=0.0)
        calculation.compute()
        if check:
            self_check(evaluator, calculation.state, calculation.lists, precision)
        return _evaluation(system, calculation)

    def write(path: Path) -> None:
        with path.open("wb") as file:
            bar = tqdm(frames, desc="eval", unit="frame", disable=None)
            for number, (place, system) in enumerate(bar):
                try:
                    check = configuration.check and number == 0
                    file.write(evaluated(system, check).extended_xyz())
                except InputError as error:
                    raise type(error)(f"{place}: {error}") from error

    with memory_failures(device):
        evaluator = as_evaluator(source.potential, precision, device, configuration.evaluator)
        write_atomically(out, write)
    return len(frames)


def _evaluation(system: System, calculation: Calculation) -> Evaluation:
    state = calculation.state
    forces = state.forces.double().cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(forces).all(axis=1))
    if len(bad):
        raise InputError(
            f"The forces on atoms {name_some(bad.tolist())} are not finite; check the structure."
        )
    stress = -state.virial[0].cpu().numpy() / system.volume if system.volume > 0.0 else None
    return Evaluation(
        system=system,
        energy=float(state.energy[0]),
        energies=state.energies.cpu().numpy(),
        forces=forces,
        stress=stress,
    )
