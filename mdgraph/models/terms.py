"""Terms that are added to a potential, written as texts such as `0.5*lj:Ar=0.0104/3.4@10`.

A text is [WEIGHT*]WORD[:ARGUMENTS][@CUTOFF], with the cutoff in A. The word names an architecture,
whose module says what the arguments are. A weight such as 0:1 goes from 0 to 1 along a run.
"""

import logging
import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import ValidationError

from mdgraph.errors import InputError, name_some, printable, similar_names
from mdgraph.models.architectures import ARCHITECTURES
from mdgraph.models.potential import PotentialModule
from mdgraph.models.sum import SumPotential, Weight
from mdgraph.units import NUMBERS, SYMBOLS

logger = logging.getLogger(__name__)

_TEXT: Final = re.compile(
    r"(?:(?P<weight>[^*:@]+)(?::(?P<last>[^*:@]+))?\*)?(?P<word>[\w-]+)(?::(?P<arguments>[^@]*))?(?:@(?P<cutoff>.*))?",
    re.DOTALL,
)

EVERY_ELEMENT: Final = tuple(range(1, len(SYMBOLS)))
"""Species of terms that know every element."""


def is_term(text: str) -> bool:
    """Whether a text begins with a word for a term, as `zbl@1.5` does; it may still be wrong."""
    match = _TEXT.fullmatch(text.strip())
    entry = ARCHITECTURES.get(match["word"]) if match else None
    return entry is not None and entry.parse is not None


def term(text: str) -> tuple[PotentialModule, Weight]:
    """The potential and the weight that a text names, or the two weights of a ramp.

    Args:
        text: see above.

    Raises:
        InputError: another text.
    """
    match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    words = [word for word, entry in ARCHITECTURES.items() if entry.parse is not None]
    if match is None or match["word"] not in words:
        word = text if match is None else match["word"]
        near = similar_names(str(word), words)
        advice = f"did you mean {near[0]}?" if near else f"choose among {name_some(words, 20)}."
        raise InputError(f"There is no term '{printable(text, 100)}'; {advice}")
    architecture = ARCHITECTURES[match["word"]]
    assert architecture.parse is not None
    weight: Weight = 1.0
    if match["weight"] is not None:
        weight = number(match["weight"], "the weight", text)
    if match["last"] is not None:
        weight = number(match["weight"], "the weight", text), number(match["last"], "it", text)
    cutoff = None
    if match["cutoff"] is not None:
        cutoff = number(match["cutoff"], "the cutoff", text)
    try:
        config = architecture.parse((match["arguments"] or "").strip(), cutoff)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or match["word"]
        message = first["msg"].replace("Value error, ", "")
        raise InputError(
            f"The term '{printable(text, 100)}' cannot be: {where}: {message}."
        ) from error
    return architecture.build(config), weight


def with_terms(
    potential: PotentialModule,
    terms: str | Sequence[str],
    *,
    force: bool = False,
    ramp_steps: int | None = None,
) -> PotentialModule:
    """The sum of a potential and terms; the potential itself where there are none.

    Args:
        potential: as loaded, of any architecture.
        terms: a text as of `term`, or several.
        force: whether to add a dispersion to what has one already, or is of another functional
            or of none that is stated; that is logged.
        ramp_steps: over which weights such as 0:1 change along a run of a Simulation.

    Raises:
        InputError: a text that is no term, a term that does not suit the potential, or a weight
            that changes without `ramp_steps`.
    """
    texts = term_texts(terms)
    if not texts:
        return potential
    if not isinstance(potential, PotentialModule):
        raise InputError(
            f"Terms cannot be added to {type(potential).__name__}; load the potential first."
        )
    parts = [term(text) for text in texts]
    for text, (_, weight) in zip(texts, parts, strict=True):
        if isinstance(weight, tuple) and ramp_steps is None:
            raise InputError(
                f"The weight of the term '{printable(text, 100)}' changes along a run of dynamics, "
                "and this is none; give one number."
            )
    whole: list[tuple[PotentialModule, Weight]] = [(potential, 1.0)]
    for part, weight in parts:
        for other, _ in whole:
            reason = part.objection(other)
            if reason is not None and not force:
                raise InputError(f"{reason}; leave the term out, or insist with --force.")
            if reason is not None:
                logger.warning("%s. It is added all the same.", reason)
        whole.append((part, weight))
    config = potential.config
    dispersions = [part.stated_dispersion for part, _ in parts if part.stated_dispersion]
    learned = 0 if potential.has_latent else None
    if isinstance(potential, SumPotential):
        learned = potential.config.learned
    return SumPotential.of(
        whole,
        learned=learned,
        ramp_steps=ramp_steps,
        name=" + ".join([config.name or "potential", *texts]),
        level_of_theory=" + ".join(filter(None, [config.level_of_theory, *dispersions])),
        licence=config.licence,
        training_hash=config.training_hash,
    )


def term_texts(terms: str | Sequence[str]) -> tuple[str, ...]:
    """One or several texts as a tuple; raises InputError for other values."""
    texts = (terms,) if isinstance(terms, str) else terms
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"Terms are given as {type(terms).__name__}; give texts such as ['zbl@3']."
        )
    return tuple(text.strip() for text in texts)


def number(text: str, what: str, term_text: str) -> float:
    """A finite number of a text; raises InputError, which says what it should be."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"In the term '{printable(term_text, 100)}' {what} is '{printable(text, 40)}'; give a "
            "number."
        )
    return value


def assignments(
    arguments: str, values: Sequence[str], example: str
) -> Iterator[tuple[str, list[float]]]:
    """Names and numbers of arguments such as `Ar=0.0104/3.4,Kr=0.0140/3.65`.

    Args:
        arguments: of a term.
        values: what the numbers of a name are, in words.
        example: a term, for the sentence of an error.

    Raises:
        InputError: other arguments, or a name that comes twice.
    """
    names: set[str] = set()
    for part in arguments.split(","):
        name, sign, numbers = part.strip().partition("=")
        texts = numbers.split("/")
        if not sign or len(texts) != len(values) or name in names:
            reason = f"{name} comes twice" if name in names else f"'{printable(part, 60)}' is none"
            raise InputError(
                f"A term such as {example} has a name and {'/'.join(values)} for each part, and "
                f"{reason}; write it so."
            )
        names.add(name)
        yield name, [number(text, what, part) for text, what in zip(texts, values, strict=True)]


def element(symbol: str) -> int:
    """The atomic number of a symbol; raises InputError for another text."""
    if symbol not in NUMBERS:
        near = similar_names(symbol, NUMBERS)
        advice = f"did you mean {near[0]}?" if near else "give a symbol such as O."
        raise InputError(f"There is no element '{printable(symbol, 40)}'; {advice}")
    return NUMBERS[symbol]


def without_cutoff(word: str, cutoff: float | None) -> None:
    """Raises InputError if a term without a range was given a cutoff."""
    if cutoff is not None:
        raise InputError(f"The term {word} has no cutoff; leave @{cutoff:g} out.")


def with_cutoff(word: str, cutoff: float | None, example: str) -> float:
    """The cutoff; raises InputError if a term that needs one has none."""
    if cutoff is None:
        raise InputError(f"The term {word} needs a cutoff in A; write it as in {example}.")
    return cutoff
