"""Ensembles by the words that choose them: what each takes, samples and conserves.

The command line, YAML, `run.json`, protocols and the drivers read `ENSEMBLES`. Nothing here
imports torch; the integrator of an ensemble is imported when a run needs it. A package of
yours adds an ensemble with the decorator `ensemble`, before a configuration is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar

from mdgraph.errors import InputError
from mdgraph.units import BAR

C = TypeVar("C", bound=type)

_AXES: Final = ("x", "y", "z")

_CELL_DOF: Final = ("isotropic", "semiisotropic", "semiisotropic-fixed-z", "axes", "full")
"""Ways in which a cell varies; with axes, the vectors may be named instead."""


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Option:
    """A parameter of an ensemble beside the temperature and the time step.

    Attributes:
        name: key of YAML and of `run.json`; the command line has dashes for underscores.
        keyword: argument of the integrator, or several for a value that is a tuple there.
        default: of a run that does not give it.
        help: what it is, without a capital, its ensembles and its default.
        unit: of the number; empty for a text.
        above: bound from below that the number does not reach.
        least, most: bounds that it may reach.
        ramps: whether `start:end` may stand for the number.
        text: for an option that is no number, how a text is stored; raises ValueError for one
            that cannot be.
        convert: from the stored number or text to the unit or values of the integrator.
    """

    name: str
    keyword: str | tuple[str, ...]
    default: float | str
    help: str
    unit: str = ""
    above: float | None = None
    least: float | None = None
    most: float | None = None
    ramps: bool = False
    text: Callable[[str], str] | None = None
    convert: Callable[[Any], Any] = _unchanged

    @property
    def field(self) -> tuple[Any, ...]:
        """What ensembles that share the name of an option must agree on."""
        return self.unit, self.above, self.least, self.most, self.ramps, self.text

    def arguments(self, value: Any) -> dict[str, Any]:
        """Arguments of the integrator for a value in its units."""
        if isinstance(self.keyword, str):
            return {self.keyword: value}
        return dict(zip(self.keyword, value, strict=True))


@dataclass(frozen=True)
class Ensemble:
    """What the rest of the package knows of an ensemble.

    Attributes:
        word: chooses it, as in `--ensemble nve`.
        integrator: class, or `module.Class` where that is imported when it is needed. It takes
            `timestep`, with a bath `temperature`, and the keywords of `options`.
        aliases: other words that choose it.
        options: parameters beside temperature and time step.
        bath: whether a temperature is imposed, which ramps and exchanges of replicas need.
        cell_varies: whether the cell changes, which must be periodic then.
        midstep_velocities: whether velocities belong to the middle of a step, half of one
            before the positions; protocols move them where two stages differ.
        conserved: what `conserved_energy` of the integrator is, None where it has none.
    """

    word: str
    integrator: type | str
    aliases: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    bath: bool = True
    cell_varies: bool = False
    midstep_velocities: bool = False
    conserved: str | None = None

    @property
    def defaults(self) -> dict[str, float | str]:
        """Options by name, with the values that a run has unless it gives others."""
        return {option.name: option.default for option in self.options}

    def load_integrator(self) -> type:
        """The class of the integrator."""
        if isinstance(self.integrator, type):
            return self.integrator
        module, _, name = self.integrator.rpartition(".")
        loaded: type = getattr(import_module(module), name)
        return loaded


ENSEMBLES: Final[dict[str, Ensemble]] = {}
"""Every ensemble by its word."""

_LISTENERS: Final[list[Callable[[], None]]] = []


def register(new: Ensemble) -> None:
    """Adds an ensemble; registering the same class again replaces it.

    Raises:
        InputError: a word that another ensemble has, or an option that another ensemble
            describes otherwise.
    """
    for known in ENSEMBLES.values():
        if known.word == new.word and _same_class(known, new):
            continue
        for word in (new.word, *new.aliases):
            if word in (known.word, *known.aliases):
                raise InputError(f"There is an ensemble '{word}' already; give another word.")
        for option in new.options:
            for other in known.options:
                if option.name == other.name and option.field != other.field:
                    raise InputError(
                        f"{known.word} has an option {other.name} of another unit or range; give "
                        f"that of {new.word} another name."
                    )
    ENSEMBLES[new.word] = new
    for listener in _LISTENERS:
        listener()


def unregister(word: str) -> None:
    """Removes an ensemble again, as a test does that adds one."""
    del ENSEMBLES[word]
    for listener in _LISTENERS:
        listener()


def _same_class(first: Ensemble, second: Ensemble) -> bool:
    """Whether both are of one class, which a module that is imported twice makes anew."""
    return _path(first.integrator) == _path(second.integrator)


def _path(integrator: type | str) -> str:
    if isinstance(integrator, str):
        return integrator
    return f"{integrator.__module__}.{integrator.__qualname__}"


def on_registration(listener: Callable[[], None]) -> None:
    """Calls a function after each change of `ENSEMBLES` from now on."""
    _LISTENERS.append(listener)


def ensemble(
    word: str,
    *,
    aliases: tuple[str, ...] = (),
    options: tuple[Option, ...] = (),
    bath: bool = True,
    midstep_velocities: bool = False,
    conserved: str | None = None,
) -> Callable[[C], C]:
    """Registers an integrator as an ensemble, as a decorator of its class; see Ensemble.

    Raises:
        InputError: see `register`.
    """

    def decorate(integrator: C) -> C:
        register(
            Ensemble(
                word,
                integrator,
                aliases,
                options,
                bath=bath,
                cell_varies=getattr(integrator, "cell_varies", False),
                midstep_velocities=midstep_velocities,
                conserved=conserved,
            )
        )
        return integrator

    return decorate


def ensemble_named(word: str) -> Ensemble | None:
    """The ensemble of a word or an alias; None for another word."""
    return next(
        (known for known in ENSEMBLES.values() if word in (known.word, *known.aliases)), None
    )


def cell_dof_and_axes(coupling: str) -> tuple[str, tuple[bool, ...] | None]:
    """How a cell varies, as `Deformation` takes it: `x,z` are axes of which two vary.

    Raises:
        ValueError: another word.
    """
    if coupling in _CELL_DOF:
        return coupling, None
    chosen = [axis.strip() for axis in coupling.split(",")]
    if not set(chosen) <= set(_AXES) or len(set(chosen)) < len(chosen):
        raise ValueError(f"it should be {', '.join(_CELL_DOF)}, or some of x,y,z")
    return "axes", tuple(axis in chosen for axis in _AXES)


def checked_coupling(coupling: str) -> str:
    """The text without blanks; raises ValueError for a word that is none."""
    cell_dof_and_axes(coupling)
    return coupling.replace(" ", "")


HIGHEST_PRESSURE: Final = 1e9
"""bar, 100 TPa, either way: beyond the centers of planets, and of what calculations reach."""


def _pressure() -> Option:
    return Option(
        "pressure_bar",
        keyword="pressure",
        default=1.0,
        help="pressure, a number or start:end",
        unit="bar",
        least=-HIGHEST_PRESSURE,
        most=HIGHEST_PRESSURE,
        ramps=True,
        convert=lambda bar: bar * BAR,
    )


def _tau(default: float) -> Option:
    return Option(
        "tau_fs",
        keyword="tau",
        default=default,
        help="time constant of the thermostat",
        unit="fs",
        least=1e-3,
        most=1e12,  # a millisecond
    )


def _tau_p(default: float) -> Option:
    return Option(
        "tau_p_fs",
        keyword="tau_p",
        default=default,
        help="time constant of the barostat",
        unit="fs",
        least=1e-3,
        most=1e12,
    )


_INTEGRATORS: Final = "mdgraph.engine.integrators"

register(
    Ensemble("nve", f"{_INTEGRATORS}.verlet.VelocityVerlet", bath=False, conserved="total energy")
)
register(
    Ensemble(
        "nvt-langevin",
        f"{_INTEGRATORS}.langevin.LangevinMiddle",
        aliases=("langevin",),
        options=(
            Option(
                "friction_per_ps",
                keyword="friction",
                default=1.0,
                help="friction",
                unit="1/ps",
                above=0.0,
                most=1e6,  # many times in a step
            ),
        ),
        midstep_velocities=True,
        conserved="energy less the heat of the bath",
    )
)
register(
    Ensemble(
        "nvt-bussi",
        f"{_INTEGRATORS}.bussi.StochasticVelocityRescaling",
        options=(_tau(100.0),),
        midstep_velocities=True,
        conserved="energy less the heat of the bath",
    )
)
register(
    Ensemble(
        "nvt-nose-hoover",
        f"{_INTEGRATORS}.nose_hoover.NoseHooverChains",
        options=(_tau(50.0),),
        conserved="energy with that of the chain",
    )
)
register(
    Ensemble(
        "npt",
        f"{_INTEGRATORS}.crescale.StochasticCellRescaling",
        options=(
            _pressure(),
            _tau(100.0),
            _tau_p(1000.0),
            Option(
                "compressibility_per_bar",
                keyword="compressibility",
                default=4.5e-5,
                help="compressibility, a guess that scales tau_p_fs; unless given, of water",
                unit="1/bar",
                least=1e-12,  # far below diamond's
                most=1e3,  # far beyond a gas's at 1 mbar
                convert=lambda per_bar: per_bar / BAR,
            ),
            Option(
                "coupling",
                keyword=("cell_dof", "axes"),
                default="isotropic",
                help="how the cell varies, isotropic, semiisotropic (x and y together, z alone), "
                "semiisotropic-fixed-z, axes, full, or some of x,y,z",
                text=checked_coupling,
                convert=cell_dof_and_axes,
            ),
        ),
        cell_varies=True,
        midstep_velocities=True,
    )
)
register(
    Ensemble(
        "npt-mtk",
        f"{_INTEGRATORS}.mtk.MartynaTobiasKlein",
        options=(
            _pressure(),
            _tau(50.0),
            _tau_p(500.0),
            Option(
                "coupling",
                keyword="cell_dof",
                default="isotropic",
                help="how the cell varies, isotropic, semiisotropic or semiisotropic-fixed-z",
                text=checked_coupling,
            ),
        ),
        cell_varies=True,
        conserved="enthalpy with the energy of cell and chains",
    )
)
