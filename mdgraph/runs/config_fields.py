"""Field types of configurations with their ranges, including options of ensembles."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo

from mdgraph.arguments import Names, one_or_many
from mdgraph.ensembles import (
    ENSEMBLES,
    HIGHEST_PRESSURE,
    Option,
    checked_coupling,
    ensemble_named,
)
from mdgraph.errors import InputError, printable, similar_names
from mdgraph.shipped import FILE_NAME

DEFAULT_ENSEMBLE: Final = "nvt-langevin"


class Group(StrEnum):
    """Headings under which the help of a command shows its options, in this order."""

    STRUCTURE = "Structure"
    POTENTIAL = "Potential"
    ENSEMBLE = "Ensemble and length"
    MINIMUM = "Minimum"
    BIASES = "Variables and biases"
    LABELS = "Labels in files"
    OUTPUT = "Output"
    SPEED = "Speed"
    SAFETY = "Safety"


def group_of(field: FieldInfo) -> Group | None:
    """The group of a field of a configuration; None for a common one."""
    return next((item for item in field.metadata if isinstance(item, Group)), None)


def ensemble_word(word: Any) -> str:
    """The current word of an ensemble; raises ValueError with the nearest for another word."""
    ensemble = ensemble_named(str(word))
    if ensemble is None:
        raise ValueError(nearest(str(word), ENSEMBLES))
    return ensemble.word


ELSEWHERE: Final = {
    "timestep_fs": "dt delta_t time_step timestep step_size stepsize",
    "steps": "nsteps nstep n_steps num_steps max_steps maxiter",
    "time_ps": "time length duration simulation_time ps ns",
    "temperature_K": "temp temperature ref_t start_temp t",
    "pressure_bar": "press pressure ref_p p",
    "ensemble": "thermostat barostat integrator tcoupl pcoupl dynamics method",
    "friction_per_ps": "friction gamma gamma_ln bd_fric",
    "tau_fs": "tau_t taut",
    "tau_p_fs": "tau_p taup",
    "coupling": "pcoupltype",
    "potential": "ff forcefield force_field model calculator calc pair_style top topology",
    "structure": "input conf coordinates pdb gro xyz atoms c f s",
    "trajectory_interval": "nstxout nstxout_compressed nstvout nstfout dump thermo_dump interval",
    "log_interval": "nstlog nstenergy nstcalcenergy loginterval log_freq thermo report_interval",
    "checkpoint_interval": "cpt checkpoint_freq restart_interval",
    "trajectory": "traj_format trjconv",
    "out": "output outdir output_dir outfile prefix name deffnm o",
    "device": "platform gpu gpus gpu_id cuda device_index nb",
    "max_hours": "maxh walltime wall_time",
    "seed": "gen_seed ld_seed random_seed rng",
    "new_velocities": "gen_vel velocities init_velocities maxwell_boltzmann",
    "remove_momentum": "comm_mode nstcomm fixcm",
    "minimize": "minimise em minimization",
    "hydrogen_mass_amu": "hmr hydrogen_mass mass_repartition_factor constraints",
    "fix": "freeze freezegrps fixed constraint",
    "restrain": "posre posres restraint restraints",
    "replicas": "multidir nreplicas n_replicas ensemble_size",
    "exchange": "replex exchange_interval",
    "resume": "restart continue continuation cpi append",
    "force_tolerance_eV_per_A": "fmax emtol force_tol tolerance",
    "stress_tolerance_bar": "smax",
    "largest_step_A": "maxstep emstep",
    "select": "sel selection",
    "whole": "pbc",
    "wrap": "ur",
    "first": "b begin start_frame",
    "last": "e end end_frame",
    "stride": "dt skip step every",
    "rdf_range_A": "rmax cut_rdf",
    "coulomb_cutoff_A": "cutoff rcoulomb",
    "md": "run mdrun simulate simulation dynamics",
    "minimise": "opt optimize optimise",
    "protocol": "equilibrate stages workflow",
    "analyse": "analysis rdf msd report",
    "eval": "energy singlepoint single_point forces",
    "potentials": "models list",
}
"""What GROMACS, OpenMM, ASE and LAMMPS call options and commands, by their names here."""


_SIMILAR: Final = 0.6
"""Least similarity of a name that is proposed for a misspelt one."""


def likely_names(word: str, known: Collection[str]) -> list[str]:
    """The known names that an unknown one may mean: of other programs, else similar ones.

    Args:
        word: a key or an option, with underscores or dashes.
        known: names, with either.
    """
    plain = word.casefold().replace("-", "_")
    elsewhere = [
        name for name in known if plain in ELSEWHERE.get(name.replace("-", "_"), "").split()
    ]
    # A letter begins many names.
    return elsewhere or (similar_names(word, known, _SIMILAR) if len(word) > 1 else [])


def nearest(word: str, words: Collection[str]) -> str:
    """Advice for an unknown word: the likely known word, or a choice of words."""
    names = likely_names(word, words)
    if len(names) == 1:
        return f"did you mean {names[0]}?"
    return f"choose {join_words(names or list(words), 'or')}"


def with_ensemble_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run, completed by the defaults of its ensemble.

    Raises:
        ValueError: a parameter that the ensemble does not have.
    """
    present = {name: value for name, value in values.items() if value is not None}
    ensemble = ensemble_named(str(values.get("ensemble", DEFAULT_ENSEMBLE)))
    if ensemble is None:
        return present
    names = {entry.word: entry.defaults.keys() for entry in ENSEMBLES.values()}
    wrong = sorted(set().union(*names.values()) & set(present) - names[ensemble.word])
    if wrong:
        which = " or ".join(word for word, own in names.items() if set(wrong) <= own)
        advice = f"leave {'it' if len(wrong) == 1 else 'them'} out"
        advice += f", or choose {which}" if which else ""
        raise ValueError(f"{ensemble.word} has no {', '.join(wrong)}; {advice}")
    return {**ensemble.defaults, **present}


