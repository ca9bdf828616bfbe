"""What is timed or verified: a potential, a structure and a device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.devices import device_named
from mdgraph.host_memory import check_fits
from mdgraph.io.structures import read_system
from mdgraph.memory import available_memory
from mdgraph.runs.configuration import BenchConfig
from mdgraph.runs.potential import Source, read_potential, say_neutral, with_charge
from mdgraph.runs.record import environment, formula
from mdgraph.runs.water import water
from mdgraph.system import System

_ATOMS: Final = {"cpu": 192, "cuda": 648}
"""Of a box of water where nobody gave a size."""

_LEAST_BYTES: Final = 4000
"""An atom, that any potential takes to be evaluated."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What was asked for.

    Attributes:
        source: the potential.
        system: the structure.
        device: where it runs.
        made: whether the structure was made on the spot, and has to settle.
    """

    source: Source
    system: System
    device: torch.device
    made: bool

    def moved(self, positions: Tensor, velocities: Tensor) -> "Subject":
        """The same with the atoms elsewhere; reads the device."""
        there = self.system.replace(
            positions=positions.cpu().double().numpy(), velocities=velocities.cpu().double().numpy()
        )
        return replace(self, system=there)

    def about(self) -> dict[str, Any]:
        """For programs, with versions and hardware."""
        return {
            "potential": self.source.name,
            "atoms": len(self.system),
            "formula": formula(self.system),
            "device": str(self.device),
            "environment": environment(self.device),
        }


def read_subject(configuration: BenchConfig) -> Subject:
    """Loads the potential, and reads the structure or makes a box of water.

    Without any size and file, that box comes with the potential that is the default, and the
    start beside its file with a potential that was named.

    Raises:
        MDGraphError: anything that cannot be.
    """
    device = device_named(configuration.device)
    source = read_potential(configuration)
    atoms, named = configuration.atoms, "potential" in configuration.model_fields_set
    made = configuration.structure is None and not (named and atoms is None)
    if configuration.structure is not None:
        system = read_system(configuration.structure)
    elif made:
        count = atoms or _ATOMS[device.type]
        check_fits(
            _LEAST_BYTES * count,
            available_memory(device),
            f"A box of {count:,} atoms",
            "ask for less",
        )
        system = water(count)
    else:
        system = source.start()
    say_neutral([system], configuration, source)
    return Subject(source, with_charge(system, configuration, source), device, made)


def title(about: Mapping[str, Any]) -> str:
    """What `Subject.about` tells, in a line."""
    machine = about["environment"]
    threads = machine["threads"]
    processor = f"{machine['processor']}, {threads} thread{'s' * (threads != 1)}"
    hardware = machine["gpu"] or processor
    return f"{about['potential']}, {about['formula']} ({about['atoms']:,} atoms), {hardware}"
