"""Every public callable and each of its parameters, with values of wrong kinds and sizes.

Whatever is given, it works or is refused in one sentence; what an annotation excludes is refused.
"""

import importlib
import inspect
import signal
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pytest
import torch
from ase import Atoms, units
from openmm import unit
from openmm_water import bare_system, positions, topology, verlet
from random_networks import TENSORNET, molecule, network
from toys import LennardJones
from training_sets import clusters

from mdgraph import biases, checkpoints, data, engine
from mdgraph.checkpoints import save
from mdgraph.data import splits
from mdgraph.drivers import ase as ase_driver
from mdgraph.drivers import openmm as openmm_driver
from mdgraph.drivers.ase.dynamics import KnownArguments
from mdgraph.drivers.openmmml import PotentialFactory
from mdgraph.drivers.openmmml.plugin import PotentialImplementation
from mdgraph.drivers.torchforce import export_torchforce
from mdgraph.errors import MDGraphError
from mdgraph.models import Domain
from mdgraph.system import System

ARGON: Final = LennardJones(0.01, 2.0, 4.0)
FS: Final = units.fs


class Unusable:
    """What is of no use to anybody; its name is the same in every process."""

    def __repr__(self) -> str:
        return "unusable"


VALUES: Final[tuple[Any, ...]] = (
    *(None, True, "a", "", b"x", 1j, -1, 0, 2.5, 10**30, 1e300, 10**400),
    *(float("nan"), float("inf"), -float("inf")),
    *([], {}, (), [None], ["a"], [10**30], [float("nan")], [True, "a"], {"a": 1}, {1.5}),
    *(np.zeros(0), np.zeros((2, 2)), np.array([True, False]), np.array(["a"]), np.float32("nan")),
    *(torch.zeros(3), torch.zeros(2, 2), Unusable(), Unusable, object, len),
)
"""Of wrong types, and absurd ones of right types."""

FEW_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, "a", -1, 0, 2.5, 10**400, float("nan")),
    *([], ["a"], {"a": 1}, np.zeros((2, 2)), Unusable()),
)
"""One or two of each type; the others are for the slow tests."""


def pair(**options: Any) -> Atoms:
    return Atoms("Ar2", [[0, 0, 0], [2.5, 0, 0]], **options)


def crystal() -> Atoms:
    places = 2.6 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)
    return Atoms("Ar8", places + 0.01 * np.arange(24).reshape(8, 3), cell=[5.2] * 3, pbc=True)


def system(**changes: Any) -> System:
    return System(**({"numbers": [18, 18], "positions": pair().positions} | changes))


def simulation(**changes: Any) -> engine.Simulation:
    options = {
        "system": system(),
        "potential": ARGON,
        "integrator": engine.VelocityVerlet(1.0),
        "device": "cpu",
        "check": False,
    }
    return engine.Simulation(**(options | changes))


def calculated(atoms: Atoms) -> Atoms:
    atoms.calc = ase_driver.MDGraphCalculator(ARGON, device="cpu", check=False)
    return atoms


def moved(integrator: Any) -> None:
    crystalline = engine.integrators.Integrator.cell_varies or integrator.cell_varies
    atoms = crystal() if crystalline else pair()
    simulation(system=atoms, integrator=integrator).run(1)


def biased(bias: Any) -> None:
    variables = {"r": biases.Distance([0, 1])}
    integrator = engine.LangevinMiddle(1.0, 100.0)
    simulation(integrator=integrator, variables=variables, biases=[bias]).run(1)


def evaluated(variable: Any) -> None:
    cell = np.eye(3) * 10.0
    atoms = {"system": system(cell=cell, pbc=[True] * 3)}
    simulation(**atoms, variables={"r": biases.Distance([0, 1]), "x": variable}).run(1)


def observed(observable: Any) -> None:
    run = simulation(system=crystal(), observe=[observable])
    run.run(2)
    observable.result()


