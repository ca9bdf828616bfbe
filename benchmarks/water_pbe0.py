"""What water-pbe0 and water-pbe0-small were made of beside the liquid, and what their liquid is.

    python benchmarks/water_pbe0.py make --data FOLDER --out FOLDER
    python benchmarks/water_pbe0.py label clusters.extxyz
    python benchmarks/water_pbe0.py add water.h5 water.json clusters.extxyz --copies 5
    python benchmarks/water_pbe0.py taught clusters.extxyz
    python benchmarks/water_pbe0.py add set.h5 split.json clusters.extxyz --copies 4 --as-labelled
    python benchmarks/water_pbe0.py liquid water.h5 water.json --out liquid.npz [--potential NAME]
        [--kelvin 330 300] [--starts 5] [--ps 321] [--pictures FOLDER]

`make` runs the commands in the head of references.yaml, one after the other: data, four trainings,
the potential in OUT/potentials/water. FOLDER of --data holds water_pbe0/train.extxyz.gz. What is
there already is kept, and a training that was stopped goes on.

`label` writes molecules and pairs of them with energies and forces of PBE0/def2-TZVP, by density
fitting, from PySCF (`pip install pyscf`), an hour and more of one core. Molecules have bonds and
angles of the liquid, one bond from 0.67 to 1.62 A, an angle from 35 to 180 degrees, or all of these
drawn from wide ranges; pairs lie in all orientations, some of them pushed together.

`add` writes the data set water-COPIES.h5 and its split: the liquid's frames, and so many copies of
each cluster, all of them for training. A molecule at rest gets the mean energy of a molecule of the
liquid and 0.43 eV, by which water at 298 K lies below its vapour. No label says so exactly, and
references.yaml fits the energies of the liquid alone in the end.

`taught` writes those of water-pbe0-small, labelled by water-pbe0: bonds, angles and both together
on grids and at random, and pairs from 1 A apart. With --as-labelled `add` leaves energies as they
are, since frames of the liquid are labelled by the same potential.

`liquid` runs some starts at each temperature, 64 molecules each, with stochastic velocity
rescaling and steps of 1 fs, and compares g_OO with that of all frames: the first peak and the
first minimum with standard errors over starts, and of the frames over eight stretches of their
recovered time. RMS distances are of the bins beyond 2.4 A. Scatter of frames and starts alone makes
two equal liquids differ; what lies beyond it is the root of the mean square less both variances of
bins, with an interval of 95 % by bootstrap over stretches and starts.
With an --out that is there already, it only prints and draws.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import yaml
from added_labels import molecule_of, solved, write_split_with
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from cases import device_argument, run_script
from error_tables import POTENTIALS, PROGRAM
from numpy.typing import NDArray

from mdgraph.analysis.style import BLUE, ORANGE, blank_figure, dress, png
from mdgraph.data import (
    Dataset,
    LabelledFrame,
    Provenance,
    open_dataset,
    read_split,
    write_dataset,
)
from mdgraph.data.splits import recovered_order
from mdgraph.engine import Calculation, RadialDistributions, Simulation, StochasticVelocityRescaling
from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically
from mdgraph.system import System

Array = NDArray[np.float64]

RECIPE = POTENTIALS / "water-pbe0" / "references.yaml"
"""The last of four; its head has the commands of all."""
HIGHEST = 6.0
"""eV above molecules at rest; frames beyond are left out."""
VAPORIZATION = 0.43
"""eV a molecule."""
WARM_FS, EVERY, STRETCHES = 10_000, 20, 8
RANGE, BINS = 5.0, 100
"""Of g_OO: A, and how many."""
COMPARED_FROM = 2.4
"""A; nearer bins are not compared."""
DRAWS = 10_000
"""Of a bootstrap."""


def molecule(first: float, second: float, degrees: float) -> Array:
    """(3, 3) positions, A, of O, H, H from two bonds and the angle between them."""
    angle = np.radians(degrees)
    return np.array([[0, 0, 0], [first, 0, 0], [second * np.cos(angle), second * np.sin(angle), 0]])


def molecules(random: np.random.Generator) -> Iterator[Array]:
    """(3, 3) positions, A: 30 as in a liquid, 50 with a bond, 40 with an angle and 40 with all
    drawn from wide ranges."""
    for _ in range(30):
        yield _thermal(random)
    for _ in range(50):
        yield molecule(
            random.uniform(0.67, 1.62), random.normal(0.965, 0.03), random.normal(105, 8)
        )
    for _ in range(40):
        yield molecule(*random.normal(0.965, 0.03, 2), random.uniform(35, 180))
    for _ in range(40):
        yield molecule(*random.uniform(0.72, 1.4, 2), random.uniform(60, 170))


def _thermal(random: np.random.Generator) -> Array:
    return molecule(*random.normal(0.965, 0.035, 2), random.normal(105, 8))


def _rotation(random: np.random.Generator) -> Array:
    quaternion = random.normal(size=4)
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


NEAREST = np.array([[1.5, 1.2, 1.2], [1.2, 1.0, 1.0], [1.2, 1.0, 1.0]])
"""A, least distances of O, H and H of one molecule from those of another."""


def pair(random: np.random.Generator) -> Array:
    """(6, 3) positions, A, of two molecules: at oxygens 2.4 to 5.5 A apart, or two in five pushed
    together until some two atoms are 1.3 to 2.6 A apart."""
    while True:
        near = random.uniform() < 0.4
        distance = random.uniform(1.3, 2.6) if near else random.uniform(2.4, 5.5)
        one, other = (_thermal(random) @ _rotation(random).T for _ in range(2))
        way = random.normal(size=3)
        other = other + distance * way / np.linalg.norm(way)
        if distance < 2.6:
            for _ in range(60):
                if _apart(one, other).min() > distance:
                    break
                other = other + 0.05 * way / np.linalg.norm(way)
        if (_apart(one, other) > NEAREST).all():
            return np.vstack([one, other])


def _apart(one: Array, other: Array) -> Array:
    return np.linalg.norm(one[:, None] - other, axis=2)


def label(options: argparse.Namespace) -> None:
    """Writes clusters one by one, molecules first, until there are as many pairs as asked for."""
    random = np.random.default_rng(options.seed)
    rest = labelled(molecule(0.959, 0.959, 104.9))
    written = [rest]
    pairs = 0
    drawn = list(molecules(random))
    while pairs < options.pairs:
        positions = drawn.pop(0) if drawn else pair(random)
        atoms = labelled(positions)
        count = len(atoms) // 3
        above = atoms.get_potential_energy() - count * rest.get_potential_energy()
        if above <= HIGHEST:
            written.append(atoms)
            pairs += count == 2
            ase.io.write(options.clusters, written, format="extxyz")
    print(f"{options.clusters}: {len(written)} clusters, {pairs} of them pairs")


def labelled(positions: Array) -> Atoms:
    """O, H, H and so on with the energy, eV, and forces, eV/A, of PBE0."""
    from pyscf import dft

    atoms = Atoms("OHH" * (len(positions) // 3), positions)
    field = dft.RKS(molecule_of(atoms, "def2-tzvp"), xc="pbe0").density_fit()
    field.grids.level, field.conv_tol = 2, 1e-8
    labels = solved(field)
    if labels is None:
        raise RuntimeError("the density of a cluster did not converge")
    energy, forces = labels
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    atoms.info["kind"] = "molecule" if len(atoms) == 3 else "pair"
    return atoms


def on_grids() -> list[Array]:
    """76 molecules, the first at rest, and 64 pairs; positions, A, of O, H, H and so on."""
    random = np.random.default_rng(11)
    rest, angle = 0.96, 104.5
    drawn = [molecule(rest, rest, angle)]
    drawn += [molecule(bond, rest, angle) for bond in np.arange(0.66, 1.58, 0.05)]
    drawn += [molecule(bond, bond, angle) for bond in np.arange(0.76, 1.4, 0.08)]
    drawn += [molecule(rest + part, rest - part, angle) for part in (0.08, 0.16, 0.24)]
    drawn += [molecule(rest, rest, degrees) for degrees in np.arange(50, 180, 10)]
    drawn += [molecule(*random.uniform(0.75, 1.45, 2), random.uniform(60, 165)) for _ in range(32)]
    for number in range(64):
        one, other = (
            molecule(*random.normal(rest, 0.03, 2), random.normal(105, 7)) @ _turned(random).T
            for _ in range(2)
        )
        way = random.normal(size=3)
        way /= np.linalg.norm(way)
        nearest = random.uniform(1.0, 2.0) if number % 2 else random.uniform(1.6, 4.2)
        far = 12.0
        while far > 0 and _apart(one, other + far * way).min() > nearest:
            far -= 0.01
        drawn.append(np.vstack([one, other + far * way]))
    return drawn


def _turned(random: np.random.Generator) -> Array:
    matrix, upper = np.linalg.qr(random.normal(size=(3, 3)))
    matrix *= np.sign(np.diag(upper))
    return matrix * np.linalg.det(matrix)


def taught(options: argparse.Namespace) -> None:
    """Writes clusters with energies and forces of a potential, up to `HIGHEST` above rest."""
    systems = [System(np.array([8, 1, 1] * (len(one) // 3)), one) for one in on_grids()]
    calculation = Calculation(systems, options.potential, device="cpu")
    calculation.compute()
    energies = calculation.state.energy.double().numpy()
    sizes = [len(system) for system in systems]
    forces = np.split(calculation.state.forces.double().numpy(), np.cumsum(sizes)[:-1])
    written = []
    for system, energy, own in zip(systems, energies, forces, strict=True):
        count = len(system) // 3
        if energy - count * energies[0] > HIGHEST:
            continue
        atoms = Atoms("OHH" * count, system.positions)
        atoms.calc = SinglePointCalculator(atoms, energy=float(energy), forces=own)
        atoms.info["kind"] = "molecule" if count == 1 else "pair"
        written.append(atoms)
    ase.io.write(options.clusters, written, format="extxyz")
    print(f"{options.clusters}: {len(written)} of {len(systems)} clusters")


def add(options: argparse.Namespace) -> None:
    """Writes the data set of liquid and clusters, and its split."""
    target = options.data.with_name(f"{options.data.stem}-{options.copies}.h5")
    clusters = ase.io.read(options.clusters, ":")
    with open_dataset(options.data) as liquid:
        split, count = read_split(options.split, liquid), len(liquid)
        frames = list(liquid.frames(np.arange(count)))
        level = float(np.mean([3 * frame.energy / len(frame) for frame in frames]))
        shift = level + VAPORIZATION - clusters[0].get_potential_energy()  # the first is at rest
        if options.as_labelled:
            shift = 0.0
        source = liquid.sources[0]
        about = Provenance(
            options.clusters.name,
            importer="benchmarks/water_pbe0.py",
            # Theirs is PBE0/def2-TZVP without dispersion, as the card says; a set of one training
            # has one level.
            level_of_theory=source.level_of_theory,
            licence=source.licence if options.as_labelled else "CC0-1.0",
        )
        added = [frame for atoms in clusters for frame in [_frame(atoms, shift)] * options.copies]
        write_dataset(target, [(iter(frames), source), (iter(added), about)])
    how = "that of the liquid, clusters for training"
    write_split_with(target, split, count, len(added), how)
    print(f"{target}: {count} frames of the liquid and {len(added)} of clusters")


def _frame(atoms: Any, shift: float) -> LabelledFrame:
    return LabelledFrame(
        atoms.numbers,
        atoms.positions,
        energy=atoms.get_potential_energy() + shift * (len(atoms) // 3),
        forces=atoms.get_forces(),
        group=atoms.info["kind"],
    )


# All of it


def make(options: argparse.Namespace) -> None:
    """Runs what is not done yet; raises InputError for a command that fails."""
    options.out.mkdir(parents=True, exist_ok=True)
    for words in chain(options.data.resolve(), options.out, str(options.device)):
        if subprocess.run(words, cwd=options.out, check=False).returncode:
            raise InputError(f"This failed in {options.out}: {shlex.join(words)}")


def chain(data: Path, out: Path, device: str) -> Iterator[list[str]]:
    """Words of each command that is left, of a training the rest of one.

    Args:
        data: folder of the published files.
        out: where the commands run; each is looked for there once those before it are done.
        device: of trainings.
    """
    for line in RECIPE.read_text(encoding="utf-8").splitlines():
        program, *words = shlex.split(line.removeprefix("#   ")) if line[:4] == "#   " else [""]
        words = [_full(word, data) for word in words]
        if program == "python":
            _, _, liquid, *_, copies = words
            if not (out / f"{Path(liquid).stem}-{copies}.json").exists():
                yield [sys.executable, __file__, *words[1:]]
        elif program and words[0] == "data":
            makes = words[1] in ("convert", "split")
            if not (makes and (out / words[3]).exists()):
                yield [*PROGRAM, *words]
        elif program:
            folder = out / yaml.safe_load(Path(words[1]).read_text(encoding="utf-8"))["out"]
            if (folder / "checkpoint.safetensors").exists():
                words = ["train", str(folder / "train.yaml"), "--resume"]
            if not (folder / "report.html").exists():
                yield [*PROGRAM, *words, "--device", device]


def _full(word: str, data: Path) -> str:
    places = (data / word, POTENTIALS.parent / word)
    return next((str(place) for place in places if place.is_file()), word)


# The liquid


def liquid(options: argparse.Namespace) -> None:
    """Runs what is not there, prints peaks and minima, and draws."""
    with open_dataset(options.data) as dataset:
        frames = [dataset.frame(number) for number in recovered_order(dataset)]
        starts = _starts(dataset, options)
    if not options.out.exists():
        write_atomically(options.out, lambda path: _save(path, run(starts, options)))
    with np.load(options.out) as record:
        value, ps = record["g_oo"], 1e-3 * float(record["steps"])
        if record["kelvin"].tolist() != options.kelvin:
            raise InputError(
                f"{options.out} is of --kelvin {' '.join(map(str, record['kelvin']))}; give these, "
                "or another --out."
            )
    stretches = np.array([g_oo(part) for part in _stretches(frames)])
    rows = {"frames": (g_oo(frames), stretches)}
    for kelvin, own in zip(options.kelvin, value, strict=True):
        rows[f"{kelvin:g} K"] = (own.mean(0), own)
    centres = (np.arange(BINS) + 0.5) * RANGE / BINS
    print(f"{len(value[0])} starts of {ps:.0f} ps each; bins of {RANGE / BINS:g} A")
    for name, (mean, parts) in rows.items():
        peak, low = int(mean.argmax()), int(mean.argmax() + mean[mean.argmax() :][:30].argmin())
        print(
            f"{name}: first peak {mean[peak]:.3f} +- {_error(parts.max(axis=1)):.3f} at "
            f"{centres[peak]:.2f} A, minimum {mean[low]:.3f} +- {_error(parts[:, low]):.3f}"
        )
        if name == "frames":
            continue
        for together in (1, 2):
            print(f"  bins of {together * RANGE / BINS:g} A: {_told(parts, stretches, together)}")
        if options.pictures:
            path = options.pictures / f"picture-{name.replace(' ', '')}.png"
            path.write_bytes(_picture(centres, name, rows))


@dataclass(frozen=True)
class Distance:
    """Between the means of two sets of curves, RMS over bins.

    Attributes:
        seen: of the two means.
        of_scatter: what the standard errors of both make of two sets with equal means.
        beyond: the root of the difference of their squares; 0 if scatter makes more than is seen.
        interval: of 95 %, of what lies beyond scatter.
    """

    seen: float
    of_scatter: float
    beyond: float
    interval: tuple[float, float]


def distance(first: Array, second: Array, draws: int = DRAWS, seed: int = 1) -> Distance:
    """How far two sets of independent curves, (sets, bins), are apart.

    The interval holds the distances, along the way from one mean to the other, at which bootstrap
    over both sets makes neither more nor less than what is seen in all but 2.5 % of its draws.
    """
    random = np.random.default_rng(seed)
    apart = first.mean(0) - second.mean(0)
    moved = np.zeros((draws, len(apart)))
    scatter = 0.0
    for parts in (first, second):
        count = len(parts)
        scatter += float((parts.var(axis=0, ddof=1) / count).mean())
        shares = random.multinomial(count, np.full(count, 1.0 / count), draws) / count
        # Deviations from a mean of so few are too small by this much.
        moved += shares @ (parts - parts.mean(0)) * (count / (count - 1)) ** 0.5
    square = float(np.square(apart).mean())
    along, across = moved @ apart / (len(apart) * square**0.5), np.square(moved).mean(1)
    true = np.linspace(0.0, 3.0 * (square + scatter) ** 0.5, 1000)
    less = np.array([(one**2 + 2 * one * along + across <= square).mean() for one in true])
    held = true[(less >= 0.025) & (less <= 0.975)]
    interval = (float(held.min()), float(held.max())) if held.size else (0.0, 0.0)
    return Distance(square**0.5, scatter**0.5, max(square - scatter, 0.0) ** 0.5, interval)


def _told(own: Array, frames: Array, together: int) -> str:
    width = together * RANGE / BINS
    coarse = [parts.reshape(len(parts), -1, together).mean(2) for parts in (own, frames)]
    kept = (np.arange(BINS // together) + 0.5) * width > COMPARED_FROM
    found = distance(*(parts[:, kept] for parts in coarse))
    low, high = found.interval
    return (
        f"{found.seen:.4f} RMS from frames, of which scatter makes {found.of_scatter:.4f}; beyond "
        f"scatter {found.beyond:.4f} ({low:.4f} to {high:.4f})"
    )


def _stretches(frames: list[LabelledFrame]) -> Iterator[list[LabelledFrame]]:
    for part in np.array_split(np.arange(len(frames)), STRETCHES):
        yield [frames[number] for number in part]


def _error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def g_oo(frames: Sequence[LabelledFrame]) -> Array:
    """(BINS,) of frames in cubes, mean over them; normalized as `RadialDistributions`."""
    edges = np.linspace(0.0, RANGE, BINS + 1)
    shells = 4 * np.pi / 3 * np.diff(edges**3)
    total = np.zeros(BINS)
    for frame in frames:
        oxygen, edge = frame.positions[frame.numbers == 8], frame.cell[0, 0]
        ways = oxygen[:, None] - oxygen
        ways -= edge * np.round(ways / edge)
        apart = np.linalg.norm(ways, axis=2)[np.triu_indices(len(oxygen), 1)]
        counts = np.histogram(apart, edges)[0]
        total += 2 * counts * edge**3 / (shells * len(oxygen) * (len(oxygen) - 1))
    return total / len(frames)


def _starts(dataset: Dataset, options: argparse.Namespace) -> list[System]:
    train = read_split(options.split, dataset).train
    chosen = np.sort(train)[:: max(1, len(train) // options.starts)][: options.starts]
    return [System(f.numbers, f.positions, f.cell, f.pbc) for f in dataset.frames(chosen)]


def run(starts: list[System], options: argparse.Namespace) -> dict[str, Any]:
    """g_OO of each start at each temperature, (temperatures, starts, BINS), after 10 ps."""
    kelvin = [one for one in options.kelvin for _ in starts]
    observable = RadialDistributions(RANGE, bins=BINS, every=EVERY, start=WARM_FS)
    simulation = Simulation(
        starts * len(options.kelvin),
        options.potential,
        StochasticVelocityRescaling(1.0, kelvin, tau=100.0),
        device=str(options.device),
        seed=7,
        temperature=kelvin,
        observe=[observable],
    )
    simulation.run(round(1e3 * options.ps) + WARM_FS)
    result = simulation.online[0].result()
    value = np.asarray(result.value)[:, list(result.pairs).index("O-O")]
    return {
        "g_oo": value.reshape(len(options.kelvin), len(starts), BINS),
        "kelvin": np.array(options.kelvin),
        "steps": simulation.step - WARM_FS,
    }


def _save(path: Path, record: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **record)


def _picture(centres: Array, name: str, rows: dict[str, tuple[Array, Array]]) -> bytes:
    figure = blank_figure(
        6.4, 4.2, f"Oxygens of water-pbe0 at {name}", "64 molecules; bands are SE"
    )
    axes = figure.add_subplot()
    for key, colour in (("frames", ORANGE), (name, BLUE)):
        mean, parts = rows[key]
        error = parts.std(axis=0, ddof=1) / np.sqrt(len(parts))
        axes.plot(centres, mean, color=colour, label=key)
        axes.fill_between(centres, mean - error, mean + error, color=colour, alpha=0.3)
    axes.set_xlim(2.0, RANGE)
    axes.set_xlabel("O-O distance (Å)")
    axes.set_ylabel("g(r)")
    axes.legend(frameon=False)
    dress(axes)
    return png(figure)


def main() -> None:
    """Does one of the five."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("--data", type=Path, required=True, help="folder of the published files")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--device", default="auto", help="of the trainings")
    one.set_defaults(work=make)
    one = commands.add_parser("label")
    one.add_argument("clusters", type=Path)
    one.add_argument("--pairs", type=int, default=40)
    one.add_argument("--seed", type=int, default=7)
    one.set_defaults(work=label)
    one = commands.add_parser("taught")
    one.add_argument("clusters", type=Path)
    one.add_argument("--potential", default="water-pbe0")
    one.set_defaults(work=taught)
    one = commands.add_parser("add")
    one.add_argument("data", type=Path)
    one.add_argument("split", type=Path)
    one.add_argument("clusters", type=Path)
    one.add_argument("--copies", type=int, default=5)
    one.add_argument("--as-labelled", action="store_true", help="energies stay what they are")
    one.set_defaults(work=add)
    one = commands.add_parser("liquid")
    one.add_argument("data", type=Path)
    one.add_argument("split", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--potential", default="water-pbe0")
    one.add_argument("--kelvin", type=float, nargs="+", default=[330.0, 300.0])
    one.add_argument("--starts", type=int, default=5, help="at each temperature")
    one.add_argument("--ps", type=float, default=321.0, help="of each start, after 10 ps")
    one.add_argument("--pictures", type=Path, metavar="FOLDER")
    one.add_argument("--device", type=device_argument, default="auto")
    one.set_defaults(work=liquid)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    run_script(main)
