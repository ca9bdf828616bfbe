"""Runs with biases: their COLVAR and HILLS, and what run.json says of temperature and biases."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.analysis.metadynamics import HillSum
from mdgraph.analysis.umbrellas import StaticBias
from mdgraph.engine.replicas import ExchangeRecord
from mdgraph.ensembles import ENSEMBLES
from mdgraph.errors import FileError, InputError, name_some, printable
from mdgraph.io.files import disk_failures
from mdgraph.io.log import read_log
from mdgraph.io.plumed import PlumedTable, read_plumed
from mdgraph.runs.analyse.report import switching_warning
from mdgraph.runs.config_fields import ladder_temperatures
from mdgraph.runs.folder import RunDirectory
from mdgraph.units import KILOJOULE_PER_MOLE

_NM: Final = ("nm", 0.1)
_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "angle": ("rad", 1.0),
    "dihedral": ("rad", 1.0),
    "coordination": ("", 1.0),
    "volume": ("nm^3", 1e-3),
    "energy": ("kJ/mol", 1.0 / KILOJOULE_PER_MOLE),
}
"""Unit in COLVAR of kinds of variables, and what mdgraph's unit is in it; lengths are in nm."""

_AGREEMENT: Final = 1e-2
"""Of biases by run.json and by COLVAR, relative and in kJ/mol."""

_WINDOW_COLUMNS: Final = "file"
"""The first column of a table of windows."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BiasedRun:
    """One COLVAR and what is known of its biases.

    Attributes:
        name: of the file, for sentences.
        table: its rows.
        temperature: K.
        static: biases that do not change with time.
        fixed_columns: columns of COLVAR with these biases, or with all biases of a plain file.
        metadynamics: column of COLVAR with the bias of metadynamics; None without it.
        hills: number of its hills in a list of those of all runs; None without any.
        units: of variables by name, as far as they are known.
        domains: ends of periodic variables.
        definitions: of variables by name, as in run.json; empty of other programs.
        hydrogen_mass: of hydrogens, amu; None for that of the element.
        log: log of the run; None of other programs.
    """

    name: str
    table: PlumedTable
    temperature: float
    static: tuple[StaticBias, ...] = ()
    fixed_columns: tuple[str, ...] = ()
    metadynamics: str | None = None
    hills: int | None = None
    units: Mapping[str, str]
    domains: Mapping[str, tuple[float, float]]
    definitions: Mapping[str, Any] = field(default_factory=dict)
    hydrogen_mass: float | None = None
    log: Path | None = None

    @property
    def variables(self) -> list[str]:
        """Names of the columns that are no time and of no bias."""
        return [name for name in self.table.fields[1:] if "." not in name]

    @property
    def times(self) -> NDArray[np.float64]:
        """Times of the rows, ps."""
        return self.table.column("time")

    def columns(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Variables by their names, (rows, d) float64."""
        if not names:
            return np.zeros((len(self.table), 0))
        return np.stack([self.table.column(name) for name in names], axis=1)

    def temperatures(self, start: float) -> NDArray[np.float64]:
        """Temperatures of the log from a time (ps) on, (rows,) K; none without a log."""
        if self.log is None:
            return np.zeros(0)
        columns = read_log(self.log)
        later: NDArray[np.float64] = columns["temperature_K"][columns["time_ps"] >= start]
        return later


@dataclass(frozen=True, eq=False)
class BiasedRuns:
    """All runs of a profile, at one temperature.

    Attributes:
        runs: with a COLVAR.
        hills: of metadynamics, one for each set of walkers that share them.
        temperature: K.
        warnings: sentences.
        units: of variables that hills have without a COLVAR, as far as they are known.
        exchanges: of umbrellas between replicas, see `ExchangeRecord.numbers`; one of each run.
    """

    runs: list[BiasedRun]
    hills: list[HillSum]
    temperature: float
    warnings: list[str]
    units: Mapping[str, str]
    exchanges: Sequence[Mapping[str, Any]] = ()

    @property
    def beside_hills(self) -> list[str]:
        """Names of other biases of runs with hills, which the sum of hills has in it."""
        columns = [name for run in self.runs if run.hills is not None for name in run.fixed_columns]
        return list(dict.fromkeys(name.removesuffix(".bias") for name in columns))

    @property
    def domains(self) -> dict[str, tuple[float, float]]:
        """Ends of the periodic variables of all runs and hills."""
        domains: dict[str, tuple[float, float]] = {}
        for hills in self.hills:
            for name, ends in zip(hills.names, hills.domains, strict=True):
                domains |= {} if ends is None else {name: ends}
        for run in self.runs:
            domains |= run.domains
        return domains

    def unit(self, name: str) -> str:
        """Unit of a variable, empty if it is not known; one that turns by 2 pi is in rad."""
        for units in [*(run.units for run in self.runs), self.units]:
            if name in units:
                return units[name]
        low, high = self.domains.get(name, (0.0, 0.0))
        return "rad" if math.isclose(high - low, 2.0 * math.pi, rel_tol=1e-6) else ""


