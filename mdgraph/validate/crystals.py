"""Measurements of crystals: lattice, elasticity, surfaces, phonons and stacking faults.

With published values of some elements, each with its source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc111, surface
from ase.data import reference_states
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.bonding import kind_of
from mdgraph.engine.batches import evaluate_with
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.engine.integrators import FIRE
from mdgraph.engine.relaxation import Relaxed, relax
from mdgraph.evaluators import Evaluator
from mdgraph.models import Potential
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BAR, COVALENT_RADII, ELEMENTARY_CHARGE, SYMBOLS

Array = NDArray[np.float64]

GPA: Final = 1e4 * BAR
"""One GPa in eV/A^3."""

PHASES: Final = {"fcc": 12, "hcp": 12, "bcc": 8, "sc": 6, "diamond": 4}
"""Phases and the nearest neighbors of an atom in each."""

BOND_EXPONENT: Final = 0.137
"""Bonds lengthen with the number of neighbors to this power: silicon has 2.35 A in diamond and
2.74 A in fcc."""

SEARCHED: Final = (0.75, 1.4)
"""Range of nearest distances, over what is expected of the phase, in which an energy must be
least."""

SMALLEST: Final = 0.58

LARGEST: Final = 1.25
"""Range of lattice constants, over that at rest."""

ENERGY_FROM: Final = 0.84
"""From here on the energies count. Closer than that, at 0.6 of the volume, a metal holds some
100 GPa, phases and cores change, and only the pressure says something: it must push, and more so
the denser the crystal is. An energy below that at rest, which no pressure that pushes leads to,
is a hole there too."""

HOLE: Final = 0.3
"""eV an atom below the reference phase at rest: ten times what separates phases of metals, and
more than functionals differ by."""

DIP: Final = (0.03, 0.1)
"""eV an atom by which the energy may fall on the way from rest before it is looked at, and before
it is wrong. A lattice that only changes its volume has one minimum; where spins change, a real
crystal may have another, of some ten meV."""

WALL: Final = (0.5, 0.5, 3.0)
"""eV and share by which the energy may lie above the judge's, and the energy of the judge up to
which that counts: a scan at 3 eV an atom need not be exact, and no run gets there."""

COARSE: Final = 0.01
FINE: Final = 0.005
"""Steps of the lattice constant, and those below `ENERGY_FROM`: pressures of shipped potentials dip
there within 0.01."""

RELAXED_STRAIN: Final = 5e-3
"""Strain whose stress gives the elastic constants, larger than noise of forces in float32."""

STRESS: Final = 1e-5
"""eV/A^3, 1.6 MPa: argon then errs by 0.02 % in its lattice constant."""

BOX: Final = 6.9
"""A, the least width of a cell with a vacancy; it is the usual width of the published ones."""

SLAB: Final = 10.0
"""A, the least thickness of a slab: both sides are then apart by more than most cutoffs."""

STEP: Final = 0.01
"""A, by which atoms are displaced for phonons."""

_LAYERS: Final = 12
"""Layers of fcc (111) in the cell of a stacking fault."""

J_PER_M2: Final = ELEMENTARY_CHARGE * 1e20
"""One eV/A^2."""

_THZ: Final = 1e3 * math.sqrt(ACCELERATION) / (2.0 * math.pi)
"""Frequency of a unit mass on a unit spring, eV/A^2/amu."""
_LANDOLT_BOERNSTEIN: Final = "ISBN 978-3-540-54410-4"
"""Every and McCurdy, Landolt-Börnstein III/29a, table 3: measured at 300 K."""

_CRC: Final = "CRC Handbook of Chemistry and Physics, 82nd edition"
"""Measured at room temperature."""

_ANGSTEN: Final = "DOI 10.1088/1367-2630/16/1/015018"
"""Angsten and others, table A.1: PBE, 108 atoms; nickel with spins."""

_MA: Final = "DOI 10.1103/PhysRevMaterials.3.013605"
"""Ma and Dudarev, table IV: PBE."""

_BARTOK: Final = "DOI 10.1103/PhysRevX.8.041048"
"""Bartók and others, whose results are in github.com/libAtoms/silicon-testing-framework: PW91."""

_TRAN: Final = "DOI 10.1038/sdata.2016.80"
"""Tran and others: PBE surface energies of elements."""

_EPJAP: Final = "https://www.epjap.org/articles/epjap/full_html/2022/01/ap210276/T1.html"
"""Energies of silicon's bare, unreconstructed surfaces by density functionals."""

_LINDA: Final = "DOI 10.48550/arXiv.2405.04876"
"""Linda and others, table 1: PBE."""

