"""Selections of atoms, against answers by hand, against MDAnalysis and brute force."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mdgraph.errors import InputError
from mdgraph.selection import KEYWORDS, OTHER_KEYWORDS, check_selection, select_atoms, spans_text
from mdgraph.system import System, Topology

NAMES = ["N", "CA", "CB", "HG1", "O", "H1", "H2", "O", "H1", "H2", "CL"]
RESIDUES = ["THR"] * 4 + ["HOH"] * 3 + ["SOL"] * 3 + ["CL"]
NUMBERS = [7, 6, 6, 1, 8, 1, 1, 8, 1, 1, 17]
CELL = np.array([[9.0, 0.0, 0.0], [2.0, 8.0, 0.0], [-1.0, 1.5, 7.0]])


def system(*, names: bool = True, seed: int = 0) -> System:
    """Eleven atoms in a skewed cell, some of them outside of it, at heights 0, 1, 2 ... A."""
    positions = np.random.default_rng(seed).uniform(-8.0, 12.0, (len(NAMES), 3))
    if not seed:
        positions[:, 2] = np.arange(len(NAMES))
    topology = Topology(
        names=np.array(NAMES),
        residue_names=np.array(RESIDUES),
        residues=np.array(["1"] * 4 + ["2"] * 3 + ["3"] * 3 + ["4"]),
        chains=np.array(["A"] * len(NAMES)),
    )
    return System(
        numbers=np.array(NUMBERS),
        positions=positions,
        cell=CELL,
        pbc=np.ones(3, dtype=bool),
        topology=topology if names else None,
    )


@pytest.mark.parametrize(
    ("text", "atoms"),
    [
        ("all", range(11)),
        ("index 0:3", [0, 1, 2, 3]),
        ("index 2-4 9  7", [2, 3, 4, 7, 9]),
        ("element O", [4, 7]),
        ("element O Cl", [4, 7, 10]),
        ("name CA CB", [1, 2]),
        ("name C*", [1, 2, 10]),
        ("name H?", [5, 6, 8, 9]),
        ("name [NO]", [0, 4, 7]),
        ("resname HOH SOL", range(4, 10)),
        ("not element H", [0, 1, 2, 4, 7, 10]),
        ("not not element O", [4, 7]),
        ("prop z < 2", [0, 1]),
        ("prop z<=2", [0, 1, 2]),
        ("prop z> 9", [10]),
        ("prop z >=9e0", [9, 10]),
        ("prop z == 3", [3]),
        ("prop abs z < 1.5", [0, 1]),
        ("prop z > -1", range(11)),
        ("element H and resname HOH", [5, 6]),
        ("element H and resname HOH or element Cl", [5, 6, 10]),
        ("element H and (resname HOH or name HG1)", [3, 5, 6]),
        ("not element H and resname HOH", [4]),
        ("not (element H or element O) and prop z < 5", [0, 1, 2]),
        ("((element O))and((index 0:5))", [4]),
        ("element C or index 0", [0, 1, 2]),
        ("element Na or index 0", [0]),
        # Short lists, which are older than selections.
        ("0", [0]),
        ("0,4,9-10,O", [0, 4, 7, 9, 10]),
        ("4-5, 0 4", [0, 4, 5]),
        ("O H", [3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_atoms_are_those_of_the_words(text: str, atoms: Any) -> None:
    assert select_atoms(text, system()) == list(atoms)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' names no atoms; give some, or leave the option out."),
        ("0,Xx", "'Xx' names no atoms; give indices from 0 on, ranges such as 3-8, elements, or"),
        ("Xx", "'Xx' is not an index or element; write name Xx."),
        ("OW HW1", "'OW', begins no term; write name OW."),
        ("OW,HW", "'OW' is not an index or element; write name OW HW."),
        ("CA", "'CA' is not an index or element; write element Ca or name CA."),
        ("HOH", "'HOH', begins no term; write resname HOH or name HOH."),
        ("z < 3", "'z', begins no term; write prop z < 3."),
        ("element O and z<=-3.5", "'z<=-3.5', begins no term; write prop z <= -3.5."),
        ("abs z = 2", "'abs', begins no term; write prop abs z == 2."),
        ("not (x >)", "'x', begins no term; write prop x > 5."),
        ("0:9", "'0:9' names no atoms; .* a selection such as 'index 0:9'"),
        ("elment O", "Word 1 of the selection, 'elment', begins no term; write element."),
        ("Name CA", "Word 1 of the selection, 'Name', begins no term; write name."),
        ("O or H", "Word 1 of the selection, 'O', begins no term; write element O."),
        ("0-5 or element O", "Word 1 of the selection, '0-5', .*; write index 0:5."),
        ("tag 5", "as tags are not read; give indices, or hold the atoms by FixAtoms of ASE"),
        ("protein", "'protein', is a word of MDAnalysis that is not taken here; write index, el"),
        ("element O annd element H", "Word 3 .*, 'annd', is not an element; write and."),
        ("element o", "Word 2 of the selection, 'o', is not an element; write O."),
        ("element O, H", "Word 2 of the selection, 'O,', has a comma; write spaces, as in"),
        ("element O element H", "Word 3 .*, 'element', follows a whole term; write and or or bef"),
        ("element", "The selection ends after 'element'; write what element selects, as in 'ele"),
        ("element and index 0", "Word 2 .*, 'and', comes right after element; write what elem"),
        ("element O and", "The selection ends after 'and'; write index, element, name,"),
        ("and element O", "Word 1 of the selection, 'and', has no term before it; write one"),
        ("(element O", r"The '\(' at character 1 of the selection is not closed; write \) where"),
        (
            "element O)",
            r"The '\)' at character 10 of the selection closes no parenthesis; remove it",
        ),
        ("not ()", r"The '\)' at character 6 of the selection begins no term; write index"),
        ("index 5:1", "Word 2 of the selection, '5:1', counts down; write 1:5."),
        ("index 0 : 9", "Word 3 of the selection, ':', is not an index; write numbers from 0 on"),
        ("index -1", "Word 2 of the selection, '-1', is not an index"),
        ("index 0:11", "There are no atoms 0:11; atoms are counted from 0 to 10."),
        ("name C\\A", r"Word 2 of the selection, 'C\\A', has a backslash"),
        ("prop q < 5", "Word 2 of the selection, 'q', is no coordinate; write x, y or z, as in"),
        ("prop z 5", "Word 3 of the selection, '5', is no comparison with a number; write <,"),
        ("prop z <", "The selection ends after '<'; write <, <=, >, >= or == and a number of A"),
        ("prop z < low", "Word 4 of the selection, 'low', is no comparison with a number"),
        ("prop z != 5", "Word 3 of the selection, '!=', is not taken here; write not and =="),
        ("prop 5 > z", "Word 2 of the selection, '5', is no coordinate"),
        ("around (element O)", r"The '\(' at character 8 .* is no distance in A; write a distance"),
        ("around -1 element O", "Word 2 of the selection, '-1', is no distance in A"),
        ("around 3", "The selection ends after '3'; write index, element, name, resname"),
        (
            "around 2 (index 0) and element H",
            r"Word 5 .*, 'and', would belong to .*; write '\(around 2 \(index 0\)\)' before it.",
        ),
        (
            "element O or element H and index 0",
            "Word 6 of the selection, 'and', comes after an or, .* put parentheses around",
        ),
        (
            "(" * 60 + "all" + ")" * 60,
            r"The '\(' at character 51 .* lies within more than 50 others",
        ),
        ("element Na", "'element Na' selects none of the 11 atoms, as no atom is Na and the el"),
        ("name CX", "as no atom has the name CX and the names are CA, CB, CL, H1, H2, HG1, N, O;"),
        ("resname WAT", "as no residue has the name WAT and the names are CL, HOH, SOL, THR;"),
        ("prop z > 99", "as z lies between 0 and 10 A; change the selection, or leave it out."),
        ("around 1e-3 index 0", "as no other atom lies within 0.001 A of it;"),
        ("not all", "'not all' selects none of the 11 atoms; change the selection"),
    ],
)
def test_errors_name_the_word_and_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as failure:
        select_atoms(text, system())
    assert str(failure.value).count("\n") == 0


@pytest.mark.parametrize("text", ["name CA", "element O or resname HOH"])
def test_names_are_refused_where_the_structure_has_none(text: str) -> None:
    with pytest.raises(InputError, match=r"needs names of \w+s, and the structure has none; begin"):
        select_atoms(text, system(names=False))


_WORDS = [
    *KEYWORDS,
    *("and", "or", "(", ")", "O", "H", "0", "5", "0:9", "3-8", "7:2", "CA", "C*", "HOH", "z"),
    *("x", "abs", "<", "<=", "==", "!=", "3.5", "-1"),
]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join), st.text()))
@example("not " * 5000 + "all")
@example("(" * 5000)
@example("index " + "9" * 50)
@example("prop z < 1e999")
@example("around 1e300 index 0")
@example("name [")
def test_any_text_selects_atoms_or_is_an_input_error(text: str) -> None:
    try:
        check_selection(text)
        atoms = select_atoms(text, system())
    except InputError:
        return
    assert atoms == sorted(set(atoms))
    assert 0 <= atoms[0] <= atoms[-1] < len(NAMES)


@pytest.mark.parametrize("pbc", list(itertools.product([False, True], repeat=3)))
def test_around_takes_the_nearest_images(pbc: tuple[bool, ...]) -> None:
    random = np.random.default_rng(sum(1 << place for place, value in enumerate(pbc) if value))
    for _ in range(12):
        count = int(random.integers(2, 30))
        cell = random.normal(scale=4.0, size=(3, 3)) + 6.0 * np.eye(3)
        structure = System(
            numbers=random.choice([1, 8], count),
            positions=random.uniform(-15.0, 20.0, (count, 3)),
            cell=cell,
            pbc=np.array(pbc),
        )
        distance, centers = float(random.uniform(0.5, 9.0)), random.permutation(count)[: count // 2]
        shifts = [range(-8, 9) if periodic else [0] for periodic in pbc]
        images = np.array([*itertools.product(*shifts)]) @ cell
        # One atom at a time, as images within 8 cells of every pair fill the memory.
        positions = structure.positions
        if any(pbc):
            periodic = np.array(pbc)
            positions = (
                positions - np.floor(positions @ np.linalg.pinv(cell[periodic])) @ cell[periodic]
            )
        near = [
            atom
            for atom in range(count)
            if atom not in centers
            and min(
                np.linalg.norm(positions[center] + images - positions[atom], axis=1).min()
                for center in centers
            )
            <= distance
        ]
        text = f"around {distance!r} (index {' '.join(map(str, centers))})"
        if near:
            assert select_atoms(text, structure) == near
        else:
            with pytest.raises(InputError, match="selects none"):
                select_atoms(text, structure)


def test_short_lists_of_indices_come_back() -> None:
    assert spans_text([0, 1, 2, 3, 8]) == "0-3,8"
    assert spans_text([5]) == "5"
    assert spans_text([]) == ""
    random = np.random.default_rng(0)
    for count in range(1, 11):
        atoms = sorted(random.permutation(11)[:count].tolist())
        assert select_atoms(spans_text(atoms), system()) == atoms


@pytest.fixture(scope="module")
def package() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        return pytest.importorskip("MDAnalysis", reason="MDAnalysis is not installed")


class TestMDAnalysis:
    """The same text selects the same atoms there."""

    def universe(self, package: Any, structure: System) -> Any:
        topology = structure.topology
        assert topology is not None
        _, first, residues = np.unique(topology.residues, return_index=True, return_inverse=True)
        universe = package.Universe.empty(
            len(structure), len(first), atom_resindex=residues, trajectory=True
        )
        universe.add_TopologyAttr("names", topology.names.astype(object))
        universe.add_TopologyAttr("elements", np.array(structure.symbols, dtype=object))
        universe.add_TopologyAttr("resnames", topology.residue_names[first].astype(object))
        universe.atoms.positions = structure.positions
        lengths = np.linalg.norm(CELL, axis=1)
        unit = CELL / lengths[:, None]
        angles = [np.degrees(np.arccos(unit[a] @ unit[b])) for a, b in ((1, 2), (0, 2), (0, 1))]
        universe.dimensions = [*lengths, *angles]
        return universe

    def expression(self, random: np.random.Generator, depth: int = 3) -> str:
        """A selection that is not refused, of every kind of term."""
        axis, other_axis = random.choice(list("xyz"), 2)
        operator = random.choice(["<", "<=", ">", ">="])
        leaves = [
            "all",
            "element O H",
            "element C",
            "name H* N",
            "name CA",
            "resname HOH T?R",
            f"index {random.integers(5)}:{random.integers(5, 11)} {random.integers(11)}",
            f"prop {axis} {operator}{random.uniform(-8, 12):.3f}",
            f"prop abs {other_axis}< {random.uniform(0, 9):.3f}",
        ]
        if depth == 0 or random.random() < 0.25:
            return str(random.choice(leaves))
        inner = [self.expression(random, depth - 1) for _ in range(3)]
        joined = f" {random.choice(['and', 'or'])} ".join(f"({text})" for text in inner)
        distance = random.uniform(0.5, 4.0)
        choices = [
            f"not ({inner[0]})",
            f"around {distance:.3f} ({joined})",
            f"({inner[0]}) and around {distance:.3f} {random.choice(leaves)}",
            f"({inner[0]}) and not ({inner[1]}) or ({inner[2]})",
            joined,
        ]
        return str(random.choice(choices))

    def test_selects_the_same_atoms(self, package: Any) -> None:
        random = np.random.default_rng(0)
        selected = 0
        for seed in range(1, 11):
            structure = system(seed=seed)
            universe = self.universe(package, structure)
            for _ in range(40):
                text = self.expression(random)
                expected = universe.select_atoms(text).indices.tolist()
                if expected:
                    assert select_atoms(text, structure) == expected, text
                else:
                    with pytest.raises(InputError, match="selects none"):
                        select_atoms(text, structure)
                selected += bool(expected)
        assert selected > 200

    def test_has_no_further_keywords(self, package: Any) -> None:
        from MDAnalysis.core.selection import _SELECTIONDICT

        assert set(_SELECTIONDICT) <= {*KEYWORDS, *OTHER_KEYWORDS}