@dataclass
class Call:
    """A public callable with arguments that are good.

    Attributes:
        function: what is called; its signature says the parameters.
        good: makes the arguments that it needs, in a folder of its own.
        use: what is done with the result, for which arguments may be checked late.
        more: parameters that `**options` takes.
        unknown: parameters for which NaN says that nobody knows.
    """

    function: Callable[..., Any]
    good: Callable[[Path], dict[str, Any]] = lambda folder: {}
    use: Callable[[Any], object] = lambda result: None
    more: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def parameters(self) -> dict[str, tuple[Any, Callable[..., Any]]]:
        """Annotations by name, of parameters that the function names or hands on, and to whom."""
        functions = [self.function]
        if inspect.isclass(self.function):
            owners = [one for one in self.function.__mro__ if "__init__" in vars(one)]
            if not issubclass(self.function, KnownArguments):
                owners = owners[:1]
            functions = [one.__init__ for one in owners[: len(owners) - (len(owners) > 1)]]
        found = dict.fromkeys(self.more, (Any, self.function))
        for function in functions:
            own = function.__module__.startswith("mdgraph")
            hints = typing.get_type_hints(function) if own else {}
            for name, one in inspect.signature(function).parameters.items():
                if name != "self" and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                    found.setdefault(name, (hints.get(name, Any), function))
        return found

    def attempt(self, folder: Path, name: str, value: Any) -> None:
        """Calls it with one argument changed."""
        self.use(self.function(**(self.good(folder) | {name: value})))


def potential_file(folder: Path) -> Path:
    path = folder / "model.safetensors"
    if not path.exists():
        save(network(**TENSORNET), path)
    return path


def dataset(folder: Path) -> data.Dataset:
    path = folder / "set.h5"
    if not path.exists():
        frames = [
            replace(one, group=f"{place % 4}") for place, one in enumerate(clusters(16)[1::2])
        ]
        data.write_dataset(path, [(frames, data.Provenance("made"))])
    return data.open_dataset(path)


def split_file(folder: Path) -> Path:
    path = folder / "split.json"
    if not path.exists():
        data.write_split(splits.random_split(dataset(folder), 0.25, 0.0, 0), path)
    return path


def a_domain(folder: Path) -> Domain:
    rows = {"species": torch.tensor([18])}
    return checkpoints.load_domain("water-pbe0") or Domain(**rows)


def openmm_simulation(folder: Path) -> dict[str, Any]:
    return {
        "topology": topology(),
        "potential": potential_file(folder),
        "integrator": verlet(),
        "device": "cpu",
        "check": False,
    }


def stepped(made: Any) -> None:
    made.context.setPositions(positions() * unit.angstrom)
    made.step(1)


def two_steps(dynamics: Any) -> None:
    dynamics.run(2)