def ladder_temperatures(text: str, count: int) -> list[float]:
    """Temperatures that temperatures_K gives this number of replicas, K."""
    import numpy as np

    if ":" in text:
        low, high = map(float, text.split(":"))
        kelvins = np.geomspace(low, high, count)
        return [float(kelvin) for kelvin in kelvins]
    return [float(kelvin) for kelvin in text.split(",")]


def ends(value: float | str) -> tuple[float, float]:
    """Start and end of a ramp `start:end`, or a number twice.

    Raises:
        ValueError: anything else.
    """
    texts = value.split(":") if isinstance(value, str) else [value]
    try:
        numbers = [float(text) for text in texts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 2):
        raise ValueError("it should be a valid number, or two as start:end")
    if not all(map(math.isfinite, numbers)):
        raise ValueError("it should be a finite number")
    return numbers[0], numbers[-1]


MOST_STEPS: Final = 10**15
"""Longer than any run, and float64 still counts single steps."""

# Values outside of these ranges are mistakes, such as wrong units; docs/units.md lists them with
# reasons. Configurations refuse numbers that are not finite.
HIGHEST_TEMPERATURE: Final = 1e6
"""K; 86 eV an atom, at which no atom keeps its electrons."""
SHORTEST_TIMESTEP: Final = 1e-6
"""fs; in shorter ones atoms move by less than float64 resolves."""


def _check_timestep(timestep: float) -> float:
    if timestep < SHORTEST_TIMESTEP:
        raise ValueError(f"it should be at least {SHORTEST_TIMESTEP:g}")
    return timestep