_KITTEL: Final = "ISBN 978-0-471-41526-8"
"""Kittel, Introduction to Solid State Physics, 8th edition, chapter 3, table 1: measured at 0 K."""

_PARKER: Final = "DOI 10.1103/PhysRev.155.712"
"""Parker and others: Raman scattering at 300 K, 520.2 and 300.7 per cm."""

_SVENSSON: Final = "DOI 10.1103/PhysRev.155.619"
"""Svensson and others, table I: neutrons at 296 K, longitudinal at L."""

_BIRGENEAU: Final = "DOI 10.1103/PhysRev.136.A1359"
"""Birgeneau and others, table I: neutrons at 296 K, longitudinal at L."""


def with_cell(system: System, cell: NDArray[np.float64]) -> System:
    """The system with another cell (3, 3) A and the same fractional positions."""
    positions = system.positions @ np.linalg.inv(system.cell) @ cell
    return system.replace(positions=positions, cell=cell)


@dataclass(frozen=True, eq=False)
class Phase:
    """A crystal at rest.

    Attributes:
        name: `fcc`, or `relaxed` for what the potential relaxes to.
        crystal: primitive cell.
        energy: eV an atom.
    """

    name: str
    crystal: System
    energy: float


class CrystalProbe:
    """Evaluates and relaxes crystals in batches."""

    def __init__(
        self, potential: str | Path | Potential | Evaluator, device: torch.device, precision: str
    ) -> None:
        """Loads the potential; see `mdgraph.validate.crystal_checks`."""
        self._precision = precision_named(precision)
        self._device = device
        self._evaluator = as_evaluator(potential, self._precision, device)
        self._evaluate = evaluate_with(self._evaluator, device, precision)

    def evaluate(self, systems: Sequence[System]) -> list[EvaluationResult]:
        """Results of crystals in their order; syncs."""
        return self._evaluate(systems, "crystal")

    def energies(self, systems: Sequence[System]) -> Array:
        """(S,) eV an atom; syncs."""
        results = self.evaluate(systems)
        return np.array([r.energy / len(s) for r, s in zip(results, systems, strict=True)])

    def relax(
        self,
        systems: Sequence[System],
        force: float,
        steps: int,
        cell: str | None = None,
        partial: bool = False,
    ) -> list[Relaxed]:
        """Structures at rest, in their order; syncs.

        Args:
            systems: crystals.
            force: eV/A, the largest at rest.
            steps: most of them.
            cell: how the cell changes, see FIRE.
            partial: no warning where steps do not suffice.

        Raises:
            SimulationError: forces are not finite, or a cell collapses.
        """
        fire = FIRE(force, cell_dof=cell, stress_tolerance=STRESS)
        names = ["crystal"] * len(systems)
        relaxed = relax(
            systems,
            names,
            self._evaluator,
            fire,
            steps,
            device=self._device,
            precision=self._precision,
            partial=partial,
        )
        by_place = dict(relaxed)
        return [by_place[place] for place in range(len(systems))]


def crystal_elements(frames: Sequence[LabelledFrame | System]) -> list[str]:
    """Symbols of the elements that periodic frames hold alone, in the order of the table.

    Elements of two-atomic molecules are left out.
    """
    numbers = {
        int(frame.numbers[0])
        for frame in frames
        if frame.pbc.any() and (frame.numbers == frame.numbers[0]).all()
    }
    states = {number: reference_states[number] or {} for number in sorted(numbers)}
    return [
        SYMBOLS[number] for number, state in states.items() if state.get("symmetry") != "diatom"
    ]


