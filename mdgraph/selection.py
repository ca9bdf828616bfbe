"""Atoms by words: a strict subset of the selection language of MDAnalysis, and short lists.

    selection   term { "and" term } { "or" term }, or one of both alone
    term        "not" term | "(" selection ")" | "all"
                | "index" spans | "element" symbols | "name" patterns | "resname" patterns
                | "prop" ["abs"] x|y|z operator number | "around" distance term

MDAnalysis (DOI 10.25080/Majora-629e541a-00e) selects the same atoms by the same text. It reads
`or` and `and` from the left, and what follows `around` as a whole; where a chemist may read the
text in another way, it is refused here, and the error says where parentheses belong. A short
list, such as `0,4,9-20,O`, has indices, ranges and elements, and is not of MDAnalysis.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from mdgraph.arguments import shown
from mdgraph.errors import InputError, name_some, printable, similar_names
from mdgraph.system import System, completed_cell
from mdgraph.units import SYMBOLS

KEYWORDS: Final = ("index", "element", "name", "resname", "around", "prop", "all", "not")
"""Words with which a term begins."""

_MDANALYSIS: Final = (
    "altLoc altloc aromatic aromaticity atom backbone bfactor bonded bynum byres chainID chainid "
    "charge chirality cylayer cyzone epsilon epsilon14 formalcharge gbscreen global group icode id "
    "isolayer mass model molnum moltype nbindex nucleic nucleicbackbone nucleicbase nucleicsugar "
    "occupancy point protein radius record_type resid resindex resnum rmin rmin14 same segid "
    "segindex smarts solventradius sphlayer sphzone tempfactor type water"
)
OTHER_KEYWORDS: Final = frozenset(_MDANALYSIS.split())
"""Words with which a term of MDAnalysis begins, and none of this module."""

_OPERATORS: Final = ("and", "or")
_ALL_WORDS: Final = {*KEYWORDS, *OTHER_KEYWORDS, *_OPERATORS}
_TERMS: Final = "index, element, name, resname, around, prop, all, not or a parenthesis"

_DEEPEST: Final = 50
"""Parentheses, `not` and `around` within each other."""

_LONGEST: Final = 60
"""Characters of a word that an error shows."""

_WORD: Final = re.compile(r"[()]|[^\s()]+")
_SPAN: Final = re.compile(r"([0-9]{1,18})(?:([:-])([0-9]{1,18}))?")
_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_PROPERTY: Final = re.compile(
    rf"\s+(?P<abs>abs\s+)?(?P<axis>[xyz])\s*(?P<operator><=|>=|==|<|>)\s*(?P<value>{_NUMBER})"
    r"(?=[\s()]|$)"
)

_Mask = NDArray[np.bool_]
_Term = Callable[[System, list[str]], _Mask]
"""Selects atoms (N,) of a system; appends a remark if there are none, to explain an error."""

_COMPARISONS: Final[dict[str, Callable[[NDArray[np.float64], float], _Mask]]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.isclose,
}


def select_atoms(text: str, system: System) -> list[int]:
    """The atoms that a text selects.

    Args:
        text: a selection such as `element O and prop z < 5`, or a short list such as
            `0,4,9-20,O`; docs/usage.md explains both.
        system: with the atoms; `around` and `prop` take its positions, A, and `around` the
            nearest images along its periodic directions.

    Returns:
        Indices in ascending order, at least one.

    Raises:
        InputError: the text is no selection, selects no atom, or asks for names where the
            structure has none.
    """
    term, remarks = _term_of(text), list[str]()
    atoms: list[int] = np.flatnonzero(term(system, remarks)).tolist()
    if not atoms:
        reason = f", as {remarks[0]}" if remarks else ""
        raise InputError(
            f"'{printable(text, _LONGEST)}' selects none of the {len(system)} atoms{reason}; "
            "change the selection, or leave it out."
        )
    return atoms


def select_in_all(text: str, systems: Sequence[System]) -> list[int]:
    """The atoms that a text selects in each system, counted over the atoms of all systems.

    Raises:
        InputError: see `select_atoms`; names the system, if there are several.
    """
    atoms: list[int] = []
    begin = 0
    for number, system in enumerate(systems, 1):
        try:
            atoms += [begin + atom for atom in select_atoms(text, system)]
        except InputError as error:
            if len(systems) == 1:
                raise
            raise InputError(f"Structure {number} of {len(systems)}: {error}") from error
        begin += len(system)
    return atoms


def check_selection(text: str) -> None:
    """Raises InputError if a text is no selection, whatever the structure."""
    _term_of(text)


def spans_text(atoms: Sequence[int]) -> str:
    """A short list of ascending indices, such as `0-3,8`."""
    indices = np.asarray(atoms, dtype=np.int64)
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    ends = [*(starts[1:] - 1), len(indices) - 1] if len(indices) else []
    pairs = zip(indices[starts].tolist(), indices[ends].tolist(), strict=True)
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pairs)


def _term_of(text: str) -> _Term:
    if not isinstance(text, str):
        raise InputError(f"The selection is {shown(text)}; give a text such as 'element O'.")
    words = re.split(r"[,\s()]+", text)
    if "(" in text or ")" in text or any(map(_belongs_to_language, words)):
        return _Parser(text).parse()
    return _short_list(text)


def _belongs_to_language(word: str) -> bool:
    """Whether a word is none of a short list, as keywords, misspelt ones and comparisons are."""
    return word not in SYMBOLS and (
        word.casefold() in _ALL_WORDS or re.match("[A-Za-z]..|.*[<>=]", word) is not None
    )


def _short_list(text: str) -> _Term:
    """The atoms of a text such as `0,4,9-20,O`: indices, ranges and elements."""
    spans: list[tuple[int, int, str]] = []
    symbols: list[str] = []
    for word in filter(None, re.split(r"[,\s]+", text)):
        span = _SPAN.fullmatch(word)
        if span is not None and span[2] != ":":
            spans.append((int(span[1]), int(span[3] or span[1]), word))
        elif word in SYMBOLS[1:]:
            symbols.append(word)
        else:
            advice = "" if spans or symbols else _name_advice(text.replace(",", " ").split())
            if advice:
                raise InputError(
                    f"'{printable(word, _LONGEST)}' is not an index or element; {advice}."
                )
            raise InputError(
                f"'{printable(word, _LONGEST)}' names no atoms; give indices from 0 on, ranges "
                "such as 3-8, elements, or a selection such as 'index 0:9' or 'element O'."
            )
    if not spans and not symbols:
        raise InputError(
            f"'{printable(text, _LONGEST)}' names no atoms; give some, or leave the option out."
        )

    def atoms(system: System, remarks: list[str]) -> _Mask:
        mask = _within(spans, system)
        for symbol in symbols:
            matches = system.numbers == SYMBOLS.index(symbol)
            if not matches.any():
                raise InputError(f"The structure has no {symbol} to choose; see its elements.")
            mask |= matches
        return mask

    return atoms


def _within(spans: Sequence[tuple[int, int, str]], system: System) -> _Mask:
    """Atoms (N,) of ranges with both ends; raises InputError for an atom that is not there."""
    mask = np.zeros(len(system), dtype=bool)
    for first, last, word in spans:
        if not first <= last < len(system):
            raise InputError(
                f"There are no atoms {word}; atoms are counted from 0 to {len(system) - 1}."
            )
        mask[first : last + 1] = True
    return mask


class _Word(NamedTuple):
    """A word of a text, or a parenthesis.

    Attributes:
        text: the word; empty at the end of the text.
        number: counted from 1; parentheses do not count.
        start: place of its first character.
        end: place after its last character.
    """

    text: str
    number: int
    start: int
    end: int


class _Parser:
    """Reads one selection."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words: list[_Word] = []
        number = 0
        for match in _WORD.finditer(text):
            number += match[0] not in ("(", ")")
            self._words.append(_Word(match[0], number, match.start(), match.end()))
        self._words.append(_Word("", number, len(text), len(text)))
        self._place = 0
        self._depth = 0

    @property
    def _next(self) -> _Word:
        return self._words[self._place]

    def _take(self) -> _Word:
        word = self._next
        self._place += bool(word.text)
        return word

    def _fail(self, word: _Word, problem: str, advice: str) -> NoReturn:
        """Raises InputError: the word, what is wrong with it, and what to write."""
        text = printable(word.text or self._words[-2].text, _LONGEST)
        if not word.text:
            raise InputError(f"The selection ends after '{text}'; {advice}.")
        where = f"Word {word.number} of the selection, '{text}',"
        if text in ("(", ")"):
            where = f"The '{text}' at character {word.start + 1} of the selection"
        raise InputError(f"{where} {problem}; {advice}.")

    def parse(self) -> _Term:
        """The term of the whole text; raises InputError."""
        term = self._chain()
        if self._next.text:
            self._fail(self._next, "closes no parenthesis", "remove it, or open one before it")
        return term

    def _chain(self) -> _Term:
        """Terms with operators between them, up to a closing parenthesis or the end."""
        first, others = self._term(), list[tuple[str, _Term]]()
        while (operator := self._next).text not in ("", ")"):
            if operator.text not in _OPERATORS:
                self._fail(operator, "follows a whole term", _operator_advice(operator.text))
            if operator.text == "and" and any(earlier == "or" for earlier, _ in others):
                self._fail(
                    operator,
                    "comes after an or, and programs disagree which of them goes first",
                    "put parentheses around what belongs together",
                )
            self._take()
            others.append((operator.text, self._term()))

        def atoms(system: System, remarks: list[str]) -> _Mask:
            mask = first(system, remarks)
            for operator, term in others:
                other = term(system, remarks)
                mask = mask & other if operator == "and" else mask | other
            return mask

        return atoms if others else first

    def _term(self) -> _Term:
        readers: dict[str, Callable[[_Word], _Term]] = {
            "(": self._parenthesis,
            "not": self._not,
            "all": self._all,
            "index": self._index,
            "element": self._element,
            "name": self._names,
            "resname": self._names,
            "prop": self._property,
            "around": self._around,
        }
        word = self._take()
        if word.text not in readers:
            self._fail(word, *_term_advice(word.text, self._text[word.start :]))
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(word, f"lies within more than {_DEEPEST} others", "write it more simply")
        term = readers[word.text](word)
        self._depth -= 1
        return term

    def _parenthesis(self, opening: _Word) -> _Term:
        term = self._chain()
        if self._take().text != ")":
            self._fail(opening, "is not closed", "write ) where its selection ends")
        return term

    def _not(self, _: _Word) -> _Term:
        term = self._term()
        return lambda system, _: ~term(system, [])

    def _all(self, _: _Word) -> _Term:
        return lambda system, _: np.ones(len(system), dtype=bool)

    def _values(self, keyword: _Word, example: str) -> list[_Word]:
        """The words up to the next keyword, operator or parenthesis, at least one."""
        advice = f"write what {keyword.text} selects, as in '{example}'"
        values = []
        while self._next.text not in ("", "(", ")") and self._next.text not in _ALL_WORDS:
            word = self._take()
            if "," in word.text:
                self._fail(word, "has a comma", f"write spaces, as in '{example}'")
            values.append(word)
        if not values:
            self._fail(self._next, f"comes right after {keyword.text}", advice)
        return values

    def _index(self, keyword: _Word) -> _Term:
        spans = []
        for word in self._values(keyword, "index 0:9 12"):
            span = _SPAN.fullmatch(word.text)
            if span is None:
                advice = "write numbers from 0 on, and ranges with both ends such as 0:9"
                self._fail(word, "is not an index", advice)
            first, last = int(span[1]), int(span[3] or span[1])
            if last < first:
                self._fail(word, "counts down", f"write {last}:{first}")
            spans.append((first, last, word.text))
        return lambda system, _: _within(spans, system)

    def _element(self, keyword: _Word) -> _Term:
        symbols = []
        for word in self._values(keyword, "element O H"):
            if word.text not in SYMBOLS[1:]:
                self._fail(word, "is not an element", _symbol_advice(word.text))
            symbols.append(word.text)
        numbers = [SYMBOLS.index(symbol) for symbol in symbols]

        def atoms(system: System, remarks: list[str]) -> _Mask:
            mask = np.isin(system.numbers, numbers)
            if not mask.any():
                elements = [SYMBOLS[number] for number in np.unique(system.numbers)]
                remarks.append(
                    f"no atom is {' or '.join(symbols)} and the elements are {name_some(elements)}"
                )
            return mask

        return atoms

    def _names(self, keyword: _Word) -> _Term:
        is_residue = keyword.text == "resname"
        patterns = []
        for word in self._values(keyword, "resname HOH" if is_residue else "name CA C*"):
            if "\\" in word.text:
                self._fail(word, "has a backslash", "write the name without it")
            patterns.append(word.text)

        def atoms(system: System, remarks: list[str]) -> _Mask:
            topology = system.topology
            what = "residue" if is_residue else "atom"
            if topology is None:
                raise InputError(
                    f"'{keyword.text} {printable(' '.join(patterns), _LONGEST)}' needs names of "
                    f"{what}s, and the structure has none; begin from a PDB or mmCIF file, or "
                    "select by index or element."
                )
            names = topology.residue_names if is_residue else topology.names
            distinct, places = np.unique(names, return_inverse=True)
            fits = [
                any(fnmatchcase(name, pattern) for pattern in patterns)
                for name in distinct.tolist()
            ]
            if not any(fits):
                wrong = printable(" or ".join(patterns), _LONGEST)
                remarks.append(
                    f"no {what} has the name {wrong} and the names are "
                    f"{name_some(distinct.tolist())}"
                )
            mask: _Mask = np.array(fits)[places]
            return mask

        return atoms

    def _property(self, keyword: _Word) -> _Term:
        match = _PROPERTY.match(self._text, keyword.end)
        if match is None:
            self._fail_property()
        while self._next.text and self._next.start < match.end():
            self._take()
        axis, value = match["axis"], float(match["value"])
        compare, absolute = _COMPARISONS[match["operator"]], match["abs"] is not None

        def atoms(system: System, remarks: list[str]) -> _Mask:
            values = system.positions[:, "xyz".index(axis)]
            mask = compare(np.abs(values) if absolute else values, value)
            if not mask.any():
                remarks.append(f"{axis} lies between {values.min():.4g} and {values.max():.4g} A")
            return mask

        return atoms

    def _fail_property(self) -> NoReturn:
        """Raises InputError for the word after `prop` that is wrong."""
        example = "as in 'prop z < 5'"
        word = self._take()
        if word.text == "abs":
            word = self._take()
        if not re.match(r"[xyz](?![A-Za-z])", word.text):
            self._fail(word, "is no coordinate", f"write x, y or z, {example}")
        if len(word.text) == 1:
            word = self._take()
        operator = word.text.lstrip("xyz")
        if operator.startswith("!="):
            self._fail(word, "is not taken here", "write not and ==, as in 'not prop z == 5'")
        if operator in _COMPARISONS:
            word = self._take()
        advice = f"write <, <=, >, >= or == and a number of A, {example}"
        self._fail(word, "is no comparison with a number", advice)

    def _around(self, keyword: _Word) -> _Term:
        word = self._take()
        if not re.fullmatch(_NUMBER, word.text) or not 0.0 <= float(word.text) < np.inf:
            advice = "write a distance and a selection, as in 'around 3 (element O)'"
            self._fail(word, "is no distance in A", advice)
        distance = float(word.text)
        center = self._term()
        if self._next.text not in ("", ")"):
            own = self._text[keyword.start : self._words[self._place - 1].end]
            self._fail(
                self._next,
                "would belong to what is around, as around takes all that follows",
                f"write '({printable(own, _LONGEST)})' before it",
            )

        def atoms(system: System, remarks: list[str]) -> _Mask:
            centers = center(system, remarks)
            mask = ~centers
            mask[mask] = _are_near(system, centers, mask, distance)
            if not mask.any() and centers.any():
                remarks.append(f"no other atom lies within {distance:g} A of it")
            return mask

        return atoms


