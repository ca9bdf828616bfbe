"""What steps record on the device, against the same frames in numpy, and through every repeat."""

import csv
import io
import itertools
import json

import numpy as np
import pytest
import torch
from ensembles import DYNAMICS, assert_same, graphed, toy
from recording import RecordedGraph
from toys import HarmonicWells, LennardJones, argon

from mdgraph.analysis.plots import recorded_figure
from mdgraph.engine import (
    FIRE,
    Averages,
    LangevinMiddle,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    StochasticCellRescaling,
    VelocityAutocorrelation,
    VelocityVerlet,
)
from mdgraph.engine.observables import OnlineObservable, OnlineObservables
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import FileError, InputError, SimulationError
from mdgraph.system import System
from mdgraph.units import BAR

EVERY, START = 3, 6
CUTOFF = 7.0
"""A, beyond half of the boxes' 11.6, so that atoms meet several images of one neighbor."""


def mixture(seed: int) -> System:
    """Neon and argon, not evenly; velocities that depend on the seed alone."""
    system = argon(2, seed)
    generator = np.random.default_rng(seed)
    return system.replace(
        numbers=np.where(np.arange(len(system)) % 3 == seed % 3, 10, 18),
        velocities=generator.normal(scale=2e-3, size=(len(system), 3)),
    )


def everything(spacing: int = 1) -> list[OnlineObservable]:
    return [
        Averages(every=EVERY, start=START),
        RadialDistributions(6.5, bins=65, every=EVERY, start=START),
        MeanSquaredDisplacement(12, spacing=spacing, every=EVERY, start=START),
        VelocityAutocorrelation(12, spacing=spacing, every=EVERY, start=START),
    ]


def liquid(*systems: System, observe: list[OnlineObservable], **options) -> Simulation:
    options = {"integrator": VelocityVerlet(4.0), "skin": 0.5, "chunk": 10} | options
    return Simulation(
        list(systems),
        LennardJones(0.0104, 3.4, CUTOFF),
        device="cpu",
        observe=observe,
        **options,
    )


class Frames:
    """Keeps what every step left behind."""

    interval = 1

    def __init__(self) -> None:
        self.rows: list[dict[str, np.ndarray]] = []

    def report(self, run: Simulation) -> None:
        names = ("positions", "velocities", "cell", "virial", "energy")
        row = {name: getattr(run.state, name).double().numpy().copy() for name in names}
        kinetic = run.observables()
        row |= {"kinetic": kinetic.kinetic_energy.numpy(), "kelvin": kinetic.temperature.numpy()}
        row |= {"pressure": kinetic.pressure.numpy(), "volume": kinetic.volume.numpy()}
        self.rows.append(row)

    def sampled(self) -> dict[str, np.ndarray]:
        rows = [row for step, row in enumerate(self.rows, 1) if step % EVERY == 0 and step > START]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module", params=[1, 4])
def recorded(request) -> tuple[Simulation, dict[str, np.ndarray], int]:
    run = liquid(mixture(1), mixture(2), observe=everything(request.param))
    frames = Frames()
    run.reporters.append(frames)
    run.run(100)
    return run, frames.sampled(), request.param


