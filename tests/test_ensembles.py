"""The registry of ensembles says what integrators do, and the documents what it says."""

import inspect
import re
import subprocess
import sys

import pytest
from ensembles import toy
from repository import ROOT

from mdgraph.ensembles import ENSEMBLES, Ensemble

TEXT = (ROOT / "docs" / "ensembles.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the table whose first row begins with a heading."""
    lines = TEXT.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(heading))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def integrator(ensemble: Ensemble):
    arguments = {"timestep": 1.0} | ({"temperature": 300.0} if ensemble.bath else {})
    for option in ensemble.options:
        arguments |= option.arguments(option.convert(option.default))
    return ensemble.load_integrator()(**arguments)


@pytest.mark.parametrize("word", ENSEMBLES)
def test_integrators_are_what_the_registry_says(word: str) -> None:
    ensemble = ENSEMBLES[word]
    made = integrator(ensemble)
    assert made.cell_varies == ensemble.cell_varies
    assert ("temperature" in made.parameters) == ensemble.bath
    run = toy(made)
    assert (run.integrator.conserved_energy() is not None) == (ensemble.conserved is not None)


@pytest.mark.parametrize("word", ENSEMBLES)
def test_python_and_the_command_line_have_the_same_defaults(word: str) -> None:
    plain = {"timestep": 1.0, "temperature": 300.0, "pressure": integrator(ENSEMBLES["npt"])}
    parameters = inspect.signature(ENSEMBLES[word].load_integrator()).parameters
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default not in (inspect.Parameter.empty, None)
    }
    own = {}
    for option in ENSEMBLES[word].options:
        own |= option.arguments(option.convert(option.default))
    assert {name: own[name] for name in defaults} == defaults
    assert {name for name in own if own[name] is not None} - set(defaults) <= set(plain)


@pytest.mark.parametrize("word", ENSEMBLES)
def test_velocities_lag_where_the_registry_says_so(word: str) -> None:
    """Without forces a step of any integrator leaves the velocities of a free flight; with one,
    it tells by half a kick whether they belong to the end of the step or to its middle."""
    made = integrator(ENSEMBLES[word])
    if ENSEMBLES[word].bath:
        # A bath that couples next to never.
        weak = {"friction": 1e-9, "tau": 1e12, "tau_p": 1e12}
        made = type(made)(
            **{
                name: weak.get(name, schedule.start[0])
                for name, schedule in made.parameters.items()
            }
        )
    run = toy(made, temperature=300.0)
    before, forces = run.state.velocities.clone(), run.state.forces.clone()
    run.run(1)
    kick = run.integrator.parameters["timestep"].start[0] * 9.648533212331e-3
    kick = kick / run.state.masses[:, None]
    middle = before + kick * forces
    end = before + 0.5 * kick * (forces + run.state.forces)
    closer = (run.state.velocities - middle).abs().max() < (run.state.velocities - end).abs().max()
    assert bool(closer) == ENSEMBLES[word].midstep_velocities


def test_the_table_of_words_is_the_registry() -> None:
    table = {re.findall(r"`([\w-]+)`", row[0])[0]: row for row in rows("| word |")}
    assert list(table) == list(ENSEMBLES)
    for word, row in table.items():
        ensemble = ENSEMBLES[word]
        assert set(re.findall(r"`([\w-]+)`", row[0])) == {word, *ensemble.aliases}
        assert row[3] == (ensemble.conserved or "none")
        doc = ensemble.load_integrator().__doc__
        for doi in re.findall(r"\[(10\.[^\]]+)\]", row[2]):
            assert doi in doc


def test_the_table_of_options_is_the_registry() -> None:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    option = ""
    for row in rows("| option | of |"):
        option = re.sub("`", "", row[0]) or option
        for word in re.findall(r"`([\w-]+)`", row[1]):
            found[option, word] = (row[2], re.sub("`", "", row[3]))
    expected = {
        (f"--{own.name.replace('_', '-')}", word): (
            own.unit,
            own.default if isinstance(own.default, str) else f"{own.default:g}",
        )
        for word, ensemble in ENSEMBLES.items()
        for own in ensemble.options
    }
    assert {
        key: (unit, default if key[0] == "--coupling" else f"{float(default):g}")
        for key, (unit, default) in found.items()
    } == expected


def test_velocities_in_the_middle_are_named() -> None:
    sentence = re.search(r"In (.*), velocities, and therefore", TEXT)
    assert sentence is not None
    middle = [word for word, ensemble in ENSEMBLES.items() if ensemble.midstep_velocities]
    assert re.findall(r"`([\w-]+)`", sentence[1]) == middle


def test_the_command_line_reads_it_without_torch() -> None:
    code = "import sys, mdgraph.runs.commands.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
