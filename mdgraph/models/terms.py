"""Terms that are added to a potential, written as texts such as `0.5*lj:Ar=0.0104/3.4@10`.

A text is [WEIGHT*]WORD[:ARGUMENTS][@CUTOFF], with the cutoff in A. The word names an architecture,
whose module says what the arguments are. A weight such as 0:1 goes from 0 to 1 along a run.
`potential:NAME` is another potential by its name or path, and `WEIGHT*self` gives the potential
that terms are added to a weight, so `1:0*self` and `0:1*potential:NAME` switch from one to another.
"""

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
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

_WEIGHTED: Final = re.compile(
    r"(?:(?P<weight>[^*:@]+)(?::(?P<last>[^*:@]+))?\*)?"
    r"(?:(?P<self>self)|potential:(?P<potential>.+))",
    re.DOTALL,
)
"""The potential that terms are added to, and other potentials."""

LOADERS: Final[list[Callable[[str], tuple[PotentialModule, str]]]] = []
"""Loads a potential by its name or path, with its SHA-256; `mdgraph.checkpoints` adds it."""

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
        InputError: another text, or `self`.
        FileError, CheckpointError: another potential cannot be loaded.
    """
    part, weight, _ = _term(text)
    if part is None:
        raise InputError("The term self is the potential that terms are added to; name another.")
    return part, weight


def potential_of(text: str) -> str | None:
    """The name or path of the other potential that a text names; None of other terms."""
    match = _WEIGHTED.fullmatch(text.strip())
    return match["potential"].strip() if match and match["potential"] else None


def _term(text: str) -> tuple[PotentialModule | None, Weight, str]:
    """Potential, weight and the SHA-256 of its file, if it is of one; no potential for `self`."""
    own = _WEIGHTED.fullmatch(text.strip()) if isinstance(text, str) else None
    if own is not None and own["self"]:
        return None, _weight(own, text), ""
    if own is not None:
        if not LOADERS:
            raise InputError(
                f"'{printable(text, 100)}' is loaded by mdgraph.checkpoints; import it."
            )
        part, digest = LOADERS[0](own["potential"].strip())
        return part, _weight(own, text), digest
    match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    words = [word for word, entry in ARCHITECTURES.items() if entry.parse is not None]
    if match is None or match["word"] not in words:
        word = text if match is None else match["word"]
        if word == "potential":
            raise InputError(
                f"The term '{printable(text, 100)}' names no potential; write it as in "
                "potential:water-pbe0."
            )
        if word == "self":
            raise InputError(
                f"The term self takes a weight alone, and this is '{printable(text, 100)}'; write "
                "it as in 0.5*self."
            )
        words += ["potential", "self"]
        near = similar_names(str(word), words)
        names = f"{name_some(words, 20)}, and write another potential as potential:NAME."
        advice = f"did you mean {near[0]}?" if near else f"choose among {names}"
        raise InputError(f"There is no term '{printable(text, 100)}'; {advice}")
    architecture = ARCHITECTURES[match["word"]]
    assert architecture.parse is not None
    weight = _weight(match, text)
    cutoff = None
    if match["cutoff"] is not None:
        cutoff = number(match["cutoff"], "the cutoff", text)
    try:
        config = architecture.parse((match["arguments"] or "").strip(), cutoff)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or match["word"]
        message = first["msg"].replace("Value error, ", "").replace("Input should", "it should", 1)
        raise InputError(
            f"The term '{printable(text, 100)}' cannot be: {where}: {message}."
        ) from error
    return architecture.build(config), weight, ""


def _weight(match: re.Match[str], text: str) -> Weight:
    """The weight before a star, 1 without one, or the two of a ramp."""
    if match["weight"] is None:
        return 1.0
    first = number(match["weight"], "the weight", text)
    return first if match["last"] is None else (first, number(match["last"], "it", text))


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
        InputError: a text that is no term, a term that does not suit the potential, a weight
            that changes without `ramp_steps`, or weights that are all 0.
    """
    texts = term_texts(terms)
    if not texts:
        return potential
    if not isinstance(potential, PotentialModule):
        raise InputError(
            f"Terms cannot be added to {type(potential).__name__}; load the potential first."
        )
    named = [_term(text) for text in texts]
    for text, (_, weight, _) in zip(texts, named, strict=True):
        if isinstance(weight, tuple) and ramp_steps is None:
            raise InputError(
                f"The weight of the term '{printable(text, 100)}' changes along a run of dynamics, "
                "and this is none; give one number."
            )
    weights = [weight for part, weight, _ in named if part is None]
    if len(weights) > 1:
        raise InputError("The term self is given twice; give the potential one weight.")
    whole: list[tuple[PotentialModule, Weight]] = [(potential, weights[0] if weights else 1.0)]
    parts = [(part, weight) for part, weight, _ in named if part is not None]
    for part, weight in parts:
        for other, _ in whole:
            reason = part.objection(other)
            if reason is not None and not force:
                raise InputError(f"{reason}; leave the term out, or insist with --force.")
            if reason is not None:
                logger.warning("%s. It is added all the same.", reason)
        whole.append((part, weight))
    config = potential.config
    levels = [part.config.level_of_theory or part.stated_dispersion for part, _ in parts]
    learned = 0 if potential.has_latent else None
    if isinstance(potential, SumPotential):
        learned = potential.config.learned
    combined = SumPotential.of(
        whole,
        learned=learned,
        ramp_steps=ramp_steps,
        name=" + ".join(_named(texts, config.name or "potential")),
        sha256=["", *(digest for part, _, digest in named if part is not None)],
        level_of_theory=" + ".join(dict.fromkeys(filter(None, [config.level_of_theory, *levels]))),
        licence=config.licence,
        training_hash=config.training_hash,
    )
    if parts and weights == [0.0]:
        logger.warning(
            "%s has the weight 0 and does not act; the other terms act alone.",
            printable(config.name or "The potential", 100),
        )
    return combined


def _named(texts: Sequence[str], name: str) -> list[str]:
    """Texts of a sum with the name of its potential, first and in the place of `self`."""
    own = [text for text in texts if text.rpartition("*")[2] == "self"]
    others = [text for text in texts if text not in own]
    return [*([text.removesuffix("self") + name for text in own] or [name]), *others]


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