class TestAgainstNumpy:
    def test_averages(self, recorded) -> None:
        run, frames, _ = recorded
        found = run.online[0].result()
        total = frames["energy"] + frames["kinetic"]
        series = {
            "potential_energy": frames["energy"],
            "kinetic_energy": frames["kinetic"],
            "total_energy": total,
            "temperature": frames["kelvin"],
            "volume": frames["volume"],
            "pressure": frames["pressure"],
        }
        momentum = frames["velocities"] * run.state.masses.numpy()[:, None]
        flux = momentum[..., :, None] * frames["velocities"][..., None, :] / 9.648533212e-3
        flux = flux.reshape(len(total), 2, -1, 3, 3).sum(2) + frames["virial"]
        flux /= frames["volume"][..., None, None]
        series |= {"pressure_xx": flux[..., 0, 0], "pressure_yz": flux[..., 1, 2]}
        assert found.samples == len(total) == 31
        assert np.ptp(frames["kelvin"]) > 1.0
        for name, values in series.items():
            place = found.quantities.index(name)
            np.testing.assert_allclose(found.blocked.mean[:, place], values.mean(0), rtol=1e-7)
            variance = values.var(0, ddof=1)
            np.testing.assert_allclose(
                found.blocked.variance[:, place], variance, rtol=1e-5, atol=1e-20
            )
            for level, length in enumerate(found.blocked.length):
                count = len(values) // length
                means = values[: count * length].reshape(count, length, 2).mean(1)
                error = means.std(0, ddof=1) / np.sqrt(count)
                np.testing.assert_allclose(
                    found.blocked.errors[level, :, place], error, rtol=1e-5, atol=1e-12
                )
        assert list(found.blocked.length) == [1, 2, 4, 8]

    def test_radial_distributions_with_all_images(self, recorded) -> None:
        run, frames, _ = recorded
        found = run.online[1].result()
        edges = np.linspace(0.0, 6.5, 66)
        shells = 4.0 / 3.0 * np.pi * np.diff(edges**3)
        assert found.pairs == ("Ne-Ne", "Ne-Ar", "Ar-Ar")
        for system, rows in enumerate(np.split(np.arange(64), 2)):
            numbers = run.state.numbers.numpy()[rows]
            for place, (one, other) in enumerate([(10, 10), (10, 18), (18, 18)]):
                first, second = rows[numbers == one], rows[numbers == other]
                counts = np.zeros(65, dtype=int)
                for positions in frames["positions"]:
                    vectors = positions[second] - positions[first][:, None]
                    apart = first[:, None] != second
                    for image in itertools.product((-1, 0, 1), repeat=3):
                        vectors_ = vectors - np.round(vectors / 11.6) * 11.6
                        distance = np.linalg.norm(vectors_ + 11.6 * np.array(image), axis=-1)
                        counts += np.histogram(distance[apart], edges)[0]
                twice = 1 if one == other else 2
                np.testing.assert_array_equal(found.counts[system, place], twice * counts)
                pairs = len(first) * (len(second) - (one == other))
                value = counts / (len(frames["positions"]) * pairs / 11.6**3 * shells)
                np.testing.assert_allclose(found.value[system, place], value, rtol=1e-10)
        assert found.counts.sum() > 10_000

    @pytest.mark.parametrize("place", [2, 3])
    def test_correlations(self, recorded, place) -> None:
        run, frames, spacing = recorded
        found = run.online[place].result()
        vectors = frames["positions" if place == 2 else "velocities"]
        masses = run.state.masses.numpy()[:, None]
        assert found.elements == ("Ne", "Ar")
        np.testing.assert_allclose(found.lag, np.arange(12) * EVERY * 4.0)
        for system, rows in enumerate(np.split(np.arange(64), 2)):
            own = vectors[:, rows]
            own = own - (masses[rows] * own).sum(1, keepdims=True) / masses[rows].sum()
            for element, number in enumerate((10, 18)):
                chosen = own[:, run.state.numbers.numpy()[rows] == number]
                for lag in range(12):
                    origins = np.arange(0, len(own) - lag, spacing)
                    first, later = chosen[origins], chosen[origins + lag]
                    pairs = (later - first) ** 2 if place == 2 else later * first
                    expected = pairs.sum(-1).mean()
                    assert found.origins[lag] == len(origins)
                    assert found.value[system, element, lag] == pytest.approx(
                        expected, rel=1e-9, abs=1e-16
                    )


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_recorded_step_observes_as_the_eager_one(name, captures) -> None:
    runs = []
    for _ in range(2):
        own = DYNAMICS[name]()
        observe: list[OnlineObservable] = [
            Averages(every=EVERY),
            VelocityAutocorrelation(6, spacing=2, every=2, start=6),
        ]
        if not own.cell_varies:
            observe.append(MeanSquaredDisplacement(6, every=4))
        runs.append(toy(own, observe=observe))
    runs[0].run(59)
    graphed(runs[1]).run(59)
    assert sorted(one.repeats for one in captures) == [1, 2, 4]
    assert_same(*runs)
    assert [one.result().samples for one in runs[0].online[:2]] == [19, 26]