def atoms_and(**options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {"atoms": calculated(pair()), "timestep": FS} | options


SETTERS: Final = {
    "temperature": "temperature_K",
    "pressure": "pressure_au",
    "compressibility": "compressibility_au",
}
POINTS: Final = {"Distance": [0, 1], "Angle": [0, 1, [0]], "Dihedral": [0, 1, [0], [1]]}
NPT: Final = {"temperature_K": 100.0, "pressure_au": 0.0}


def crystal_and(**options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {"atoms": calculated(crystal()), "timestep": FS} | options


def labelled(folder: Path) -> dict[str, Any]:
    frame = clusters(1)[0]
    return {"numbers": frame.numbers, "positions": frame.positions}


def parts_of(folder: Path) -> dict[str, Any]:
    return {"dataset": dataset(folder), "validation": 0.25, "test": 0.0, "seed": 0}


def changed(kind: Any) -> Any:
    """Dynamics under way, whose parameters are set."""
    own = {"friction": 0.01} if kind is ase_driver.Langevin else {"pressure_au": 0.0}
    made = kind(calculated(crystal()), FS, temperature_K=100.0, **own)
    made.run(1)
    return made


def checked_frame(frame: Any) -> None:
    frame.check("The frame")


CALLS: Final[dict[str, Call]] = {
    "load": Call(checkpoints.load, lambda folder: {"path_or_name": potential_file(folder)}),
    "convert": Call(
        checkpoints.convert,
        lambda folder: {
            "source": potential_file(folder),
            "target": folder / "other.safetensors",
            "overwrite": True,
        },
    ),
    "describe": Call(checkpoints.describe, lambda folder: {"potential": potential_file(folder)}),
    "load_domain": Call(
        checkpoints.load_domain, lambda folder: {"path_or_name": potential_file(folder)}
    ),
    "save": Call(
        checkpoints.save,
        lambda folder: {"potential": network(**TENSORNET), "path": folder / "s.safetensors"},
    ),
    "save_domain": Call(
        checkpoints.save_domain,
        lambda folder: {"domain": a_domain(folder), "folder": potential_file(folder).parent},
    ),
    "shipped_potentials": Call(checkpoints.shipped_potentials),
    "System": Call(System, lambda folder: {"numbers": [18, 18], "positions": pair().positions}),
    "Simulation": Call(
        engine.Simulation,
        lambda folder: {
            "system": system(),
            "potential": ARGON,
            "integrator": engine.VelocityVerlet(1.0),
            "device": "cpu",
            "check": False,
        },
        lambda run: run.run(1),
    ),
    "Simulation.run": Call(
        engine.Simulation.run, lambda folder: {"self": simulation(), "steps": 1}
    ),
    "Simulation.choose": Call(
        engine.Simulation.choose, lambda folder: {"self": simulation(), "steps": 1}
    ),
    "Simulation.set_skin": Call(
        engine.Simulation.set_skin, lambda folder: {"self": simulation(), "skin": 0.3}
    ),
    "Simulation.set": Call(
        engine.Simulation.set,
        lambda folder: {"self": simulation(integrator=engine.LangevinMiddle(1.0, 100.0))},
        more=("timestep", "temperature", "friction", "seed", "charge", "cell", "move_atoms"),
    ),
    "Calculation": Call(
        engine.Calculation,
        lambda folder: {"systems": [system()], "potential": ARGON, "device": "cpu"},
        lambda made: made.compute(),
    ),
    "HostSnapshot": Call(engine.HostSnapshot, lambda folder: {"dynamics": simulation()}),
    "minimize": Call(
        engine.minimize,
        lambda folder: {"simulation": simulation(integrator=engine.FIRE()), "steps": 2},
    ),
    "repartitioned": Call(
        engine.repartitioned,
        lambda folder: {"system": System([8, 1, 1], [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])},
    ),
    "PositionRestraints": Call(
        engine.PositionRestraints,
        lambda folder: {"atoms": [0], "stiffness": 1.0},
        lambda made: simulation(restraints=made).run(1),
    ),
    **{
        f"biases {name}": Call(
            getattr(biases, name), lambda folder, groups=groups: {"groups": groups}, evaluated
        )
        for name, groups in POINTS.items()
    },
    "biases Position": Call(biases.Position, lambda folder: {"group": 0}, evaluated),
    "biases CoordinationNumber": Call(
        biases.CoordinationNumber, lambda folder: {"groups": [0, 1], "r0": 2.0}, evaluated
    ),
    "biases RadiusOfGyration": Call(
        biases.RadiusOfGyration, lambda folder: {"group": [0, 1]}, evaluated
    ),
    "biases RMSD": Call(
        biases.RMSD,
        lambda folder: {"group": [0, 1, 2]},
        lambda variable: simulation(system=crystal(), variables={"x": variable}),
    ),
    "biases CellVolume": Call(biases.CellVolume, use=evaluated),
    "biases PotentialEnergy": Call(biases.PotentialEnergy, use=evaluated),
    "biases Combination": Call(
        biases.Combination, lambda folder: {"coefficients": {"r": 1.0}}, evaluated
    ),
    "biases HarmonicBias": Call(biases.HarmonicBias, lambda folder: {"variables": "r"}, biased),
    "biases LinearBias": Call(biases.LinearBias, lambda folder: {"variables": "r"}, biased),
    "biases MovingBias": Call(biases.MovingBias, lambda folder: {"variables": "r"}, biased),
    "biases WallBias": Call(
        biases.WallBias, lambda folder: {"variables": "r", "upper": 3.0}, biased
    ),
    "biases Metadynamics": Call(
        biases.Metadynamics,
        lambda folder: {"variables": "r", "minimum": 1.0, "maximum": 4.0},
        biased,
    ),
    "Ramp": Call(
        engine.Ramp,
        lambda folder: {"start": 100.0, "end": 200.0, "steps": 2},
        lambda ramp: moved(engine.LangevinMiddle(1.0, ramp)),
    ),
    "FIRE": Call(engine.FIRE, use=moved),
    "VelocityVerlet": Call(engine.VelocityVerlet, lambda folder: {"timestep": 1.0}, moved),
    **{
        name: Call(
            getattr(engine, name),
            lambda folder: {"timestep": 1.0, "temperature": 100.0},
            moved,
        )
        for name in ("LangevinMiddle", "NoseHooverChains", "StochasticVelocityRescaling")
    },
    **{
        name: Call(
            getattr(engine, name),
            lambda folder: {"timestep": 1.0, "temperature": 100.0, "pressure": 0.0},
            moved,
        )
        for name in ("MartynaTobiasKlein", "StochasticCellRescaling")
    },
    "Averages": Call(engine.Averages, use=observed),
    "RadialDistributions": Call(engine.RadialDistributions, use=observed),
    "ElementTemperatures": Call(
        engine.ElementTemperatures, lambda folder: {"every": 1}, use=observed
    ),
    "DomainMonitor": Call(
        engine.DomainMonitor,
        lambda folder: {"domain": checkpoints.load_domain("copper-pbe")},
    ),
    **{
        name: Call(getattr(engine, name), lambda folder: {"window": 2}, observed)
        for name in ("MeanSquaredDisplacement", "VelocityAutocorrelation")
    },
    "ASE MDGraphCalculator": Call(
        ase_driver.MDGraphCalculator,
        lambda folder: {"potential": ARGON, "device": "cpu", "check": False},
        lambda made: made.calculate(pair()),
    ),
    "ASE CommitteeCalculator": Call(
        ase_driver.CommitteeCalculator,
        lambda folder: {"potentials": [ARGON, ARGON], "device": "cpu", "check": False},
        lambda made: made.calculate(pair()),
        more=("device", "precision", "charge", "coulomb_cutoff", "evaluator", "check"),
    ),
    "ASE VelocityVerlet": Call(ase_driver.VelocityVerlet, atoms_and(), two_steps),
    "ASE VelocityVerlet.run": Call(
        ase_driver.VelocityVerlet.run,
        lambda folder: {"self": ase_driver.VelocityVerlet(**atoms_and()(folder)), "steps": 1},
    ),
    "ASE Langevin": Call(
        ase_driver.Langevin, atoms_and(temperature_K=100.0, friction=0.01), two_steps
    ),
    "ASE Bussi": Call(ase_driver.Bussi, atoms_and(temperature_K=100.0, taut=100 * FS), two_steps),
    "ASE NoseHooverChainNVT": Call(
        ase_driver.NoseHooverChainNVT, atoms_and(temperature_K=100.0, tdamp=50 * FS), two_steps
    ),
    "ASE IsotropicMTKNPT": Call(
        ase_driver.IsotropicMTKNPT,
        crystal_and(**NPT, tdamp=50 * FS, pdamp=500 * FS),
        two_steps,
    ),
    "ASE SemiisotropicMTKNPT": Call(
        ase_driver.SemiisotropicMTKNPT,
        crystal_and(**NPT, tdamp=50 * FS, pdamp=500 * FS),
        two_steps,
    ),
    "ASE StochasticCellRescaling": Call(
        ase_driver.StochasticCellRescaling, crystal_and(**NPT), two_steps
    ),
    **{
        f"ASE {kind.__name__}.set_{name}": Call(
            getattr(kind, f"set_{name}"),
            lambda folder, kind=kind, name=name: {
                "self": changed(kind),
                SETTERS.get(name, name): 1.0,
            },
            lambda made: None,
        )
        for kind in (ase_driver.Langevin, ase_driver.StochasticCellRescaling)
        for name in (one.removeprefix("set_") for one in dir(kind) if one.startswith("set_"))
    },
    "ASE FIRE": Call(
        ase_driver.FIRE,
        lambda folder: {"atoms": calculated(pair()), "logfile": None},
        lambda made: made.run(steps=2),
    ),
    "ASE FIRE.run": Call(
        ase_driver.FIRE.run,
        lambda folder: {"self": ase_driver.FIRE(calculated(pair()), logfile=None)},
    ),
    "ASE relax": Call(
        ase_driver.relax, lambda folder: {"structures": [calculated(pair())], "steps": 2}
    ),
    "OpenMM Simulation": Call(openmm_driver.Simulation, openmm_simulation, stepped),
    "OpenMM reduced": Call(openmm_driver.reduced, lambda folder: {"cell": np.eye(3)}),
    "openmm-ml createImpl": Call(
        PotentialFactory.createImpl,
        lambda folder: {
            "self": PotentialFactory(),
            "name": "mdgraph",
            "modelPath": str(potential_file(folder)),
        },
    ),
    "openmm-ml addForces": Call(
        PotentialImplementation.addForces,
        lambda folder: {
            "self": PotentialImplementation(str(potential_file(folder))),
            "topology": topology(),
            "system": bare_system(),
            "atoms": None,
            "forceGroup": 0,
            "device": "cpu",
            "check": False,
        },
    ),
    "export_torchforce": Call(
        export_torchforce,
        lambda folder: {
            "potential": network(**TENSORNET),
            "system": molecule(),
            "path": folder / "force.pt",
            "overwrite": True,
        },
    ),
    "LabelledFrame": Call(data.LabelledFrame, labelled, checked_frame, unknown=("energy",)),
    "Provenance": Call(
        data.Provenance,
        lambda folder: {"file": "made"},
    ),
    "Dataset": Call(data.Dataset, lambda folder: {"path": dataset(folder).path}),
    "open_dataset": Call(data.open_dataset, lambda folder: {"path": dataset(folder).path}),
    "write_dataset": Call(
        data.write_dataset,
        lambda folder: {
            "path": folder / "new.h5",
            "parts": [(clusters(2), data.Provenance("made"))],
            "overwrite": True,
        },
    ),
    "read_split": Call(
        data.read_split,
        lambda folder: {"path": split_file(folder), "dataset": dataset(folder)},
    ),
    "write_split": Call(
        data.write_split,
        lambda folder: {
            "split": splits.random_split(dataset(folder), 0.25, 0.0, 0),
            "path": folder / "new.json",
        },
    ),
    "random_split": Call(splits.random_split, parts_of),
    "group_split": Call(splits.group_split, parts_of),
    "block_split": Call(
        splits.block_split,
        lambda folder: {"dataset": dataset(folder), "validation": 0.25, "blocks": 2},
    ),
    "fold_splits": Call(
        splits.fold_splits,
        lambda folder: {"dataset": dataset(folder), "folds": 2, "test": 0.0, "seed": 0},
    ),
}
"""By name; names of the engine, of checkpoints and of data stand alone."""

NO_FUNCTIONS: Final = {
    "Layout": "a type",
    "NoStressError": "an error",
    "Integrator": "a base, of which the others are",
    "Bias": "a base, of which the others are",
    "CollectiveVariable": "a base, of which the others are",
    "OnlineObservable": "a base, of which the others are",
    "OnlineObservables": "made by a simulation",
    "Thermo": "a result",
    "Minimum": "a result",
    "Recorder": "a protocol",
    "Reporter": "a protocol",
    "Split": "a result, written and read",
    "FROM_CHECKPOINT": "a text",
}
PLACES: Final = {
    "mdgraph.biases": "biases ",
    "mdgraph.checkpoints": "",
    "mdgraph.engine": "",
    "mdgraph.engine.observables": "",
    "mdgraph.drivers.ase": "ASE ",
    "mdgraph.drivers.openmm": "OpenMM ",
    "mdgraph.drivers.torchforce": "",
    "mdgraph.data": "",
}


@pytest.mark.parametrize("place", PLACES)
def test_every_public_name_has_a_case(place: str) -> None:
    names = importlib.import_module(place).__all__
    left = {
        name
        for name in names
        if f"{PLACES[place]}{name}" not in CALLS
        and name not in NO_FUNCTIONS
        and not name.endswith("Result")
    }
    assert not left


def excluded(annotation: Any, value: Any) -> bool:
    """Whether an annotation of plain values alone says that a value cannot be."""
    kinds = typing.get_args(annotation)
    if not kinds or typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        kinds = (annotation,)
    allowed = {type(None): value is None, bool: isinstance(value, bool | np.bool_)}
    real = isinstance(value, Real) and not isinstance(value, bool | np.bool_) and value == value
    allowed |= {int: real, float: real, str: isinstance(value, str)}
    allowed[Path] = isinstance(value, Path)
    plain = [Literal if typing.get_origin(one) is Literal else one for one in kinds]
    allowed[Literal] = isinstance(value, str)
    return all(one in allowed for one in plain) and not any(allowed[one] for one in plain)


CPU_SECONDS: Final = 100.0
"""Three times what a call takes that compiles kernels first; other processes do not count."""


class TooLongError(Exception):
    """A call that computes without end. For one that waits there is the time limit of all tests."""


def too_long(*arguments: object) -> None:
    raise TooLongError


@pytest.mark.parametrize("title", CALLS)
def test_good_arguments_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call = CALLS[title]
    call.use(call.function(**call.good(tmp_path)))


CASES: Final = {
    f"{title}-{name}": (call, name, annotation, function)
    for title, call in CALLS.items()
    for name, (annotation, function) in call.parameters().items()
}
FIRST: Final = {(name, function): case for case, (_, name, _, function) in [*CASES.items()][::-1]}
"""Where a function that several classes hand a parameter on to takes it first."""


def parametrized(cases: Iterable[str]) -> pytest.MarkDecorator:
    rows = [pytest.param(*CASES[case][:3], id=case) for case in cases]
    return pytest.mark.parametrize(("call", "name", "annotation"), rows)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@parametrized(FIRST.values())
def test_wrong_values_of_an_argument_work_or_end_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, name: str, annotation: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    check_values(FEW_VALUES, tmp_path, call, name, annotation)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@parametrized(CASES)
def test_every_wrong_value_of_an_argument_works_or_ends_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, name: str, annotation: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    check_values(VALUES, tmp_path, call, name, annotation)


def check_values(
    values: tuple[Any, ...], folder: Path, call: Call, name: str, annotation: Any
) -> None:
    """Each value is taken, or refused in one sentence, within `CPU_SECONDS`."""
    wrong = []
    before = signal.signal(signal.SIGPROF, too_long)
    try:
        for value in values:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                call.attempt(folder, name, value)
            except MDGraphError as error:
                text = str(error)
                if "\n" in text or not text.endswith((".", ")")) or len(text) < 20:
                    wrong.append(f"{shown(value)}: no sentence: {text}")
            except Exception as error:  # noqa: BLE001 (all of them count)
                wrong.append(f"{shown(value)}: {type(error).__name__}: {str(error)[:80]}")
            else:
                if excluded(annotation, value) and not (value != value and name in call.unknown):
                    wrong.append(f"{shown(value)}: taken")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0.0)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert not wrong, "\n".join(wrong)


def shown(value: Any) -> str:
    return repr(value)[:40].replace("\n", " ")