def _sorted(paths: Sequence[Path]) -> list[Path]:
    """Paths in the order of the numbers in their names."""

    def key(path: Path) -> list[Any]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]

    return sorted(paths, key=key)


def _tables(folder: Path, name: str) -> list[Path]:
    """Tables of this name in the folder of a run, or of its ranks and replicas."""
    for pattern in (name, f"{name}.*", f"replica-*/{name}", f"rank-*/{name}", f"rank-*/*/{name}"):
        paths = [path for path in folder.glob(pattern) if path.is_file()]
        if pattern == f"{name}.*":  # bck.0.COLVAR is another file
            paths = [path for path in paths if path.suffix[1:].isdigit()]
        if paths:
            return _sorted(paths)
    return []


def _record(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The run folder above a COLVAR, and its configuration; None for one of another program."""
    for folder in list(path.resolve().parents)[:3]:
        if (folder / "run.json").exists():
            return folder, RunDirectory(folder).read_record()["configuration"]
    return None


def read_biased_runs(
    paths: Sequence[Path],
    temperature: float | None,
    hills: Sequence[Path] = (),
    windows: Path | None = None,
) -> BiasedRuns:
    """Reads runs by their folders, or COLVAR and HILLS of other programs by their paths.

    Args:
        paths: of folders or files.
        temperature: K; None takes it from run.json.
        hills: of COLVAR files that are given by path.
        windows: a table of umbrella windows: a row has the path of a COLVAR, centres and force
            constants; None takes biases from run.json.

    Raises:
        InputError: a run has no COLVAR, or temperatures differ or are not known.
        FileError: a file cannot be read.
    """
    reader = _Reader(temperature)
    places = [path.resolve() for path in paths]
    for number, path in enumerate(paths):
        if places[number] in places[:number]:
            raise InputError(f"{path} is given twice; give each run once.")
        reader.add(path)
    if windows is not None:
        for path, biases in _read_windows(windows):
            reader.add_file(path, biases)
    if hills:
        reader.add_hills(hills)
    return reader.result()


class _Reader:
    """Collects runs and hills."""

    def __init__(self, temperature: float | None) -> None:
        self._given = temperature
        self._runs: list[BiasedRun] = []
        self._hills: dict[tuple[Path, ...], HillSum] = {}
        self._units: dict[str, str] = {}
        self._exchanges: dict[Path, dict[str, Any]] = {}
        self._switching: dict[Path, str] = {}
        self._cut_hills: list[str] = []

    def result(self) -> BiasedRuns:
        temperatures = {run.name: run.temperature for run in self._runs}
        if len(set(temperatures.values())) > 1:
            (one, first), *others = temperatures.items()
            other, second = next(item for item in others if item[1] != first)
            raise InputError(
                f"{one} is of {first:g} K and {other} of {second:g} K; give runs of one "
                "temperature."
            )
        temperature = next(iter(temperatures.values()), self._given)
        if temperature is None:
            raise InputError("HILLS alone contain no temperature; give it with --temperature-K.")
        warnings = [*self._switching.values(), *self._cut_hills]
        warnings += _check_definitions(self._runs)
        hills = list(self._hills.values())
        exchanges = list(self._exchanges.values())
        return BiasedRuns(self._runs, hills, temperature, warnings, self._units, exchanges)

    def add(self, path: Path) -> None:
        """A folder, or a COLVAR or HILLS."""
        if not path.exists():
            raise FileError(f"There is no {path}; give the folder of a run, or its COLVAR.")
        if not path.is_dir():
            if "height" in read_plumed(path):
                self._add_hills_alone((path,))
            else:
                self.add_file(path)
            return
        with disk_failures(path, "read"):
            tables, hills = _tables(path, "COLVAR"), _tables(path, "HILLS")
        if not tables and not hills:
            raise InputError(
                f"{path} has no COLVAR: the run had no variables; give runs with variables, or "
                "analyse its trajectory with mdgraph analyse."
            )
        for table in tables:
            self.add_file(table)
        if not tables:
            self._add_hills_alone(tuple(hills))

    def _add_hills_alone(self, paths: tuple[Path, ...]) -> None:
        """Hills without a COLVAR."""
        record = _record(paths[0])
        configuration = {} if record is None else record[1]
        biases = configuration.get("biases") or []
        variables = configuration.get("variables") or {}
        self._units |= {name: _unit(name, variables)[0] for name in variables}
        others = [one for one in biases if one["kind"] != "metadynamics"]
        if others:
            names = name_some([one.get("name") or one["kind"] for one in others])
            raise InputError(
                f"{paths[0]} adds up to the free energy with other biases in it ({names}); give "
                "the folder of the run with its COLVAR, whose samples are reweighted."
            )
        self._add_walkers(paths)

    def add_hills(self, paths: Sequence[Path]) -> None:
        """Hills of all COLVAR files that have none."""
        number = self._add_walkers(tuple(_sorted(paths)))
        self._runs = [
            run if run.hills is not None else _with_hills(run, number) for run in self._runs
        ]

    def _add_walkers(self, paths: tuple[Path, ...]) -> int:
        key = tuple(path.resolve() for path in paths)
        if key not in self._hills:
            self._hills[key] = read_hills(paths)
        return list(self._hills).index(key)

    def add_file(self, path: Path, biases: tuple[StaticBias, ...] | None = None) -> None:
        """A COLVAR; its biases, or None for those of run.json."""
        table = read_plumed(path)
        if table.fields[0] != "time":
            raise FileError(f"{path} is not a COLVAR: its first column is {table.fields[0]}.")
        domains = {
            name: domain for name in table.fields if (domain := table.domain(name)) is not None
        }
        record = None if biases is not None else _record(path)
        if record is None:
            self._add_plain(path, table, domains, biases or ())
            return
        folder, configuration = record
        below = path.resolve().relative_to(folder).parts
        number = next((int(part[8:]) for part in below if re.fullmatch(r"replica-\d+", part)), 0)
        temperature = self._temperature(folder, configuration, number)
        self._add_exchanges(folder, configuration)
        sentence = switching_warning(folder, RunDirectory(folder).read_record())
        if sentence is not None:
            self._switching[folder] = sentence
        units = {
            name: _unit(name, configuration.get("variables") or {})
            for name in configuration.get("variables") or {}
        }
        periods = {name: high - low for name, (low, high) in domains.items()}
        static: list[StaticBias] = []
        columns: list[str] = []
        metadynamics: list[str] = []
        shared = False
        for bias in configuration.get("biases") or ():
            name = bias.get("name") or bias["kind"]
            if bias["kind"] == "moving":
                raise InputError(
                    f"{path}: the bias {name} moves, so that nothing is at equilibrium under it; "
                    "give runs of biases at rest."
                )
            if bias["kind"] == "metadynamics":
                metadynamics.append(name)
                shared = bool(bias.get("shared"))
                continue
            own = _static(bias, number, units, periods)
            _check_energies(table, f"{name}.bias", own)
            static += own
            columns.append(f"{name}.bias")
        if len(metadynamics) > 1:
            raise InputError(
                f"{path} has several biases of metadynamics ({name_some(metadynamics)}), whose "
                "hills cannot be told apart; give runs with one."
            )
        hills = None
        if metadynamics:
            # Of walkers on several ranks, rank 0 has the hills.
            of_rank = shared and folder.name.startswith("rank-")
            ranks = [folder.parent / "rank-0"] if of_rank else []
            places = [
                place / name
                for place in (path.parent, folder, *ranks)
                for name in ("HILLS", f"HILLS.{metadynamics[0]}")
            ]
            files = [place for place in places if place.is_file()]
            if not files:
                raise FileError(f"{path.parent} has no HILLS; put back those of the run.")
            hills = self._add_walkers((files[0],))
            times = np.unique([*self._hills.values()][hills].times)
            end = table.column("time").max(initial=0.0)
            if len(times) > 1 and end - times[-1] > 2.0 * np.diff(times).max():
                self._cut_hills.append(
                    f"{path} ends at {end:g} ps, and {files[0]} at {times[-1]:g} ps: hills are "
                    "missing, so put back the whole file, or resume the run, which writes it again."
                )
        log = path.parent / "log.csv"
        self._runs.append(
            BiasedRun(
                name=str(path),
                table=table,
                temperature=temperature,
                static=tuple(static),
                fixed_columns=tuple(columns),
                metadynamics=f"{metadynamics[0]}.bias" if metadynamics else None,
                hills=hills,
                units={name: unit for name, (unit, _) in units.items()},
                domains=domains,
                definitions=configuration.get("variables") or {},
                hydrogen_mass=configuration.get("hydrogen_mass_amu"),
                log=log if log.is_file() else None,
            )
        )

    def _add_exchanges(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        """The exchanges of a run, which all of its ranks know alike."""
        interval = configuration.get("exchange")
        whole = folder.parent if re.fullmatch(r"rank-\d+", folder.name) else folder
        if interval and whole not in self._exchanges:
            record = ExchangeRecord.read(RunDirectory(folder).exchanges, interval)
            self._exchanges[whole] = {"run": str(whole), **record.numbers()}

    def _add_plain(
        self,
        path: Path,
        table: PlumedTable,
        domains: Mapping[str, tuple[float, float]],
        biases: tuple[StaticBias, ...],
    ) -> None:
        """A COLVAR of another program."""
        if self._given is None:
            raise InputError(
                f"No run.json beside {path} tells its temperature; give it with --temperature-K."
            )
        works = [
            name for name in table.fields if name.endswith(".work") and "metad" not in name.lower()
        ]
        if works:
            raise InputError(
                f"{path}: {works[0]} is of a bias that moves, so that nothing is at equilibrium "
                "under it; give runs of biases at rest."
            )
        run = BiasedRun(
            name=str(path),
            table=table,
            temperature=self._given,
            static=tuple(
                StaticBias(
                    bias.kind,
                    bias.variables,
                    tuple(
                        domains[name][1] - domains[name][0] if name in domains else None
                        for name in bias.variables
                    ),
                    bias.centre,
                    bias.stiffness,
                )
                for bias in biases
            ),
            fixed_columns=tuple(name for name in table.fields if name.endswith(".bias")),
            units={},
            domains=domains,
        )
        hills = _tables(path.parent, "HILLS")
        if hills and not biases:
            run = _with_hills(run, self._add_walkers(tuple(hills)))
        self._runs.append(run)

    def _temperature(self, folder: Path, configuration: Mapping[str, Any], number: int) -> float:
        ladder = configuration.get("temperatures_K")
        if ladder and configuration.get("exchange"):
            raise InputError(
                f"{folder} exchanges temperatures, so that each COLVAR has several; give runs "
                "without exchange."
            )
        own = configuration.get("temperature_K")
        if ladder:
            own = ladder_temperatures(ladder, configuration["replicas"])[number]
        bath = ENSEMBLES[configuration["ensemble"]].bath if "ensemble" in configuration else True
        if isinstance(own, str) or own is None or not bath:
            if self._given is not None and bath is False:
                return self._given
            how = f"changes ({own})" if isinstance(own, str) else "is not given, without a bath"
            raise InputError(
                f"The temperature of {folder} {how}; give runs at a constant temperature."
            )
        if self._given is not None and abs(self._given - own) > 1e-6:
            raise InputError(
                f"--temperature-K is {self._given:g}, and {folder} ran at {own:g} K; leave the "
                "option out."
            )
        return float(own)


def _check_definitions(runs: Sequence[BiasedRun]) -> list[str]:
    """Whether variables of one name are the same function of positions in all runs.

    Returns:
        Warnings: masses of hydrogens are not the same, and centres of mass may not be.

    Raises:
        InputError: a variable is of other atoms, or of another kind.
    """
    known = [run for run in runs if run.definitions]
    moved: dict[str, str] = {}
    for run in known[1:]:
        first = known[0]
        for name in first.definitions.keys() & run.definitions.keys():
            one, other = (
                {key: value for key, value in about[name].items() if key != "reference"}
                for about in (first.definitions, run.definitions)
            )
            if one != other:
                raise InputError(
                    f"{name} is another variable in {run.name} than in {first.name}, by their "
                    "run.json; give runs of the same."
                )
            if run.hydrogen_mass != first.hydrogen_mass and _of_centres(one):
                moved.setdefault(name, run.name)
    if not moved:
        return []
    sentence = (
        f"hydrogen_mass_amu of {known[0].name} and {next(iter(moved.values()))} are not the same, "
        f"which moves the centres of mass of {name_some(sorted(moved))}; give runs of one."
    )
    return [sentence]


def _of_centres(definition: Mapping[str, Any]) -> bool:
    """Whether a variable is of centres of mass of several atoms, as far as its words tell."""
    kind = definition["kind"]
    groups: Sequence[Any] = ()
    if kind in ("distance", "angle", "dihedral"):
        groups = definition.get("groups") or ()
    elif kind in ("position", "radius_of_gyration"):
        groups = [definition["atoms"], definition.get("relative_to")]
    return any(group is not None and not str(group).isdigit() for group in groups)


def _with_hills(run: BiasedRun, number: int) -> BiasedRun:
    """A COLVAR of another program with its hills; the column of their bias by its name."""
    biases = run.fixed_columns
    metad = biases if len(biases) == 1 else [name for name in biases if "metad" in name.lower()]
    if len(metad) != 1:
        what = f"its columns are {name_some(run.table.fields, 20)}"
        raise InputError(f"{run.name} has no column metad.bias with the bias of its hills; {what}.")
    return replace(
        run,
        fixed_columns=tuple(name for name in biases if name != metad[0]),
        metadynamics=metad[0],
        hills=number,
    )


def _unit(name: str, variables: Mapping[str, Any]) -> tuple[str, float]:
    """Unit of a variable in COLVAR, and mdgraph's unit in it."""
    about = variables.get(name) or {}
    if about.get("kind") == "combination":
        return _unit(next(iter(about["coefficients"])), variables)
    return _UNITS.get(about.get("kind", ""), _NM)


def _numbers(bias: Mapping[str, Any], key: str, number: int) -> list[float]:
    """A list with one number a variable, of a replica."""
    values = bias[key]
    if values and isinstance(values[0], list):
        values = values[number]
    count = len(bias["variables"])
    if count == 1 and len(values) > 1:  # one variable, a number for each replica
        values = [values[number]]
    return [float(value) for value in (values * count if len(values) < count else values)]


def _static(
    bias: Mapping[str, Any],
    number: int,
    units: Mapping[str, tuple[str, float]],
    periods: Mapping[str, float],
) -> list[StaticBias]:
    """A bias of run.json in the units of COLVAR."""
    names = tuple(bias["variables"])
    scales = [units[name][1] for name in names]
    power = 1 if bias["kind"] == "linear" else 2
    key = "slope_eV" if bias["kind"] == "linear" else "stiffness_eV"
    stiffness = tuple(
        value / KILOJOULE_PER_MOLE / scale**power
        for value, scale in zip(_numbers(bias, key, number), scales, strict=True)
    )
    ends = ("lower", "upper") if bias["kind"] == "walls" else ("centre",)
    biases = []
    for end in ends:
        if bias.get(end) is None:
            continue
        centre = tuple(
            value * scale for value, scale in zip(_numbers(bias, end, number), scales, strict=True)
        )
        kind = end if bias["kind"] == "walls" else bias["kind"]
        biases.append(
            StaticBias(kind, names, tuple(periods.get(name) for name in names), centre, stiffness)
        )
    return biases


def _check_energies(table: PlumedTable, column: str, biases: Sequence[StaticBias]) -> None:
    """Raises InputError unless run.json and COLVAR agree on the energy of a bias."""
    written = table.column(column)
    computed = np.zeros(len(table))
    for bias in biases:
        values = np.stack([table.column(name) for name in bias.variables], axis=1)
        computed += bias.energy(values)
    wrong = np.abs(written - computed) > _AGREEMENT * (1.0 + np.abs(computed))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"{table.path}, line {table.lines[row]}: {column} is {written[row]:.4g} kJ/mol, and "
            f"run.json makes it {computed[row]:.4g}; put back the files of one run."
        )