def test_counting_pairs_can_be_captured() -> None:
    """Building lists looks at the device on a CPU, so that the record is captured alone."""
    eager = liquid(mixture(1), observe=[RadialDistributions(every=EVERY, start=START)])
    eager.run(40)
    run = liquid(mixture(1), observe=[])
    online = OnlineObservables(
        [RadialDistributions(every=EVERY, start=START)], run.calculation, run.integrator
    )
    with torch.no_grad():
        graph = RecordedGraph(online.record_)
    assert int(online[0]._samples) == 0
    for _ in range(40):
        run.run(1)
        graph.replay()
    for name, value in eager.online.tensors().items():
        assert torch.equal(value, online.tensors()[name]), name
    assert online[0].result().counts.sum() > 0


class TestRepeats:
    @staticmethod
    def run(**options) -> Simulation:
        return liquid(mixture(1), mixture(2), observe=everything(3), seed=3, **options)

    @pytest.mark.parametrize("step", [1, 17, 44])
    def test_an_overflow_leaves_no_trace(self, step) -> None:
        ample, tight = (self.run(integrator=LangevinMiddle(4.0, 120.0)) for _ in range(2))
        ample.run(60)
        tight.run(step)
        rows = tight.calculation.lists[0]
        rows._allocate(rows.block, *rows.reference())
        rows.sticky()[0].zero_()
        small = rows.capacity
        tight.run(60 - step)
        assert rows.capacity > small
        assert_same(ample, tight)

    @pytest.mark.parametrize("step", [5, 31])
    def test_resume_continues_with_the_same_bits(self, step, tmp_path) -> None:
        whole, resumed = (self.run(integrator=LangevinMiddle(4.0, 120.0)) for _ in range(2))
        whole.run(step)
        save_restart(whole, tmp_path / "restart.safetensors")
        whole.run(29)
        load_restart_(resumed, tmp_path / "restart.safetensors")
        resumed.run(29)
        assert_same(whole, resumed)
        assert whole.online[2].result().text() == resumed.online[2].result().text()

    def test_resume_refuses_another_record(self, tmp_path) -> None:
        save_restart(self.run(), tmp_path / "restart.safetensors")
        other = liquid(mixture(1), mixture(2), observe=everything(2), seed=3)
        with pytest.raises(InputError, match="was written with online"):
            load_restart_(other, tmp_path / "restart.safetensors")

    def test_looking_and_chunks_change_nothing(self) -> None:
        quiet, watched = self.run(chunk=50), self.run(chunk=1)
        quiet.run(40)
        for _ in range(8):
            watched.run(5)
            if watched.step > START + EVERY:
                for one in watched.online:
                    one.result()
        assert_same(quiet, watched)

    def test_recording_does_not_change_the_run(self) -> None:
        with_, without = self.run(), liquid(mixture(1), mixture(2), observe=[], seed=3)
        for run in (with_, without):
            run.run(30)
        assert torch.equal(with_.state.positions, without.state.positions)

    def test_reset_starts_anew(self) -> None:
        late, early = self.run(), self.run()
        late.run(30)
        early.run(30)
        for one in early.online:
            one.reset()
        early.run(30)
        start = Simulation(
            [mixture(1), mixture(2)],
            LennardJones(0.0104, 3.4, CUTOFF),
            VelocityVerlet(4.0),
            device="cpu",
            skin=0.5,
            chunk=10,
            seed=3,
            observe=[type(one)(**_arguments(one, start=30)) for one in late.online],
        )
        start.run(60)
        for name, value in early.online.tensors().items():
            assert torch.equal(value, start.online.tensors()[name]), name


def _arguments(one: OnlineObservable, **changes: object) -> dict[str, object]:
    return {name: value for name, value in one.settings().items() if name != "kind"} | changes