def _are_near(system: System, centers: _Mask, others: _Mask, distance: float) -> _Mask:
    """Whether each of the other atoms is within a distance (A) of an image of a centre."""
    if not centers.any() or not others.any():
        return np.zeros(int(others.sum()), dtype=bool)
    vectors = completed_cell(system.cell, system.pbc)
    inverse = np.linalg.inv(vectors)
    fractional = system.positions @ inverse
    fractional -= np.where(system.pbc, np.floor(fractional), 0.0)
    # No image of a centre is farther from an atom than this.
    farthest = np.linalg.norm(vectors[system.pbc], axis=1).sum() + np.linalg.norm(
        np.ptp(fractional[:, ~system.pbc], axis=0)
    )
    reach = min(distance, farthest)
    margins = reach * np.linalg.norm(inverse, axis=0)  # in fractional coordinates
    images = fractional[centers]
    for axis in np.flatnonzero(system.pbc):
        count = int(np.ceil(margins[axis]))
        shifts = np.zeros((2 * count + 1, 3))
        shifts[:, axis] = np.arange(-count, count + 1)
        images = (images + shifts[:, None]).reshape(-1, 3)
        images = images[np.abs(images[:, axis] - 0.5) <= 0.5 + margins[axis] + 1e-9]
    from scipy.spatial import KDTree

    nearest, _ = KDTree(images @ vectors).query(
        fractional[others] @ vectors, distance_upper_bound=1.001 * reach + 1e-6
    )
    near_atoms: _Mask = nearest <= distance
    return near_atoms


