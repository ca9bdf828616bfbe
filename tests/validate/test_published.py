"""Published values of crystals: documented, with their sources, and near what ASE knows."""

import pytest
from ase.data import atomic_numbers, reference_states
from repository import ROOT

from mdgraph.validate.crystals import PUBLISHED

TEXT = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
KEYS = {
    "C11, C12, C44, GPa": ["C11_GPa", "C12_GPa", "C44_GPa"],
    "cohesion, eV": ["cohesion_eV"],
    "vacancy, eV": ["vacancy_eV"],
    "surfaces (100), (110), (111), J/m²": [f"surface_{p}_J_per_m2" for p in (100, 110, 111)],
    "stacking fault, mJ/m²": ["stacking_fault_mJ_per_m2"],
    "highest frequency, THz": ["highest_THz"],
}


def table() -> dict[str, dict[str, str]]:
    """Cells of the documented table, by row and column."""
    start = TEXT.index("| | Cu |")
    lines = TEXT[start : TEXT.index("\n\n", start)].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


@pytest.mark.parametrize("symbol", PUBLISHED)
def test_every_value_is_documented_with_its_source(symbol: str) -> None:
    """A row has the values in order, and names the source of each."""
    values = PUBLISHED[symbol]
    assert set(values) <= {key for keys in KEYS.values() for key in keys}
    rows = table()
    for label, keys in KEYS.items():
        known = [values[key] for key in keys if key in values]
        assert rows[label][symbol] == ", ".join(f"{value.value:g}" for value in known)
        for value in known:
            assert value.source.removeprefix("DOI ") in rows[label]["from"]
    constant = reference_states[atomic_numbers[symbol]]["a"]
    assert float(rows["lattice constant, A"][symbol]) == constant


@pytest.mark.parametrize("symbol", PUBLISHED)
def test_elastic_constants_are_those_of_a_stable_crystal(symbol: str) -> None:
    """Born's criteria of a cubic crystal."""
    c11, c12, c44 = (PUBLISHED[symbol][f"C{place}_GPa"].value for place in (11, 12, 44))
    assert c11 > c12 > 0.0 < c44