def test_a_batch_records_what_its_systems_record_alone() -> None:
    systems = [mixture(1), mixture(2), argon(2, 5).replace(velocities=np.zeros((32, 3)))]
    batch = liquid(*systems, observe=everything(2))
    batch.run(60)
    together = [one.result() for one in batch.online]
    for number, system in enumerate(systems):
        alone = liquid(system, observe=everything(2))
        alone.run(60)
        averages, pairs, *others = [one.result() for one in alone.online]
        for name in averages.quantities:
            mean, error = averages.of(name)
            assert together[0].of(name, number) == (
                pytest.approx(mean, rel=1e-7, abs=1e-12),
                pytest.approx(error, rel=1e-4, abs=1e-12),
            )
        for place, pair in enumerate(pairs.pairs):
            same = together[1].pairs.index(pair)
            np.testing.assert_array_equal(together[1].counts[number, same], pairs.counts[0, place])
        for mine, all_ in zip(others, together[2:], strict=True):
            for place, element in enumerate(mine.elements):
                same = all_.elements.index(element)
                np.testing.assert_allclose(
                    all_.value[number, same], mine.value[0, place], rtol=1e-6, atol=1e-18
                )
    assert np.isnan(together[1].value[2, 0]).all()
    assert np.isnan(together[3].value[2, 0]).all()


class TestForms:
    @pytest.mark.parametrize("place", range(4))
    def test_hold_the_same_numbers(self, recorded, place, tmp_path) -> None:
        result = recorded[0].online[place].result()
        for suffix in (".txt", ".csv", ".json"):
            result.save(tmp_path / f"result{suffix}")
            with pytest.raises(FileError, match="it exists already"):
                result.save(str(tmp_path / f"result{suffix}"))
            result.save(tmp_path / f"result{suffix}", overwrite=True)
        rows = result.rows()
        table = list(csv.DictReader(io.StringIO((tmp_path / "result.csv").read_text())))
        loaded = json.loads((tmp_path / "result.json").read_text())
        text = (tmp_path / "result.txt").read_text().splitlines()
        assert loaded["kind"] == result.kind
        assert len(rows) == len(table) == len(loaded["rows"]) == len(text) - 2
        for row, line, entry in zip(rows, table, loaded["rows"], strict=True):
            assert row == entry
            assert [str(row[name]) for name in row if isinstance(row[name], str)] == [
                line[name] for name in row if isinstance(row[name], str)
            ]
            numbers = [name for name in row if not isinstance(row[name], str)]
            np.testing.assert_allclose(
                [float(line[name]) for name in numbers], [row[name] for name in numbers], rtol=1e-14
            )
        assert len({len(line) for line in text[1:]}) == 1
        with pytest.raises(InputError, match=r"not 'result\.xls'"):
            result.save("result.xls")

    def test_tables_are_in_bar_and_grams(self, recorded) -> None:
        result = recorded[0].online[0].result()
        rows = {row["quantity"]: row for row in result.rows() if row["system"] == 1}
        assert (rows["pressure"]["unit"], rows["density"]["unit"]) == ("bar", "g/cm^3")
        assert rows["pressure"]["mean"] == pytest.approx(result.of("pressure", 1)[0] / BAR)
        masses = recorded[0].state.masses[32:].sum().item()
        assert rows["density"]["mean"] == pytest.approx(masses * 1.66053906660 / 11.6**3)

    @pytest.mark.parametrize("place", range(4))
    def test_pictures_draw_what_was_found(self, recorded, place, tmp_path) -> None:
        result = recorded[0].online[place].result()
        figure = recorded_figure(result, system=1)
        lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
        if place == 0:
            level = result.blocked.errors[:, 1, result.quantities.index("temperature")]
            np.testing.assert_allclose(lines["temperature"], level / level[0])
            assert "volume" not in lines
        elif place == 1:
            np.testing.assert_array_equal(lines["Ne-Ar"], result.value[1, 1])
        else:
            value = result.value[1, 1]
            np.testing.assert_allclose(lines["Ar"], value / value[0] if place == 3 else value)
            assert len(figure.axes) == 2
        figure.savefig(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(InputError, match="no system 2 in 2"):
            recorded_figure(result, system=2)


def molecule() -> System:
    return System(numbers=np.array([18, 18]), positions=np.array([[0.0, 0, 0], [3.8, 0, 0]]))


def wells(system: System, *observe: OnlineObservable) -> Simulation:
    free = HarmonicWells(torch.tensor(system.positions), 0.0)
    return Simulation(system, free, VelocityVerlet(1.0), device="cpu", observe=observe)


def rescaled(*observe: OnlineObservable) -> Simulation:
    return toy(StochasticCellRescaling(1.0, 300.0, 0.0), observe=observe)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Averages(every=0), "interval of the averages is 0 steps"),
        (lambda: Averages(start=-1), "start of the averages is -1 steps"),
        (lambda: Averages(["enthalpy"]), "No average of 'enthalpy' is known; choose potential"),
        (lambda: RadialDistributions(-1.0), "up to -1.0 A"),
        (lambda: RadialDistributions(bins=0), "cannot have 0 bins"),
        (lambda: VelocityAutocorrelation(0), "window is 0 samples"),
        (lambda: VelocityAutocorrelation(10, spacing=3), "not a multiple of a spacing of 3"),
        (lambda: wells(molecule(), Averages(["density"])), "needs cells with a volume"),
        (lambda: rescaled(Averages(["conserved_energy"])), "keep"),
        (lambda: wells(molecule(), RadialDistributions()), "three periodic directions"),
        (lambda: wells(argon(1), RadialDistributions()), "as far as the neighbor list, 0 A"),
        (lambda: liquid(argon(2), observe=[RadialDistributions(7.1)]), "neighbor list, 7 A"),
        (lambda: rescaled(MeanSquaredDisplacement(5)), "record it at constant volume"),
        (lambda: toy(FIRE(1e-6), observe=[VelocityAutocorrelation(5)]), "minimisation has no time"),
        (Averages().result, "has no sample yet"),
        (
            lambda: wells(argon(1), VelocityAutocorrelation(5)).set(timestep=0.5),
            "time step cannot change while the velocity autocorrelation is recorded",
        ),
    ],
)
def test_invalid_observables_are_refused(make, words) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_the_first_sample_must_be_waited_for() -> None:
    run = wells(argon(1), Averages(every=5, start=4))
    run.run(4)
    with pytest.raises(InputError, match="has no sample yet; run 5 steps at least"):
        run.online[0].result()
    run.run(1)
    assert run.online[0].result().samples == 1


