"""Starts: the structures of a run, and which of its replicas begins from which."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mdgraph.engine import repartitioned
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.models import check_species
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.potential import Source, say_neutral, with_charge
from mdgraph.runs.replicas import distinct, replicas_of
from mdgraph.runs.selection import selected_atoms
from mdgraph.system import System


def read_starts(configuration: RunConfig) -> list[System]:
    """The structures that a configuration names, none where it names none.

    Raises:
        FileError, InputError: see `read_systems`.
    """
    every = isinstance(configuration, MDConfig) and configuration.every_frame
    frames: int | slice = slice(None) if every else -1
    return [one for path in configuration.structure or () for one in read_systems(path, frames)]


def counted(configuration: RunConfig, starts: Sequence[System]) -> RunConfig:
    """The configuration with as many replicas as there are starts, where it does not say."""
    if not isinstance(configuration, MDConfig) or configuration.replicas is not None:
        return configuration
    if len(starts) == 1 and not configuration.every_frame:
        return configuration
    return configuration.model_copy(update={"replicas": len(starts) or None})


def prepared_structures(
    configuration: RunConfig, source: Source, starts: Sequence[System]
) -> list[System]:
    """What every replica of all ranks begins from, with the charge and the masses that count.

    Args:
        configuration: of the run.
        source: its potential, which may bring a structure.
        starts: taken in turn; none takes that of the potential.

    Returns:
        One system for each replica, the same object for copies, or one for a run without.

    Raises:
        FileError, InputError: it cannot be read, or does not suit the potential or ensemble.
    """
    given = list(starts or [source.start()])
    say_neutral(given, configuration, source)
    prepared = []
    for number, one in enumerate(given, 1):
        with _named(number, len(given)):
            check_species(source.potential.species, one.numbers.tolist())
            prepared.append(with_charge(_dynamic(one, configuration), configuration, source))
    count = replicas_of(configuration) or 1
    if count % len(prepared):
        raise InputError(
            f"There are {count} replicas for {len(prepared)} structures; give as many, a "
            "multiple, or leave --replicas out."
        )
    if count > len(prepared):  # copies draw velocities of their own
        prepared = [one.replace(velocities=None) for one in prepared]
    if isinstance(configuration, MDConfig) and configuration.exchange:
        _check_alike(configuration, prepared)
    return [prepared[number % len(prepared)] for number in range(count)]


@contextmanager
def _named(number: int, count: int) -> Iterator[None]:
    """Puts the place of a structure, if there are several, before what is wrong with it."""
    try:
        yield
    except InputError as error:
        if count == 1:
            raise
        raise type(error)(f"Structure {number} of {count}: {error}") from error


def _dynamic(system: System, configuration: RunConfig) -> System:
    """A start with the velocities and masses that it keeps."""
    # A minimum is at rest, and dynamics that begin at rest draw their velocities.
    if system.velocities is not None and not system.velocities.any():
        system = system.replace(velocities=None)
    if isinstance(configuration, MinimizeConfig):
        system = system.replace(velocities=None)
    if isinstance(configuration, MDConfig):
        if configuration.pressure_bar is not None and not system.pbc.any():
            raise InputError(
                f"{configuration.ensemble} needs a periodic cell and the structure has none; give "
                "one with a cell, or choose nve or an nvt ensemble."
            )
        if configuration.new_velocities:
            system = system.replace(velocities=None)
        if configuration.hydrogen_mass_amu is not None:
            system = repartitioned(system, configuration.hydrogen_mass_amu)
    return system


def _check_alike(configuration: MDConfig, starts: Sequence[System]) -> None:
    """Raises InputError unless all replicas have one energy as a function of positions."""

    def energy(one: System) -> tuple[Any, ...]:
        return one.numbers, one.masses, one.cell, one.pbc, np.array(one.charge)

    first = energy(starts[0])
    for one in starts[1:]:
        if not all(map(np.array_equal, first, energy(one))):
            raise InputError(
                "Only replicas of one system exchange temperatures; give structures with the "
                "same atoms, cell and charge, or leave --exchange out."
            )
    if len(starts) > 1 and (configuration.fix or configuration.restrain):
        raise InputError(
            "Replicas that exchange temperatures are held at the same places; with --fix or "
            "--restrain give one structure, or leave --exchange out."
        )


def atoms_of_all(text: str, systems: Sequence[System]) -> list[int]:
    """Atoms that a text chooses in each system, counted among all; see `selected_atoms`."""
    chosen: list[int] = []
    begin, count = 0, len(distinct(systems))
    for number, system in enumerate(systems, 1):
        with _named(number, count):
            chosen += [begin + atom for atom in selected_atoms(text, system)]
        begin += len(system)
    return chosen