_COMPARISON: Final = re.compile(r"(abs\s+)?([xyz])\s*(<=?|>=?|==?)\s*([-+.\dEe]+)?")


def _term_advice(word: str, rest: str) -> tuple[str, str]:
    """What is wrong with a word where a term should begin, and what to write.

    Args:
        word: the word.
        rest: the text from it on.
    """
    if comparison := _COMPARISON.match(rest):
        absolute, axis, operator, number = (group or "" for group in comparison.groups())
        operator = "==" if operator == "=" else operator
        return "begins no term", f"write prop {absolute}{axis} {operator} {number or 5}"
    if word in _OPERATORS:
        return "has no term before it", "write one, or remove this"
    if word.casefold() in ("tag", "tags"):
        return (
            "begins no term, as tags are not read",
            "give indices, or hold the atoms by FixAtoms of ASE in the structure file",
        )
    if word in OTHER_KEYWORDS:
        return "is a word of MDAnalysis that is not taken here", f"write {_TERMS}"
    if span := _SPAN.fullmatch(word):
        return "begins no term", f"write index {span[1]}" + (f":{span[3]}" if span[3] else "")
    if word in SYMBOLS[1:]:
        return "begins no term", f"write element {word}"
    similar = _similar(word)
    advice = f"write {similar}" if similar else _name_advice([word])
    return "begins no term", advice or f"write {_TERMS}"