def test_a_step_that_fails_is_not_recorded() -> None:
    class Broken(HarmonicWells):
        def evaluate_(self, state, lists) -> None:
            super().evaluate_(state, lists)
            state.forces[2] = torch.where(state.step == 12, torch.nan, state.forces[2])

    system = argon(1)
    observe = [Averages(["temperature", "volume"]), VelocityAutocorrelation(4)]
    run = Simulation(
        system,
        Broken(torch.tensor(system.positions), 1.0),
        VelocityVerlet(1.0),
        device="cpu",
        observe=observe,
        temperature=50.0,
    )
    with pytest.raises(SimulationError):
        run.run(30)
    assert [one.result().samples for one in observe] == [12, 12]
    assert all(torch.isfinite(value).all() for value in run.online.tensors().values())


def test_a_picture_of_almost_nothing() -> None:
    run = wells(argon(1), Averages(["volume"]), VelocityAutocorrelation(4))
    run.run(1)
    for one in run.online:
        recorded_figure(one.result())


def test_one_record_serves_one_simulation() -> None:
    record = Averages()
    wells(argon(1), record)
    with pytest.raises(InputError, match="records another simulation already"):
        wells(argon(1), record)


def test_molecules_have_energies_but_no_pressure() -> None:
    run = wells(molecule(), Averages())
    run.run(3)
    names = run.online[0].result().quantities
    assert "temperature" in names
    assert not any("pressure" in name for name in names)
