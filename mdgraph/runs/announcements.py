"""What a run says before it begins."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from mdgraph.engine.coincidence import check_duplicates
from mdgraph.engine.lengths import check_lengths
from mdgraph.fused.choice import is_fused
from mdgraph.fused.evaluator import will_compile
from mdgraph.fused.verification import check_memory
from mdgraph.host_memory import check_fits
from mdgraph.memory import Workload, available_memory, run_memory
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.skins import default_skin
from mdgraph.precision import precision_named
from mdgraph.runs.configuration import RunConfig
from mdgraph.runs.potential import Source
from mdgraph.runs.record import formula
from mdgraph.runs.replicas import distinct
from mdgraph.state import State
from mdgraph.system import System

logger = logging.getLogger(__name__)

_TOO_MUCH: Final = 1.5
"""An estimate so many times what is free is refused; one beyond that, as it may err, is told."""


def say_plans(
    configuration: RunConfig, source: Source, systems: Sequence[System], device: torch.device
) -> None:
    """What is simulated on this rank, and the memory it takes.

    Raises:
        CapacityError: so much more memory than there is that it cannot fit.
    """
    config = source.potential.config
    logger.info(
        "%s, with %s (%s).",
        _contents(systems),
        source.name,
        config.level_of_theory or "level of theory not stated",
    )
    starts = distinct(systems)
    for one in starts:
        # A list of atoms in one place has a slot for each of them, and one in nm for thousands.
        check_duplicates(one)
        check_lengths(one)
    skin = default_skin(device) if configuration.skin_A is None else configuration.skin_A
    state = State(starts, device)
    capacities = [
        NeighborList(state, cutoff, skin, cell_varies=False).capacity
        for cutoff in source.potential.cutoffs
    ]
    precision = precision_named(configuration.precision)
    fused = is_fused(config, precision, configuration.evaluator)
    atoms = sum(map(len, systems))
    check = configuration.check and fused
    needed = run_memory(
        Workload(source.potential, atoms, capacities, precision, device),
        fused=fused,
        check=check_memory(source.potential, atoms, capacities, device) if check else 0,
        compiles=fused and device.type == "cpu" and will_compile(config, precision),
    )
    free = available_memory(device)
    if needed > _TOO_MUCH * free:
        what = f"{atoms:,} atoms" if len(systems) == 1 else f"{len(systems):,} systems"
        advice = "simulate fewer, give a smaller --skin-A, or choose a larger device"
        check_fits(needed, free, what, advice)
    logger.log(
        logging.WARNING if needed > free else logging.INFO,
        "About %s MB of memory are needed, and %s has %s MB free.",
        f"{math.ceil(needed / 1e6):,}",
        device,
        f"{free / 1e6:,.0f}",
    )
    if device.type == "cuda" and configuration.graph != "off":
        logger.info("The step is captured as a CUDA graph first, which takes some seconds.")


def _contents(systems: Sequence[System]) -> str:
    """Formulas and charges, and how often each."""
    kinds = Counter((formula(one), one.charge or 0.0) for one in systems)
    texts = [
        f"{f'{times} times ' if times > 1 else ''}{text}, charge {charge:g} e"
        for (text, charge), times in kinds.items()
    ]
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def say_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warns where the hardware or a version differs from when the run began."""
    changed = [
        f"{key} {then.get(key)} then, {now[key]} now" for key in now if then.get(key) != now[key]
    ]
    if changed:
        logger.warning(
            "Not as when the run began, so the last bits may differ: %s.", "; ".join(changed)
        )