def _name_advice(words: Sequence[str]) -> str:
    """How to select by words that may be names of atoms or residues; empty for others."""
    if not all(re.fullmatch(r"[A-Za-z][\w'*+-]*", word) for word in words):
        return ""
    text = printable(" ".join(words), _LONGEST)
    if all(word.capitalize() in SYMBOLS[1:] for word in words):
        return f"write element {text.title()} or name {text}"
    residue = f"resname {text} or " if all(len(word) > 2 for word in words) else ""
    return f"write {residue}name {text}"


def _operator_advice(word: str) -> str:
    """What to write where an operator should be."""
    similar = _similar(word)
    return f"write {similar}" if similar in _OPERATORS else "write and or or before it"


def _symbol_advice(word: str) -> str:
    """What to write instead of a word that should be the symbol of an element."""
    if word.capitalize() in SYMBOLS[1:]:
        return f"write {word.capitalize()}"
    similar = _similar(word)
    return f"write {similar}" if similar else "write symbols such as O and Cl"


def _similar(word: str) -> str:
    """The keyword or operator that a word of three letters or more resembles; else nothing."""
    known = [*KEYWORDS, *_OPERATORS]
    names = similar_names(word, known) if len(word) > 2 or word.casefold() in known else []
    return names[0] if len(names) == 1 and names[0] != word else ""