def crystal_compounds(frames: Sequence[LabelledFrame]) -> list[System]:
    """Crystals of several elements, the frame of least energy of each composition.

    Of more than three compositions those with the most frames.

    Args:
        frames: of which those that are periodic in all directions and no liquids count; without
            energies the first one is taken.
    """
    groups: dict[tuple[int, ...], list[LabelledFrame]] = {}
    for frame in frames:
        counts = np.bincount(frame.numbers, minlength=len(SYMBOLS))
        if frame.pbc.all() and (counts > 0).sum() > 1:
            composition = tuple((counts // np.gcd.reduce(counts)).tolist())
            groups.setdefault(composition, []).append(frame)
    crystals = []
    for group in sorted(groups.values(), key=len, reverse=True):
        energies = np.array([frame.energy / len(frame) for frame in group])
        frame = group[int(np.where(np.isnan(energies), np.inf, energies).argmin())]
        if kind_of(frame) == "crystal":
            crystals.append(System(frame.numbers, frame.positions, frame.cell, frame.pbc))
    return crystals[:3]


def reference_phase(symbol: str) -> str | None:
    """The phase of ASE's reference state, or None where it is none of `PHASES`."""
    state = reference_states[Atoms(symbol).numbers[0]]
    phase = None if state is None else state["symmetry"]
    return phase if phase in PHASES else None


def expected_distance(symbol: str, phase: str) -> float:
    """A between nearest atoms, from the reference state or covalent radii; see BOND_EXPONENT."""
    number = Atoms(symbol).numbers[0]
    known = reference_phase(symbol)
    if known is None:
        # Radii are those of single bonds, of which an atom has few.
        distance, neighbors = 2.0 * float(COVALENT_RADII[number]), 4
    else:
        constant = float(reference_states[number]["a"])
        distance, neighbors = constant / lattice_constant(known, 1.0), PHASES[known]
    return distance * float((PHASES[phase] / neighbors) ** BOND_EXPONENT)


def lattice_constant(phase: str, distance: float) -> float:
    """Lattice constant in A of a distance between nearest atoms."""
    edges = {"fcc": 2**0.5, "hcp": 1.0, "bcc": 2 / 3**0.5, "sc": 1.0, "diamond": 4 / 3**0.5}
    return edges[phase] * distance


def ideal_crystal(symbol: str, phase: str, distance: float, cubic: bool = False) -> System:
    """Primitive or cubic cell with a distance (A) between nearest atoms."""
    ratio = {"covera": (8.0 / 3.0) ** 0.5} if phase == "hcp" else {}
    cubic = cubic and phase != "hcp"
    return _system(bulk(symbol, phase, a=lattice_constant(phase, distance), cubic=cubic, **ratio))


def phases_at_rest(symbol: str, probe: CrystalProbe) -> dict[str, Phase]:
    """Phases whose energy has a minimum, which is the one nearest to the expected distance."""
    expected = {phase: expected_distance(symbol, phase) for phase in PHASES}
    ratios = np.linspace(*SEARCHED, 53)
    cells = [ideal_crystal(symbol, p, d * x) for p, d in expected.items() for x in ratios]
    energies = probe.energies(cells).reshape(len(PHASES), -1)
    nearest: dict[str, Array] = {}
    for (phase, distance), row in zip(expected.items(), energies, strict=True):
        lower = (row[1:-1] <= row[:-2]) & (row[1:-1] < row[2:])
        minima = 1 + np.flatnonzero(lower)
        if len(minima):
            place = minima[np.abs(np.log(ratios[minima])).argmin()]
            nearest[phase] = distance * np.linspace(ratios[place - 1], ratios[place + 1], 15)
    if not nearest:
        return {}
    cells = [ideal_crystal(symbol, phase, x) for phase, row in nearest.items() for x in row]
    energies = probe.energies(cells).reshape(len(nearest), -1)
    phases = {}
    for (phase, distances), row in zip(nearest.items(), energies, strict=True):
        fit = np.polynomial.Polynomial.fit(distances, row, 4)
        fine = np.linspace(distances[0], distances[-1], 2001)
        distance = fine[fit(fine).argmin()]
        phases[phase] = Phase(phase, ideal_crystal(symbol, phase, distance), float(row.min()))
    return phases


def nearest_distance(crystal: System) -> float:
    """A between nearest atoms of a primitive cell."""
    atoms = Atoms(crystal.numbers, crystal.positions, cell=crystal.cell, pbc=True).repeat(3)
    distances = atoms.get_distances(0, range(1, len(atoms)), mic=True)
    return float(distances.min())


def lattice_curve(crystal: System, probe: CrystalProbe) -> tuple[Array, Array, Array]:
    """Lattice constants over that at rest, energies in eV an atom and pressures in GPa; (P,)."""
    fine = FINE * np.arange(round(SMALLEST / FINE), round(ENERGY_FROM / FINE))
    coarse = COARSE * np.arange(round(ENERGY_FROM / COARSE), round(LARGEST / COARSE) + 1)
    scales = np.round(np.concatenate([fine, coarse]), 3)
    cells = [with_cell(crystal, scale * crystal.cell) for scale in scales]
    results = probe.evaluate(cells)
    energies = np.array([result.energy for result in results]) / len(crystal)
    pressures = np.array(
        [
            float(np.trace(result.virial)) / 3.0 / abs(np.linalg.det(cell.cell)) / GPA
            for result, cell in zip(results, cells, strict=True)
        ]
    )
    return scales, energies, pressures


def supercell(symbol: str, reference: Phase) -> System:
    """A cell at least `BOX` wide of the reference phase, which is cubic where the phase is."""
    crystal = ideal_crystal(symbol, reference.name, nearest_distance(reference.crystal), True)
    return wide(crystal)


def wide(crystal: System) -> System:
    """A crystal repeated until it is at least `BOX` wide."""
    widths = 1.0 / np.linalg.norm(np.linalg.inv(crystal.cell), axis=0)
    counts = np.ceil(BOX / widths).astype(int)
    return _repeated(crystal, (int(counts[0]), int(counts[1]), int(counts[2])))


def _repeated(crystal: System, counts: tuple[int, int, int]) -> System:
    atoms = Atoms(crystal.numbers, crystal.positions, cell=crystal.cell, pbc=True)
    return _system(atoms.repeat(counts))


def _system(atoms: Atoms) -> System:
    return System(atoms.numbers, atoms.positions, cell=atoms.cell.array, pbc=atoms.pbc)


def elastic_tensor(crystal: System, probe: CrystalProbe) -> Array:
    """(6, 6) GPa in Voigt's order xx, yy, zz, yz, xz, xy; atoms relax in the strained cells.

    Args:
        crystal: at rest.
        probe: evaluates it.
    """
    places = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]
    cells = []
    for row, column in places:
        strain = np.zeros((3, 3))
        strain[row, column] += 0.5 * RELAXED_STRAIN
        strain[column, row] += 0.5 * RELAXED_STRAIN
        cells += [with_cell(crystal, crystal.cell @ (np.eye(3) + s * strain)) for s in (1, -1)]
    relaxed = probe.relax(cells, 1e-3, 500)
    stresses = np.array(
        [-r.result.virial / GPA / abs(np.linalg.det(r.system.cell)) for r in relaxed]
    )
    voigt = np.stack([stresses[:, row, column] for row, column in places], 1)
    return np.asarray((voigt[::2] - voigt[1::2]).T / (2.0 * RELAXED_STRAIN))


def slab(crystal: System, indices: tuple[int, int, int]) -> System:
    """A slab at least `SLAB` thick, which is cut where planes are farthest apart.

    Args:
        crystal: cubic cell.
        indices: of the surface.
    """
    atoms = Atoms(crystal.numbers, crystal.positions, cell=crystal.cell, pbc=True)
    one = surface(atoms, indices, 1)
    area = float(np.linalg.norm(np.cross(one.cell[0], one.cell[1])))
    period = len(one) * atoms.cell.volume / len(atoms) / area
    layers = surface(atoms, indices, math.ceil(SLAB / period) + 3, vacuum=1.0)
    heights = np.sort(layers.positions[:, 2])
    gaps = np.diff(heights)
    cuts = np.flatnonzero(gaps > gaps.max() - 1e-3)
    middles = heights[cuts] + 0.5 * gaps[cuts]
    bottom = middles[0]
    # Between the cuts lies the slab and half of each gap.
    top = middles[middles - bottom >= SLAB + gaps.max() - 1e-3][0]
    inside = (layers.positions[:, 2] > bottom) & (layers.positions[:, 2] < top)
    return System(
        layers.numbers[inside],
        layers.positions[inside],
        cell=layers.cell.array,
        pbc=np.array([True, True, False]),
    )


def phonon_frequencies(crystal: System, probe: CrystalProbe, count: int) -> Array:
    """(n, n, n, 3p) THz of p atoms a cell, imaginary ones negative, by finite differences.

    Wave vectors are i/n of the reciprocal vectors. A supercell of n cells a side is exact for
    them, whatever the range of the forces.

    Args:
        crystal: primitive cell at rest.
        probe: evaluates it.
        count: n.
    """
    basis = len(crystal)
    shape = (count, count, count)
    super_cell = _repeated(crystal, shape)
    cells = []
    for atom in range(basis):
        for axis in range(3):
            for sign in (1, -1):
                positions = super_cell.positions.copy()
                positions[atom, axis] += sign * STEP
                cells.append(super_cell.replace(positions=positions))
    forces = np.array([result.forces for result in probe.evaluate(cells)])
    constants = -(forces[::2] - forces[1::2]) / (2.0 * STEP)
    # ASE repeats the last cell vector fastest, and the atoms of a cell follow each other.
    constants = constants.reshape(3 * basis, *shape, 3 * basis)
    matrices = np.fft.fftn(constants, axes=(1, 2, 3)).transpose(1, 2, 3, 0, 4)
    masses = np.repeat(crystal.masses, 3)
    matrices = matrices / np.sqrt(masses[:, None] * masses)
    squares = np.linalg.eigvalsh(0.5 * (matrices + matrices.conj().swapaxes(-1, -2)))
    return np.asarray(np.sign(squares) * np.sqrt(np.abs(squares)) * _THZ)


def stacking_fault(
    symbol: str, distance: float, probe: CrystalProbe, shares: Sequence[float]
) -> Array:
    """(P,) mJ/m^2 of fcc planes that slip over each other by shares of a partial dislocation.

    Atoms keep their places, so a share of 1 is the intrinsic fault before it relaxes, and the
    highest value is the barrier.

    Args:
        symbol: of the element.
        distance: A between nearest atoms.
        probe: evaluates it.
        shares: 0 is the crystal.
    """
    constant = lattice_constant("fcc", distance)
    atoms = fcc111(symbol, (1, 1, _LAYERS), a=constant, vacuum=None)
    cell = np.array(atoms.cell.array)
    cell[2] = [0.0, 0.0, _LAYERS * constant / math.sqrt(3.0)]
    height = np.argsort(atoms.positions[:, 2])
    slip = (atoms.positions[height[1]] - atoms.positions[height[0]]) * [1.0, 1.0, 0.0]
    shifts = [slip + i * cell[0] + j * cell[1] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    slip = min(shifts, key=lambda shift: float(np.linalg.norm(shift)))
    systems = []
    for share in shares:
        faulted = cell.copy()
        faulted[2] += share * slip
        systems.append(System(atoms.numbers, atoms.positions, cell=faulted, pbc=np.full(3, True)))
    energies = np.array([result.energy for result in probe.evaluate(systems)])
    area = float(np.linalg.norm(np.cross(cell[0], cell[1])))
    return np.asarray((energies - energies[0]) / area * J_PER_M2 * 1e3)


@dataclass(frozen=True)
class Value:
    """A published number.

    Attributes:
        value: in the unit of its name.
        source: DOI of the paper, or what else names the publication.
    """

    value: float
    source: str


def _values(source: str, **numbers: float) -> dict[str, Value]:
    return {name: Value(number, source) for name, number in numbers.items()}


PUBLISHED: Final[dict[str, dict[str, Value]]] = {
    "Cu": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=169.0, C12_GPa=122.0, C44_GPa=75.3),
        **_values(_KITTEL, cohesion_eV=3.49),
        **_values(_ANGSTEN, vacancy_eV=1.07),
        **_values(
            _TRAN, surface_100_J_per_m2=1.47, surface_110_J_per_m2=1.56, surface_111_J_per_m2=1.31
        ),
        **_values(_LINDA, stacking_fault_mJ_per_m2=42.4),
        **_values(_SVENSSON, highest_THz=7.40),
    },
    "Si": {
        **_values(_CRC, C11_GPa=165.8, C12_GPa=63.9, C44_GPa=79.6),
        **_values(_KITTEL, cohesion_eV=4.63),
        **_values(_BARTOK, vacancy_eV=3.67),
        **_values(_EPJAP, surface_100_J_per_m2=2.28, surface_110_J_per_m2=1.70),
        **_values(_PARKER, highest_THz=15.60),
    },
    "Ge": {
        **_values(_CRC, C11_GPa=128.4, C12_GPa=48.2, C44_GPa=66.7),
        **_values(_KITTEL, cohesion_eV=3.85),
        **_values(_PARKER, highest_THz=9.01),
    },
    "Li": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=13.4, C12_GPa=11.3, C44_GPa=9.6),
        **_values(_KITTEL, cohesion_eV=1.63),
    },
    "Mo": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=465.0, C12_GPa=163.0, C44_GPa=109.0),
        **_values(_KITTEL, cohesion_eV=6.82),
        **_values(_MA, vacancy_eV=2.80),
        **_values(_TRAN, surface_100_J_per_m2=3.18, surface_110_J_per_m2=2.80),
    },
    "Ni": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=247.0, C12_GPa=153.0, C44_GPa=122.0),
        **_values(_KITTEL, cohesion_eV=4.44),
        **_values(_ANGSTEN, vacancy_eV=1.43),
        **_values(
            _TRAN, surface_100_J_per_m2=2.21, surface_110_J_per_m2=2.29, surface_111_J_per_m2=1.92
        ),
        **_values(_BIRGENEAU, highest_THz=8.88),
    },
}
"""By symbol: elastic constants, energy of cohesion and formation energy of a vacancy, surface
energies in J/m^2, energy of the intrinsic stacking fault in mJ/m^2 and the highest frequency of a
phonon. Elastic constants, cohesion and frequencies are measured, the rest is computed. What no
source could be read for is missing. Lattice constants of all elements come from ASE's reference
states, which are measured."""
