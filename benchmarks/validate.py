"""Judges a potential against physics, one probe at a time; what computes is `mdgraph.validate`.

    python benchmarks/validate.py stability POTENTIAL STRUCTURE [--frames TRAINING] [--ps 1000]
        [--transfer | --crystal]
    python benchmarks/validate.py stretching POTENTIAL STRUCTURE [--element C] [--to 2.3]
    python benchmarks/validate.py displacing POTENTIAL STRUCTURE [--frames 500]
    python benchmarks/validate.py liquid [--starts 5] [--frames train.extxyz.gz] [--picture FILE]
    python benchmarks/validate.py cut LIQUID OUT.extxyz --shape drop|slab|molecule
    python benchmarks/validate.py crystal POTENTIAL [--element Cu]
    python benchmarks/validate.py look-alikes POTENTIAL set.h5 split.json [--part test]
    python benchmarks/validate.py transfer POTENTIAL STRUCTURE [--images 9]

stability   Langevin dynamics of many starts as one batch, k of n that hold (mdgraph/validate/
            stability.py says what counts as a failure). With --transfer a hydrogen may move from
            one heavy atom to another; with --crystal nearest neighbors must stay each other's.
stretching  energies along every bond of --element to hydrogen, above its lowest point: "barrier" is
            the least that a bond needs on its way, "dip" the largest drop on it, the mean over
            bonds. A real bond takes 4 to 5 eV and has no dip.
displacing  shares of randomly displaced frames that lie lower and higher than two Morse curves.
            Of molecules by potentials that know broken bonds less than 1 % lie outside.
liquid      g_OO of the shipped water beside that of its training frames, and its diffusion at
            constant energy in a box of this size.
cut         drops, slabs or single molecules of every frame of a liquid, for `stability`.
crystal     lattice constant, bulk modulus and elastic constants, in double precision on a CPU.
            Copper's are 3.61 A, 138 GPa and 169, 122 and 75 GPa (ISBN 978-3-540-54410-4).
look-alikes errors on held-out frames with and without those that training holds almost the same.
transfer    the barrier of a hydrogen that goes from one oxygen to the other, by a climbing nudged
            elastic band, in double precision on a CPU.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase.build import bulk
from cases import device_argument, hardware, run_script
from drift import box
from numpy.typing import NDArray

from mdgraph.analysis.style import BLUE, LINE, ORANGE, blank_figure, dress
from mdgraph.checkpoints import shipped_potentials
from mdgraph.data import LabelledFrame, open_dataset
from mdgraph.devices import device_named
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.io.structures import from_ase, read_systems, to_ase
from mdgraph.precision import PRECISIONS
from mdgraph.system import System
from mdgraph.units import NUMBERS, SYMBOLS
from mdgraph.validate import liquids
from mdgraph.validate.bonds import BondGraph, NeighborGraph, shortest_distances
from mdgraph.validate.crystals import elastic_constants, equation_of_state, with_cell
from mdgraph.validate.held_out import frame_errors, look_alikes
from mdgraph.validate.probes import (
    DEEP,
    bond_curves,
    bonds_to_hydrogen,
    evaluate_with,
    falls,
    perturbation_misses,
    transfer_band,
)
from mdgraph.validate.stability import StabilityOptions, StabilityResult, stability, wilson_interval

WATER = "water-pbe0"
FROM, STEP = 1.0, 0.05
"""A; the first length of a bond, and from one to the next."""


def library_options(options_class: Any, options: argparse.Namespace) -> Any:
    """Options of `mdgraph.validate` from those of the command line."""
    return options_class(
        **{field.name: getattr(options, field.name) for field in fields(options_class)}
    )


# stability


def run_stability(options: argparse.Namespace) -> None:
    """Prints k of n."""
    frames = read_systems(options.structure)
    if any(not np.array_equal(frame.numbers, frames[0].numbers) for frame in frames):
        raise InputError(f"The frames of {options.structure} differ in their atoms; give one kind.")
    places = np.linspace(0, len(frames) - 1, options.starts).round().astype(int)
    systems = [frames[place].replace(velocities=None) for place in places]
    shortest = shortest_distances(read_frames(options.frames or options.structure))
    if options.crystal:
        bonds: BondGraph = NeighborGraph(systems[0], shortest, options.device)
    else:
        bonds = BondGraph(systems[0], shortest, options.device, options.transfer)
    settings = library_options(StabilityOptions, options)
    result = stability(systems, options.potential, bonds, settings, options.device)
    row = stability_row(result, options)
    print(json.dumps(row) if options.json else stability_text(row))


def read_frames(path: Path) -> Iterable[LabelledFrame | System]:
    """Of a data set, or of a file of structures."""
    if path.suffix != ".h5":
        return read_systems(path)
    with open_dataset(path) as dataset:
        return list(dataset.frames())


def stability_row(result: StabilityResult, options: argparse.Namespace) -> dict[str, Any]:
    interval = wilson_interval(result.stable, len(result.starts))
    return {
        "potential": options.potential,
        "structure": options.structure.name,
        "hardware": hardware(options.device),
        "temperature_K": options.temperature,
        "timestep_fs": options.timestep,
        "ps": result.ps,
        "asked_ps": options.ps,
        "starts": len(result.starts),
        "stable": result.stable,
        "interval": [round(end, 3) for end in interval],
        "mean_K": [
            float(np.mean(start.kelvin)) if start.kelvin else None for start in result.starts
        ],
        "deviation_sigma": [
            None if math.isnan(deviation) else round(deviation, 2)
            for deviation in result.deviations
        ],
        "closest": [round(start.closest, 3) for start in result.starts],
        "failures": [start.failures for start in result.starts],
    }


def stability_text(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    what = f"{row['potential']}, {row['structure']}, {row['temperature_K']:g} K"
    count = f"{row['stable']} of {row['starts']} stable"
    lines = [
        f"{what}, {row['ps']:g} ps: {count}, 95 % interval {low:.2f} to {high:.2f}",
        f"closest contact {min(row['closest']):.2f} of the shortest in training",
    ]
    deviations = [abs(sigma) for sigma in row["deviation_sigma"] if sigma is not None]
    if deviations:
        lines.append(f"mean temperatures within {max(deviations):.1f} standard errors of the bath")
    else:
        lines.append("too short to tell temperatures")
    for number, failures in enumerate(row["failures"]):
        for reason, moment in failures.items():
            lines.append(f"start {number} failed after {moment:g} ps: {reason}")
    if row["ps"] < 0.999 * row["asked_ps"]:
        lines.append(f"It was stopped before {row['asked_ps']:g} ps.")
    return "\n".join(lines)


# stretching and displacing


def run_stretching(options: argparse.Namespace) -> None:
    """Prints, in eV, the median over all bonds and the least, at every second length, and dips."""
    systems = read_systems(options.structure)
    every = np.unique(np.linspace(0, len(systems) - 1, options.frames).astype(int))
    frames = [systems[place] for place in every]
    if options.element not in NUMBERS:
        raise InputError(f"--element {options.element} is no symbol; give one such as C.")
    element = NUMBERS[options.element]
    bonds = [
        (int(place), *(f"{SYMBOLS[system.numbers[atom]]} {atom}" for atom in bond))
        for place, system in zip(every, frames, strict=True)
        for bond in bonds_to_hydrogen(system, element)
    ]
    if not bonds:
        raise InputError(
            f"{options.structure} has no bond of {options.element} to H; give organic molecules."
        )
    lengths = np.arange(FROM, options.to + STEP / 2, STEP)
    rows = bond_curves(frames, lengths, element, evaluate_with(options.potential, options.device))
    fall = falls(rows)
    each = fall.max(axis=1)
    worst = int(each.argmax())
    begin = int(rows[worst, : fall[worst].argmax() + 1].argmax())
    barrier, dip = float(rows.max(axis=1).min()), float(each.mean())
    curves = {"length_A": lengths, "median_eV": np.median(rows, 0), "least_eV": rows.min(0)}
    if options.json:
        row: dict[str, Any] = {name: values.round(3).tolist() for name, values in curves.items()}
        row |= {"bonds": len(rows), "barrier_eV": round(barrier, 3), "dip_eV": round(dip, 3)}
        row |= {"deepest_dip_eV": round(float(each.max()), 3), "deepest_of": bonds[worst]}
        row |= {"deepest_from_A": round(float(lengths[begin]), 2)}
        print(json.dumps(row | {"deep": int((each > DEEP).sum())}))
        return
    for name, values in curves.items():
        print(f"{name:<10}" + "".join(f"{value:6.2f}" for value in values[::2]))
    print(f"{len(rows)} bonds, barrier {barrier:.2f} eV, dip {dip:.2f} eV")
    frame, hydrogen, heavy = bonds[worst]
    print(
        f"deepest dip {each.max():.2f} eV, beyond {lengths[begin]:.2f} A, of {hydrogen} on {heavy} "
        f"in frame {frame}; {(each > DEEP).sum()} bonds drop by more than {DEEP} eV"
    )


def run_displacing(options: argparse.Namespace) -> None:
    """Prints the shares that lie too low and too high, and by how much."""
    for name in ("frames", "max_displacement", "well_depth"):
        if not (value := getattr(options, name)) > 0:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is {value:g}; it should be greater than 0.")
    systems = [system for system in read_systems(options.structure) if len(system) > 1]
    if not systems:
        raise InputError(f"{options.structure} holds single atoms alone; give larger structures.")
    places = np.random.default_rng(options.seed).integers(0, len(systems), options.frames)
    both = perturbation_misses(
        [systems[place] for place in places],
        evaluate_with(options.potential, options.device),
        seed=options.seed,
        max_displacement=options.max_displacement,
        well_depth=options.well_depth,
    )
    row = {
        name: {
            "share": round(float((miss > 0.0).double().mean()), 4),
            "mean_meV": round(1e3 * float(miss.mean()), 2),
            "worst_eV": round(float(miss.max()), 3),
        }
        for name, miss in zip(("low", "high"), both, strict=True)
    }
    if options.json:
        print(json.dumps({"frames": options.frames, **row}))
        return
    print(f"Of {options.frames} displaced frames lie too")
    for name, side in row.items():
        print(
            f"{name:<4} {side['share']:6.1%}, by {side['mean_meV']:g} meV in the mean over all and "
            f"{side['worst_eV']:g} eV at worst"
        )


# liquid


def run_liquid(options: argparse.Namespace) -> None:
    """Prints g_OO, its first extrema and the diffusion."""
    settings = library_options(liquids.LiquidOptions, options)
    training, training_error = training_distribution(options.frames)
    systems = [box(options)] * options.starts
    blocks, ends = liquids.pair_distributions(systems, WATER, "O-O", settings, options.device)
    value, error = liquids.mean_and_error(blocks)
    constants, kelvin = liquids.diffusion(ends, WATER, "O", settings, options.device)
    row = {
        "hardware": hardware(options.device),
        "precision": options.precision,
        "atoms": len(ends[0]),
        "starts": options.starts,
        "blocks": options.blocks,
        "ps": options.ps,
        "temperature_K": options.temperature,
        "distance_A": liquids.bin_distances().tolist(),
        "g_OO": value.tolist(),
        "g_OO_error": error.tolist(),
        "training": training.tolist(),
        "training_error": training_error.tolist(),
        "diffusion_1e-5_cm2_per_s": constants.tolist(),
        "nve_temperature_K": kelvin.tolist(),
    }
    if options.picture is not None:
        draw_liquid(row, options.picture)
    print(json.dumps(row) if options.json else liquid_text(row))


def training_distribution(frames: Path | None) -> tuple[liquids.Array, liquids.Array]:
    """g_OO of training frames; of `metrics.json`, without errors, where none are given."""
    if frames is not None:
        return liquids.frame_distribution(read_systems(frames), NUMBERS["O"])
    path = shipped_potentials()[WATER] / "metrics.json"
    known = json.loads(path.read_text(encoding="utf-8"))["training_rdf"]
    value = np.interp(liquids.bin_distances(), known["r_A"], known["oo"])
    return value, np.full(len(value), np.nan)


def liquid_text(row: dict[str, Any]) -> str:
    r, g, error, training, other = (
        np.array(row[key])
        for key in ("distance_A", "g_OO", "g_OO_error", "training", "training_error")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (g - training) / np.sqrt(error**2 + np.nan_to_num(other) ** 2)
    starts = f"{row['starts']} starts of {row['atoms']} atoms"
    lines = [
        f"{row['hardware']}, {row['precision']}: {row['ps']:g} ps of {starts}",
        f"g_OO at {row['temperature_K']:g} K",
        f"{'r A':>8}{'g_OO':>9}{'SE':>9}{'training':>10}{'SE':>9}{'z':>7}",
        *(
            f"{r[place]:>8.3f}{g[place]:>9.3f}{error[place]:>9.3f}"
            f"{training[place]:>10.3f}{other[place]:>9.3f}{z[place]:>7.1f}"
            for place in range(int(2.3 / liquids.MAXIMUM * len(r)), len(r), 2)
        ),
    ]
    names = ("first peak", "first minimum")
    for name, place in zip(names, liquids.first_peak_and_minimum(g), strict=True):
        lines.append(f"{name} at {r[place]:.2f} A: {g[place]:.3f} +- {error[place]:.3f}")
    for name, place in zip(names, liquids.first_peak_and_minimum(training), strict=True):
        lines.append(f"{name} in training at {r[place]:.2f} A: {training[place]:.3f}")
    beyond = (r > 2.4) & np.isfinite(z)
    apart, errors = (float(np.sqrt((values[beyond] ** 2).mean())) for values in (g - training, z))
    lines.append(f"RMS difference beyond 2.4 A: {apart:.3f}, {errors:.1f} standard errors")
    constants = np.array(row["diffusion_1e-5_cm2_per_s"])
    lines.append(
        f"D of {len(constants)} runs at constant energy: {constants.mean():.3f} +- "
        f"{float(liquids.standard_error(constants)):.3f} e-5 cm^2/s"
    )
    return "\n".join(lines)


def draw_liquid(row: dict[str, Any], path: Path) -> None:
    """g_OO with two standard errors on each side."""
    figure = blank_figure(
        7.0,
        5.2,
        f"{WATER} at {row['temperature_K']:g} K",
        f"{row['starts']} starts of {row['ps']:g} ps; bands are two standard errors",
    )
    axes = figure.add_subplot()
    r = np.array(row["distance_A"])
    for key, name, colour in (("training", "training frames", ORANGE), ("g_OO", "mdgraph", BLUE)):
        value, error = np.array(row[key]), np.nan_to_num(np.array(row[f"{key}_error"]))
        axes.plot(r, value, color=colour, label=name, **LINE)
        axes.fill_between(r, value - 2 * error, value + 2 * error, color=colour, alpha=0.25, lw=0)
    axes.set_xlim(2.0, liquids.MAXIMUM)
    axes.set_xlabel("O-O distance (Å)")
    axes.set_ylabel("g(r)")
    axes.legend(frameon=False)
    dress(axes)
    figure.savefig(path)


def run_cut(options: argparse.Namespace) -> None:
    """Writes what was cut."""
    refuse_existing(options.out)
    pieces = [to_ase(liquids.cut(liquid, options.shape)) for liquid in read_systems(options.liquid)]
    write_atomically(options.out, lambda path: ase.io.write(path, pieces, format="extxyz"))


# crystals, held-out frames, hydrogen bonds


def run_crystal(options: argparse.Namespace) -> None:
    """Prints the constants."""
    evaluate = evaluate_with(options.potential, device_named("cpu"), "double")
    crystal = from_ase(bulk(options.element, cubic=True))
    constant, modulus = equation_of_state(crystal, evaluate)
    constants = elastic_constants(with_cell(crystal, np.eye(3) * constant), evaluate)
    print(f"lattice constant {constant:.4f} A, bulk modulus {modulus:.1f} GPa")
    print("C11 {:.1f}, C12 {:.1f}, C44 {:.1f} GPa".format(*constants))


def run_look_alikes(options: argparse.Namespace) -> None:
    """Prints both rows."""
    split = json.loads(options.split.read_text(encoding="utf-8"))
    with open_dataset(options.data) as dataset:
        frames = list(dataset.frames(split[options.part]))
        training = list(dataset.frames(split["train"]))
    if not frames:
        raise InputError(f"{options.split} holds no frames for {options.part}.")
    copies = look_alikes(frames, training, options.near)
    choices: dict[str, NDArray[np.bool_]] = {"all": np.full(len(copies), True)}
    if not copies.all():
        choices["without look-alikes"] = ~copies
    evaluate = evaluate_with(options.potential, options.device)
    rows = frame_errors(frames, evaluate, list(choices.values()))
    print(f"{'':<24}{'frames':>8}{'energy, meV/atom':>18}{'forces, meV/A':>16}")
    for name, row in zip(choices, rows, strict=True):
        print(f"{name:<24}{row.frames:>8}{1e3 * row.energy:>18.3f}{1e3 * row.forces:>16.2f}")


def run_transfer(options: argparse.Namespace) -> None:
    """Prints the barrier between the first frame at rest and its mirrored copy."""
    band = transfer_band(ase.io.read(options.structure, 0), options.potential, options.images)
    print(f"ends {1e3 * band.difference:.1f} meV apart; settled: {band.converged}")
    print(f"barrier {1e3 * band.barrier:.1f} meV")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    probes = parser.add_subparsers(required=True, metavar="PROBE")

    def probe(
        name: str, run: Callable[[argparse.Namespace], None], *places: str
    ) -> argparse.ArgumentParser:
        own = probes.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        own.set_defaults(run=run)
        for place in places:
            own.add_argument(place, type=str if place == "potential" else Path)
        return own

    def common(own: argparse.ArgumentParser, device: str = "auto") -> None:
        own.add_argument("--device", type=device_argument, default=device)
        own.add_argument("--json", action="store_true")

    own = probe("stability", run_stability, "potential", "structure")
    own.add_argument("--frames", type=Path, help="of training: the shortest distances")
    own.add_argument("--starts", type=int, default=10)
    own.add_argument("--temperature", type=float, default=300.0, help="K")
    own.add_argument("--ps", type=float, default=1000.0)
    own.add_argument("--bath-ps", type=float, default=10.0, help="before means are taken")
    own.add_argument("--timestep", type=float, default=0.5, help="fs")
    own.add_argument("--friction", type=float, default=1.0, help="1/ps")
    own.add_argument("--every-fs", type=float, default=100.0, help="from look to look")
    graph = own.add_mutually_exclusive_group()
    graph.add_argument("--transfer", action="store_true", help="hydrogens may move")
    graph.add_argument("--crystal", action="store_true", help="neighbors count, not bonds")
    own.add_argument("--precision", default="mixed", choices=PRECISIONS)
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--minutes", type=float, default=math.inf, help="then it stops")
    common(own)

    own = probe("stretching", run_stretching, "potential", "structure")
    own.add_argument("--element", default="C", help="that the hydrogen is pulled off")
    own.add_argument("--frames", type=int, default=10)
    own.add_argument("--to", type=float, default=2.3, help="A")
    common(own)

    own = probe("displacing", run_displacing, "potential", "structure")
    own.add_argument("--frames", type=int, default=500, help="that are displaced")
    own.add_argument("--max-displacement", type=float, default=1.0, help="A, of an atom")
    own.add_argument("--well-depth", type=float, default=4.0, help="eV, of the Morse curves")
    own.add_argument("--seed", type=int, default=0, help="of frames and moves")
    common(own)

    own = probe("liquid", run_liquid)
    own.add_argument("--precision", default="mixed", choices=PRECISIONS)
    own.add_argument("--starts", type=int, default=5)
    own.add_argument("--repeat", type=int, nargs=3, default=[1, 1, 1], help="of 64 molecules")
    own.add_argument("--temperature", type=float, default=300.0, help="K")
    own.add_argument("--timestep", type=float, default=0.5, help="fs")
    own.add_argument("--bath-ps", type=float, default=10.0, help="of warm-up")
    own.add_argument("--ps", type=float, default=100.0, help="of each start, for g_OO")
    own.add_argument("--blocks", type=int, default=10, help="of each start")
    own.add_argument("--every", type=int, default=20, help="steps from one sample to the next")
    own.add_argument("--nve-ps", type=float, default=50.0, help="of each start, for D")
    own.add_argument("--window-ps", type=float, default=10.0, help="longest lag")
    own.add_argument("--lags", type=int, default=100, help="up to it")
    own.add_argument("--fit", type=float, nargs=2, default=[0.2, 0.9], help="shares of it")
    own.add_argument("--frames", type=Path, help="training frames, else metrics.json")
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--picture", type=Path)
    common(own)

    own = probe("cut", run_cut, "liquid", "out")
    own.add_argument("--shape", choices=("drop", "slab", "molecule"), default="drop")

    own = probe("crystal", run_crystal, "potential")
    own.add_argument("--element", default="Cu", help="of a cubic crystal that ASE knows")

    own = probe("look-alikes", run_look_alikes, "potential", "data", "split")
    own.add_argument("--part", default="test", choices=["test", "validation"])
    own.add_argument("--near", type=float, default=0.01, help="A an atom")
    own.add_argument("--device", type=device_argument, default="cpu")

    own = probe("transfer", run_transfer, "potential", "structure")
    own.add_argument("--images", type=int, default=9, help="between the two ends")
    return parser.parse_args()


def main() -> None:
    """Runs one probe."""
    options = arguments()
    options.run(options)


if __name__ == "__main__":
    run_script(main)
