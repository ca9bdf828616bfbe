"""Verdicts: the most severe one counts, and what is not finite stays out of JSON."""

import json

import numpy as np

from mdgraph.validate.verdicts import Check, Curves, Verdict, worst


def test_the_most_severe_verdict_counts() -> None:
    """Of ok, look and wrong in any order."""
    assert worst([]) is Verdict.OK
    assert worst([Verdict.LOOK, Verdict.OK]) is Verdict.LOOK
    assert worst([Verdict.WRONG, Verdict.LOOK, Verdict.OK]) is Verdict.WRONG


def test_a_check_is_strict_json() -> None:
    """A gap in a curve is null, and so is a distance without end, because JSON knows neither."""
    curves = Curves(np.array([1.0, 2.0]), {"a": np.array([0.5, np.nan])}, "x (Å)", "E (eV)")
    check = Check(
        "bonds",
        Verdict.LOOK,
        "A sentence.",
        {"energy_eV": 0.5, "by_size": [{"nearest_A": np.inf}]},
        curves,
    )
    read = json.loads(json.dumps(check.as_json(), allow_nan=False))
    assert read["verdict"] == "look"
    assert read["numbers"] == {"energy_eV": 0.5, "by_size": [{"nearest_A": None}]}
    assert read["curves"]["y"] == {"a": [0.5, None]}