def read_hills(paths: Sequence[Path]) -> HillSum:
    """The hills of walkers that share them, in the order of their times.

    Raises:
        InputError: they are of several variables or bias factors.
        FileError: a file cannot be read, or has no hills.
    """
    parts = [_read_hills(path) for path in paths]
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if part.names != first.names or part.bias_factor != first.bias_factor:
            raise InputError(
                f"{path} has hills of {', '.join(part.names)} with the bias factor "
                f"{part.bias_factor:g}, and {paths[0]} of {', '.join(first.names)} with "
                f"{first.bias_factor:g}; give hills of the same."
            )
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(times, kind="stable")
    return HillSum(
        first.names,
        first.domains,
        times[order],
        np.concatenate([part.centers for part in parts])[order],
        np.concatenate([part.sigmas for part in parts])[order],
        np.concatenate([part.heights for part in parts])[order],
        first.bias_factor,
        first.stretched,
    )


def _read_hills(path: Path) -> HillSum:
    table = read_plumed(path)
    names = tuple(name for name in table.fields[1:] if f"sigma_{name}" in table.fields)
    if "height" not in table or not names:
        raise FileError(
            f"{path} has no hills: its columns are {name_some(table.fields, 20)}; give a HILLS."
        )
    if table.constants.get("multivariate", "false") != "false":
        raise InputError(f"{path} has hills with covariances, which are not read; give others.")
    if not len(table):
        raise InputError(f"{path} has no hill yet; run longer.")
    factors = table.column("biasf") if "biasf" in table else np.ones(1)
    if (factors != factors[0]).any():
        raise InputError(f"{path} has hills of several bias factors; give those of one.")
    return HillSum(
        names,
        tuple(table.domain(name) for name in names),
        table.column("time"),
        np.stack([table.column(name) for name in names], axis=1),
        np.stack([table.column(f"sigma_{name}") for name in names], axis=1),
        table.column("height"),
        float(factors[0]),
        "stretched" in table.constants.get("kerneltype", ""),
    )


