"""How fast a potential runs on a structure, and what makes it so."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mdgraph.analysis.speed import speed_figure
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.memory import memory_failures
from mdgraph.runs.configuration import BenchConfig
from mdgraph.runs.ladder import Ladder
from mdgraph.runs.subject import read_subject, title

_PICTURES: Final = (".png", ".svg", ".pdf")

_COLUMNS: Final = (
    ("ms/step", "step_ms", ".4g", 1.0),
    ("ns/day", "ns_per_day", ".3g", 1.0),
    ("atom-steps/s", "atom_steps_per_s", ".2e", 1.0),
    ("memory, GB", "peak_memory_bytes", ".3f", 1e-9),
    ("gain", "gain", ".2f", 1.0),
    ("in all", "speedup", ".1f", 1.0),
)
"""Title, key in a row, format and factor."""


def speed(configuration: BenchConfig) -> dict[str, Any]:
    """Times of a step on every rung of the ladder, and of its parts on the fastest.

    Draws the picture that was asked for.

    Raises:
        MDGraphError: anything that cannot be, or a structure that falls apart while stepping.
    """
    picture = configuration.picture
    if picture is not None and Path(picture).suffix not in _PICTURES:
        raise InputError(f"Pictures are {', '.join(_PICTURES)} files, not '{picture}'.")
    if picture is not None and not Path(picture).absolute().parent.is_dir():
        raise InputError(f"There is no folder for the picture {picture}; make it first.")
    if picture is not None:
        refuse_existing(Path(picture), overwrite=configuration.overwrite, option=True)
    subject = read_subject(configuration)
    with memory_failures(subject.device):
        measured = Ladder(subject, configuration).measured()
    found = subject.about() | {
        "precision": configuration.precision,
        "timestep_fs": configuration.timestep_fs,
        **measured,
    }
    if picture is not None:
        figure = speed_figure(found, title(found))
        write_atomically(picture, figure.savefig, new=not configuration.overwrite)
    return found


def speed_text(found: Mapping[str, Any]) -> str:
    """What `speed` found, to be read by people."""
    ladder = found["ladder"]
    width = 2 + max(len(row["name"]) for row in ladder)
    lines = [
        f"{title(found)}; {found['precision']}, time step {found['timestep_fs']:g} fs",
        " " * width + "".join(f"{head:>13}" for head, *_ in _COLUMNS),
    ]
    for row in ladder:
        cells = "".join(_cell(row, key, form, factor) for _, key, form, factor in _COLUMNS)
        lines.append(
            f"{row['name']:<{width}}{cells if not row['reason'] else '  ' + row['reason']}"
        )
    shares = ", ".join(
        f"{name} {one['ms']:.3g} ms ({100 * one['share']:.0f} %)"
        for name, one in found["parts"].items()
    )
    lines += [f"A step of the last row: {shares}", f"It runs {_way(found)}."]
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], key: str, form: str, factor: float) -> str:
    value = row.get(key)
    return f"{'-' if value is None else format(factor * value, form):>13}"


def _way(found: Mapping[str, Any]) -> str:
    steps = found["steps_per_replay"]
    way = "eagerly" if steps is None else f"as CUDA graphs of up to {steps} steps"
    interval = found["list_interval"]
    built = "was not built" if interval is None else f"was built every {interval:.3g} steps"
    return f"{way}, with a skin of {found['skin_A']:g} A; the neighbor list {built}"