Timestep = Annotated[float, Field(gt=0, le=20), AfterValidator(_check_timestep)]
"""fs; longer ones are in another unit."""
HydrogenMass = Annotated[float, Field(ge=1.008, le=100)]
"""amu; from the mass of hydrogen to that of heavy bonded atoms."""
Charge = Annotated[float, Field(ge=-1e6, le=1e6)]
"""e; the nuclei of a structure set a closer bound."""
Cutoff = Annotated[float, Field(gt=0, le=1e4)]
"""A; memory cannot hold longer lists. The word all-pairs means all pairs of a molecule."""
Skin = Annotated[float, Field(ge=0, le=20)]
"""A; twice the longest cutoff in use."""
Stiffness = Annotated[float, Field(gt=0, le=1e6)]
"""eV/A^2; a carbon bond has 30."""
Length = Annotated[float, Field(ge=0)]
"""ps; the number of steps has its own bound."""
Interval = Annotated[float, Field(gt=0, le=1e12)]
"""ps; the number of steps has its own bound."""
Limit = Annotated[float, Field(gt=0, le=1e30)]
"""Tolerances and thresholds in any unit; a huge number switches a check off."""
AtomicStep = Annotated[float, Field(gt=0, le=10)]
"""A; a longer step moves an atom out of its environment."""
Seconds = Annotated[float, Field(gt=0, le=1e7)]
"""s; up to four months."""
Wait = Annotated[float, Field(ge=0, le=1e7)]
"""s; up to four months."""
Workers = Annotated[int, Field(ge=0, le=1000)]
Hours = Annotated[float, Field(gt=0, le=1e5)]
"""h; up to eleven years."""


def _checked_domains(value: str) -> str:
    """Text of domains as `BrickGrid.fitting` takes it; raises ValueError for another one."""
    text = value.lower()
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5}x[1-9]\d{0,5})?", text):
        raise ValueError("give a number such as 2, or a grid such as 2x1x1")
    return text


Domains = Annotated[str, BeforeValidator(str), AfterValidator(_checked_domains)]
"""Number of bricks, or numbers along the three cell vectors."""

Count = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _number_or_ramp(value: Any) -> Any:
    start, end = ends(value)
    return start if start == end else str(value).replace(" ", "")


def _temperature(value: float | str) -> float | str:
    if min(ends(value)) < 0.0:
        raise ValueError("it should be greater than or equal to 0")
    _check_below(max(ends(value)), HIGHEST_TEMPERATURE)
    return value


def _check_below(number: float, highest: float, where: str = "") -> None:
    if number > highest:
        raise ValueError(f"it should be at most {highest:,.0f}{where}")


def _ladder(value: Any) -> Any:
    """Temperatures as one text: `first:last`, or all of them with commas."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = re.sub(r"\s*([,:])\s*", r"\1", str(value).strip())
    text = re.sub(r"\s+", ",", text)
    shape = "it should be first:last such as 300:450, or a list such as 300,320,340"
    try:
        numbers = [float(part) for part in re.split("[,:]", text)]
    except ValueError:
        raise ValueError(shape) from None
    if not all(map(math.isfinite, numbers)):
        raise ValueError("it should be finite numbers")
    if min(numbers) <= 0.0:
        raise ValueError("it should be greater than 0")
    _check_below(max(numbers), HIGHEST_TEMPERATURE)
    if ":" in text and ("," in text or len(numbers) != 2):
        raise ValueError(shape)
    return text


def _check_format(word: Any) -> str:
    from mdgraph.io.formats import format_word  # which imports torch

    return format_word(word)


def _devices(value: Any) -> Any:
    """The word all, or names of devices as one text."""
    text = str(",".join(map(str, value)) if isinstance(value, list | tuple) else value)
    names = [name for name in re.split(r"[,\s]+", text) if name]
    if not names or ("all" in names and len(names) > 1):
        raise ValueError("it should be all, or names such as cuda:0,cuda:1")
    return ",".join(names)


def _members(value: Any) -> Any:
    """Potentials of a committee; a folder of potentials stands for all of them."""
    members: list[str] = []
    for reference in one_or_many(value):
        folder = Path(str(reference)).expanduser()
        inner = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
        members += (
            [str(reference)] if (folder / FILE_NAME).exists() or not inner else map(str, inner)
        )
    if len(members) < 2:
        raise ValueError("A committee has two potentials or more; name them, or a folder of such")
    return tuple(members)


def _switch(value: Any) -> Any:
    """The words on and off, which YAML takes for truth values."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _check_graph_length(value: int) -> int:
    from mdgraph.engine.autotune import checked_length  # which imports torch

    return checked_length(value)


def _check_inner_steps(value: int) -> int:
    from mdgraph.engine.multiple_time_steps import STEPS  # which imports torch

    if value not in STEPS:
        raise ValueError(f"it should be {join_words([*map(str, STEPS)], 'or')}")
    return value


