"""Pictures of a training that has no label of one kind: no warnings, no empty panels."""

import warnings

import numpy as np
import pytest

from mdgraph.analysis.plots_training import learning_figure, parity_figure


def drawn(figure: object, path: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(path, format="png")  # type: ignore[attr-defined]


@pytest.mark.parametrize("lacking", ["force", "energy", ""])
def test_what_has_no_label_is_left_out(tmp_path: object, lacking: str) -> None:
    """Sums over no labels are 0 in the log, which no logarithmic axis can show."""
    log = {"step": np.arange(1.0, 4.0), "learning_rate": np.full(3, 1e-3)}
    for quantity, unit in (("force", "meV_per_A"), ("energy", "meV_per_atom")):
        gone = quantity == lacking
        log[f"train_{quantity}_rmse_{unit}"] = np.zeros(3) if gone else np.array([3.0, 2.0, 1.0])
        log[f"validation_{quantity}_rmse_{unit}"] = np.full(3, np.nan if gone else 2.0)
    figure = learning_figure(log, "mine")
    drawn(figure, f"{tmp_path}/learning.png")
    assert [len(axes.lines) for axes in figure.axes] == [
        0 if lacking == "force" else 2,
        0 if lacking == "energy" else 2,
        1,
    ]
    pairs = np.random.default_rng(0).normal(size=(20, 2))
    gone = np.full((20, 2), np.nan)
    figure = parity_figure(
        *(gone if lacking == name else pairs for name in ("energy", "force")), ""
    )
    drawn(figure, f"{tmp_path}/parity.png")
    assert len(figure.axes) == (2 if lacking else 4)


def test_many_points_are_counted(tmp_path: object) -> None:
    """Each point counts: none is left out, and dense places differ from others."""
    generator = np.random.default_rng(1)
    forces = np.repeat(generator.normal(size=(50_000, 1)), 2, axis=1)
    forces[:, 1] += 0.01 * generator.normal(size=50_000)
    figure = parity_figure(np.full((1, 2), np.nan), forces, "")
    drawn(figure, f"{tmp_path}/density.png")
    counted = [
        part for axes in figure.axes for part in axes.collections if part.get_array() is not None
    ]
    sums = [int(part.get_array().sum()) for part in counted]
    assert sums.count(50_000) == 2
    assert figure.get_figwidth() * 110 < 900
