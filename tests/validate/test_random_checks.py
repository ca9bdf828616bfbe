"""Random structures find planted holes, and nothing where there is none."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from ase.build import molecule
from toys import HoledPairs

from mdgraph.engine.calculation import EvaluationResult
from mdgraph.engine.relaxation import Relaxed
from mdgraph.io.structures import from_ase
from mdgraph.system import System
from mdgraph.validate import random_checks as module
from mdgraph.validate.crystal_checks import _cohesion_check
from mdgraph.validate.crystals import CrystalProbe, Phase, phases_at_rest
from mdgraph.validate.labels import Labels, Rest
from mdgraph.validate.random_checks import random_crystal_checks, random_molecule_checks
from mdgraph.validate.verdicts import Check, Verdict

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CRYSTALS", (24, 4))
    monkeypatch.setattr(module, "CLUSTERS", (2, 5))
    monkeypatch.setattr(module, "STEPS", (60, 60))


def pairs(**faults: float) -> tuple[CrystalProbe, Phase]:
    """A probe of pairs, and their crystal at rest."""
    probe = CrystalProbe(HoledPairs(**faults), CPU, "double")
    return probe, phases_at_rest("Cu", probe)["fcc"]


def checks_of(probe: CrystalProbe, rest: Phase, judge: CrystalProbe | None = None) -> list[Check]:
    zero = 0.0 if judge is None else phases_at_rest("Cu", judge)["fcc"].energy
    return list(random_crystal_checks("Cu", rest, probe, None if judge is None else (judge, zero)))


def test_sound_pairs_pass_and_a_hole_at_short_distances_is_wrong() -> None:
    """The lattices of the other checks do not feel this hole at rest."""
    sound, holed = pairs(), pairs(depth=60.0)
    assert holed[1].energy == pytest.approx(sound[1].energy, abs=1e-3)
    crystals, clusters = checks_of(*sound)
    assert (crystals.verdict, clusters.verdict) == (Verdict.OK, Verdict.OK)
    assert crystals.numbers["lowest_eV"] > -0.02
    assert crystals.numbers["nearest_A"] > 2.2
    crystals, clusters = checks_of(*holed)
    assert (crystals.verdict, clusters.verdict) == (Verdict.WRONG, Verdict.WRONG)
    assert crystals.numbers["lowest_nearest_A"] == pytest.approx(1.9, abs=0.2)
    assert "in a hole" in crystals.sentence


def test_a_judge_excuses_holes_and_sees_what_lies_far_from_it() -> None:
    holed, sound = pairs(depth=60.0), pairs()
    excused = checks_of(*holed, holed[0])
    assert {check.verdict for check in excused} <= {Verdict.OK, Verdict.LOOK}
    low = pairs(free=-2.5)
    assert {check.verdict for check in checks_of(*low)} == {Verdict.OK}
    crystals, clusters = checks_of(*low, sound[0])
    assert crystals.verdict is Verdict.OK
    assert clusters.verdict is Verdict.WRONG
    assert "below it" in clusters.sentence


def test_energies_that_are_not_finite_are_wrong_and_leave_others() -> None:
    class Lost(HoledPairs):
        def forward(self, atoms, pairs):
            total = super().forward(atoms, pairs)
            return torch.where(total > 2.0, torch.nan, total)

    probe, rest = CrystalProbe(Lost(), CPU, "double"), pairs()[1]
    crystals, _ = checks_of(probe, rest)
    assert crystals.verdict is Verdict.WRONG
    assert "not finite" in crystals.sentence
    assert np.isfinite(crystals.numbers["lowest_eV"])


def test_a_part_that_is_lost_on_its_way_is_wrong_and_takes_no_earlier_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The forces of the second of three parts are not finite."""
    parts: list[int] = []

    class Lost(HoledPairs):
        def forward(self, atoms, pairs):
            return super().forward(atoms, pairs) * (torch.nan if len(parts) == 2 else 1.0)

    class CountedProbe(CrystalProbe):
        def relax(self, systems, *limits, **options):
            parts.append(len(systems))
            return super().relax(systems, *limits, **options)

    sound, rest = pairs()
    monkeypatch.setattr(module, "STEPS", (5, 5))
    monkeypatch.setattr(module, "PART", 3)
    monkeypatch.setattr(module, "CRYSTALS", (3, 4))
    expected = next(random_crystal_checks("Cu", rest, sound))
    monkeypatch.setattr(module, "CRYSTALS", (9, 4))
    found = next(random_crystal_checks("Cu", rest, CountedProbe(Lost(), CPU, "double")))
    assert parts == [3, 3]
    assert found.verdict is Verdict.WRONG
    assert "one among 3 ends with forces that are not finite" in found.sentence
    assert "3 were left out then" in found.sentence
    assert found.numbers == expected.numbers | {"structures": 9}
    assert found.curves is not None
    assert expected.curves is not None
    assert found.curves.y["lowest"].tolist() == expected.curves.y["lowest"].tolist()


@pytest.mark.parametrize(
    ("free", "verdict"), [(0.0, Verdict.OK), (-3.0, Verdict.WRONG), (4.0, Verdict.LOOK)]
)
def test_atoms_that_leave_a_crystal_for_nothing_are_wrong(free: float, verdict: Verdict) -> None:
    """Copper has 3.49 eV; more makes a person look, as free atoms without spins lie too high."""
    probe, rest = pairs(free=free)
    check = _cohesion_check("Cu", rest, probe)
    assert check.verdict is verdict
    assert check.numbers["cohesion_eV"] == pytest.approx(2.94 + free, abs=0.01)


@pytest.mark.parametrize(
    ("judged", "verdict", "told"),
    [
        # Where charges do not converge nothing judges, and a shallow hole may be an isomer.
        ((-2.0, np.nan, 0.2), Verdict.LOOK, "1 of 3 end in a hole, one 0.80 eV below rest."),
        ((-2.0, 1.0, 0.2), Verdict.WRONG, "one 0.80 eV below rest, where GFN2-xTB has it 1.00 eV"),
        ((-2.0, -0.9, 0.2), Verdict.OK, "one 2.00 eV below rest, as GFN2-xTB has it"),
    ],
)
def test_what_the_judge_does_not_know_is_judged_as_without_it(
    judged: tuple[float, ...], verdict: Verdict, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ends of methane, each with an energy, of which the lowest is as low by the judge."""
    monkeypatch.setattr(module, "MOLECULES", (3, 3))
    system = from_ase(molecule("CH4"))

    def relax(starts: Sequence[System], steps: int, force: float) -> list[Relaxed]:
        nothing = np.zeros((5, 3))
        return [
            Relaxed(system, EvaluationResult(energy, nothing[:, 0], nothing, np.eye(3)), True, 0.0)
            for energy in (-2.0, -0.8, 0.3)
        ]

    checks = random_molecule_checks(
        "CH4", system, Rest(0.0, 0.0), {}, relax, lambda _: np.array(judged),
        Labels([], lambda *_: []), 0.3, (0.5, 0.5, 3.0), quick=False,
    )  # fmt: skip
    for check in checks:
        assert check.verdict is verdict
        assert told in check.sentence