def _join_atoms(value: Any) -> Any:
    """A list of atoms, or one of them, as one text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def _check_selection(text: str) -> str:
    from mdgraph.selection import check_selection  # which imports torch

    try:
        check_selection(text)
    except InputError as error:
        raise ValueError(str(error).removesuffix(".")) from error
    return text


WEIGHT_RAMP: Final = re.compile(r"[^*:@]+:[^*:@]+\*.*", re.DOTALL)
"""A term whose weight changes, such as `0:1*zbl@3`."""


def _term_text(value: Any) -> Any:
    """A term of a mapping with its weight, as a text."""
    if not isinstance(value, Mapping):
        return value
    if set(value) - {"term", "weight"} or not isinstance(value.get("term"), str):
        raise ValueError("a term is a text, or has the keys term and weight")
    weight = value.get("weight", 1)
    numbers = list(weight) if isinstance(weight, list | tuple) else [weight]
    known = all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers)
    if not 1 <= len(numbers) <= 2 or not known:
        raise ValueError(
            f"the weight of {printable(value['term'], 60)} should be a number, or two for a ramp"
        )
    if "*" in value["term"]:
        raise ValueError(f"{printable(value['term'], 60)} has a weight twice; give it once")
    return f"{':'.join(map(str, numbers))}*{value['term'].strip()}"


def _terms(value: Any) -> tuple[str, ...]:
    """Texts of terms, each once; raises ValueError for other values."""
    texts = [value] if isinstance(value, str | Mapping) else value
    if isinstance(texts, list | tuple):
        texts = [_term_text(text) for text in texts]
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it should be a term such as lj:Ar=0.0104/3.4@10, or a list of such")
    texts = tuple(text.strip() for text in texts)
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise ValueError(f"the term {twice} comes twice; give it once")
    return texts


def _vector_names(value: Any) -> str:
    """Vectors of frames as one text, positions first."""
    from mdgraph.io.trajectories import VECTORS  # which imports torch

    words = [word for word in re.split(r"[,\s]+", str(_join_atoms(value))) if word]
    for word in words:
        if word not in VECTORS:
            raise ValueError(nearest(word, VECTORS))
    if not words:
        raise ValueError(f"it should name some of {', '.join(VECTORS)}")
    return ",".join(name for name in VECTORS if name in ("positions", *words))


INTERVALS: Final = {"averages": 10, "rdf": 20, "msd": 20, "vacf": 4, "temperatures": 100}
"""Observables with their default steps between samples."""


def _observe(value: Any) -> str:
    """Words with their intervals, as `rdf:20,msd:100`."""
    intervals: dict[str, str] = {}
    for part in filter(None, re.split(r"[,\s]+", str(_join_atoms(value)))):
        word, _, every = part.partition(":")
        if word not in INTERVALS:
            raise ValueError(nearest(word, INTERVALS))
        if every and not re.fullmatch("[1-9][0-9]*", every):
            raise ValueError("an interval should be a number of steps, as in msd:100")
        if word in intervals:
            raise ValueError(f"{word} is named twice; name it once")
        intervals[word] = every
    if not intervals:
        raise ValueError(f"it should name some of {', '.join(INTERVALS)}")
    return ",".join(f"{word}:{every}" if every else word for word, every in intervals.items())


def multiple_steps(steps: int, together: int) -> int:
    """The least multiple of `together` steps that is no less than `steps`."""
    return -(-steps // together) * together


def check_multiple(name: str, steps: int, together: int) -> None:
    """Raises ValueError for steps that are no multiple of those taken together, with the next."""
    if steps % together:
        after = multiple_steps(steps, together)
        nearest_ones = [str(number) for number in (after - together, after) if number]
        raise ValueError(
            f"{name} is {steps} steps, and the potential acts every {together} steps of the inner "
            f"potential; give {join_words(nearest_ones, 'or')}"
        )


def observed_intervals(observe: str, together: int) -> dict[str, int]:
    """Steps between samples of each word of an option `observe`; defaults are rounded up.

    Raises:
        ValueError: an interval that is given is no multiple of the steps taken together.
    """
    intervals = {}
    for part in observe.split(","):
        word, _, every = part.partition(":")
        if every:
            check_multiple(f"observe {word}", int(every), together)
        intervals[word] = int(every) if every else multiple_steps(INTERVALS[word], together)
    return intervals


Ramped = Annotated[
    float | str, BeforeValidator(_number_or_ramp, json_schema_input_type=float | str)
]
"""A number, or `start:end`."""
Coupling = Annotated[str, AfterValidator(checked_coupling)]
Temperatures = Annotated[
    str, BeforeValidator(_ladder, json_schema_input_type=float | str | list[float])
]
"""`first:last`, or one for each replica."""
Atoms = Annotated[
    str,
    BeforeValidator(_join_atoms, json_schema_input_type=int | str | list[int | str]),
    AfterValidator(_check_selection),
]
"""A selection of `mdgraph.selection`."""
Graph = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(_switch, json_schema_input_type=bool | Literal["auto", "on", "off"]),
]
StepsPerReplay = Annotated[int, AfterValidator(_check_graph_length)]
InnerSteps = Annotated[int, AfterValidator(_check_inner_steps)]
Files = Annotated[tuple[str, ...], Field(min_length=1), Names]
Committee = Annotated[
    tuple[str, ...], BeforeValidator(_members, json_schema_input_type=str | list[str])
]
Terms = Annotated[
    tuple[str, ...],
    Field(min_length=1, max_length=15),
    BeforeValidator(_terms, json_schema_input_type=str | list[str | dict[str, Any]]),
]
"""Texts of `mdgraph.models.terms`."""
Devices = Annotated[str, BeforeValidator(_devices, json_schema_input_type=str | list[str])]
"""`all`, or names of devices with commas."""
Saved = Annotated[str, BeforeValidator(_vector_names, json_schema_input_type=str | list[str])]
Observed = Annotated[str, BeforeValidator(_observe, json_schema_input_type=str | list[str])]
Ensemble = Annotated[str, BeforeValidator(ensemble_word)]
Trajectory = Annotated[str, BeforeValidator(_check_format)]
NumberOfSteps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
RampedTemperature = Annotated[Ramped, AfterValidator(_temperature)]
Pressure = Annotated[float, Field(ge=-HIGHEST_PRESSURE, le=HIGHEST_PRESSURE)]
"""bar."""


def option_type(option: Option) -> Any:
    """The type of a field that holds an option of an ensemble, with its range."""
    if option.text is not None:
        return Annotated[str, AfterValidator(option.text)]
    if option.ramps:
        return Annotated[Ramped, AfterValidator(partial(_ramp_within, option))]
    return Annotated[float, Field(gt=option.above, ge=option.least, le=option.most)]


def _ramp_within(option: Option, value: float | str) -> float | str:
    both = ends(value)
    if option.most is not None and option.least == -option.most:
        _check_below(max(map(abs, both)), option.most, " either way")
        return value
    if option.above is not None and min(both) <= option.above:
        raise ValueError(f"it should be greater than {option.above:g}")
    if option.least is not None and min(both) < option.least:
        raise ValueError(f"it should be greater than or equal to {option.least:g}")
    if option.most is not None:
        _check_below(max(both), option.most)
    return value


def option_help(name: str) -> str:
    """Help for an option of ensembles: which ones have it, its meaning, and its defaults."""
    own = {
        ensemble.word: option
        for ensemble in ENSEMBLES.values()
        for option in ensemble.options
        if option.name == name
    }
    words: dict[str, list[str]] = {}
    for word, option in own.items():
        default = option.default
        shown = default if isinstance(default, str) else f"{default:g}"
        words.setdefault(shown, []).append(word)
    defaults = [f"{shown} in {join_words(which, 'and')}" for shown, which in words.items()]
    text = ", ".join(words if len(words) == 1 else defaults)
    help_text = next(iter(own.values())).help
    return f"For {join_words(list(own), 'and')}: {help_text} (default {text})."


def replicas_text(count: int) -> str:
    """A number of replicas in words, such as `1 replica`."""
    return f"{count} replica{'s' * (count != 1)}"


def join_words(words: Sequence[str], last: str) -> str:
    """Words with commas, and `last` before the last of them."""
    *rest, end = words
    return f"{', '.join(rest)} {last} {end}" if rest else end