def _read_windows(path: Path) -> list[tuple[Path, tuple[StaticBias, ...]]]:
    """Rows of `#! FIELDS file phi kappa_phi`: a COLVAR, centres and force constants.

    Paths are relative to the folder of the table.
    """
    with disk_failures(path, "read"):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    names: list[str] | None = None
    rows: list[tuple[Path, tuple[StaticBias, ...]]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if line.startswith("#! FIELDS"):
            names = words[3:]
            centres = [name for name in names if not name.startswith("kappa_")]
            if words[2:3] != [_WINDOW_COLUMNS] or sorted(names) != sorted(
                [*centres, *(f"kappa_{name}" for name in centres)]
            ):
                raise FileError(
                    f"{path}, line {number}: the columns are {name_some(words[2:])}; write "
                    "'#! FIELDS file phi kappa_phi', with the names of your variables."
                )
        elif words and not words[0].startswith("#"):
            if names is None:
                raise FileError(
                    f"{path} names no columns; begin it with '#! FIELDS file phi kappa_phi'."
                )
            try:
                values = dict(zip(names, map(float, words[1:]), strict=True))
            except ValueError as error:
                raise FileError(
                    f"{path}, line {number}: '{printable(line.strip(), 60)}' is not a file with "
                    f"{len(names)} numbers; correct it."
                ) from error
            bias = StaticBias(
                "harmonic",
                tuple(centres),
                tuple(None for _ in centres),
                tuple(values[name] for name in centres),
                tuple(values[f"kappa_{name}"] for name in centres),
            )
            rows.append((path.parent / words[0], (bias,)))
    if not rows:
        raise FileError(f"{path} names no window; give a row for each COLVAR.")
    return rows
