"""How far a fast evaluator lies from the reference, and how far it may.

The check is there for a wrong kernel, a wrong image, an unwritten buffer. Bounds are physical:
absolute where forces are small, as in the relaxed structures that people start from, and
relative to the forces where those are large. Rounding alone goes beyond them where a network
is steep, for atoms that nearly touch or far from its training set. There the reference in
float32 tells what rounding does on the same atoms, and a fast evaluator may err by some times
as much.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.precision import Precision
from mdgraph.state import State

SMALLEST_FORCE: Final = 1.0
"""eV/A; the RMS force component that errors of forces are compared with at least. In a perfect
crystal, or for an atom alone, forces vanish and the rounding of their parts does not; 300 K
stirs up 0.5 to 1 eV/A."""

OWN_FORCE: Final = 0.1
"""Share of the force on an atom that counts beside the RMS force. Rounding is relative: an
atom with a bad contact errs by more than all others."""

ROUNDING: Final = 10.0
"""How many times the error of the rounded reference is no disagreement. Fused forms were
measured to err by at most three times as much where that is large, and two of them differ by
up to twice that."""

TABLES: Final = 30.0
"""How many times the error of a table may exceed its tolerance. Tables of shipped and published
potentials have 0.9 to 1.02 times, as the tolerance is met at other distances."""

SHIFT: Final = 0.005
"""A, RMS of a coordinate's change in one of the two steps whose work is compared. Two do 3 meV
of work an atom against 20 eV/A^2, a thousand times what float32 energies may be rounded by."""

STRAIN: Final = 2e-3
"""Largest strain of such a step. Cells grow, so that searches planned for them stay good."""

HALF_PRECISION: Final = 32768.0
"""How many times the rounding of float32 that of `fast` is: float16 has 13 bits less, and its
tables are parabolas. On an H200 errors of forces were 500 to 200,000 times as large."""


@dataclass(frozen=True)
class Tolerance:
    """What a fast evaluator may err by before it is refused, over F.

    F is the RMS force component in eV/A, 1 at least.

    Attributes:
        force_rms: eV/A, RMS error of a force component.
        force_worst: eV/A, error of an atom's force, over F plus a tenth of its own force.
        energy: eV/atom, error of the energy.
        energy_worst: eV, largest error of an atom's energy.
        virial: eV/atom, largest error of a component of a virial.
        work: eV/atom, what energies may change otherwise than forces say.
        warning: share of these, but for the work, beyond which a warning is logged.
    """

    force_rms: float
    force_worst: float
    energy: float
    energy_worst: float
    virial: float
    work: float
    warning: float

    def times(self, factor: float) -> "Tolerance":
        """The same, wider."""
        figures = {name: factor * value for name, value in asdict(self).items()}
        return Tolerance(**figures | {"warning": self.warning})


_MIXED: Final = Tolerance(
    force_rms=2e-4,
    force_worst=5e-4,
    energy=5e-5,
    energy_worst=3e-4,
    virial=3e-4,
    work=1.3e-5,
    warning=0.2,
)

TOLERANCES: Final = {
    "mixed": _MIXED,
    "single": _MIXED.times(10.0),
    "double": _MIXED,
    "fast": Tolerance(2e-1, 3e-1, 3e-2, 1e-1, 3e-1, 3e-2, warning=0.02),
}
"""By precision. `docs/reliability.md` has what sound structures and planted faults measure.

In `mixed` a fault that changes the force on some atom by a thousandth of F (1e-3 eV/A at least)
lies beyond; what rounding and tables do, 2e-6 F RMS and 1e-5 F, lies far within, and even what
is warned of does. In a perfect crystal all atoms round alike: 5e-6 eV/atom in diamond and
2e-5 eV/atom of the virial in copper and tungsten.

`fast` is warned of where it errs by more than 4 meV/A RMS at F = 1 eV/A. On an H200, random
TensorNets on water erred by 1.2e-4 eV/A RMS; water-pbe0, in Triton's interpreter, by 1.4e-3,
7e-3 on the worst atom and 8e-5 eV/atom at F = 0.8; molecules far from what a potential was
trained on, but sound, by 1e-2 F and more."""


_WORK: Final = "eV/atom between its energies and the work of its forces and virial on all atoms"


@dataclass(frozen=True)
class Agreement:
    """Differences of a fast evaluator from the reference.

    Attributes:
        force_rms: eV/A, RMS difference of a force component.
        force_worst: eV/A, difference of the force on the atom that is worst beside its scale.
        worst_scale: eV/A, the scale of that atom: F, 1 eV/A at least, and a tenth of its force.
        force_scale: eV/A, RMS force component of the reference, F.
        force_atom: index in the state of that atom.
        energy: eV/atom, differences of the systems' energies without their signs, over all
            atoms.
        energy_worst: eV, largest difference of an atom's energy.
        energy_atom: index in the state of the atom where it is largest.
        virial: eV/atom, largest difference of a component of a system's virial, over its
            atoms.
        atoms: how many were compared.
        systems: how many systems these formed.
        how: which atoms, in words.
        works: by how many times shorter the steps were, and eV/atom by which the evaluator's
            energies changed otherwise than its forces and virial say, on all atoms; the work of
            a wrong force is in all of them. Empty where all atoms were compared anyway.
        tables: largest error of the evaluator's tables, over what they were made to err by.
    """

    force_rms: float
    force_worst: float
    worst_scale: float
    force_scale: float
    force_atom: int
    energy: float
    energy_worst: float
    energy_atom: int
    virial: float
    atoms: int
    systems: int
    how: str
    works: tuple[tuple[float, float], ...] = ()
    tables: float = 0.0

    @property
    def scale(self) -> float:
        """eV/A, F, where it counts 1 eV/A at least."""
        return max(self.force_scale, SMALLEST_FORCE)

    @property
    def relative_rms(self) -> float:
        """`force_rms` over F, 1 eV/A at least."""
        return self.force_rms / self.scale

    @property
    def relative_worst(self) -> float:
        """`force_worst` over the scale of its atom."""
        return self.force_worst / self.worst_scale

    def __str__(self) -> str:
        return (
            f"forces err by {self.force_rms:.1e} eV/A RMS and {self.force_worst:.1e} eV/A on the "
            f"worst atom, where their RMS is {self.force_scale:.2g} eV/A, and energies by "
            f"{self.energy:.0e} eV/atom ({self._compared})"
        )

    @property
    def _compared(self) -> str:
        return f"{self.atoms:,} atom{'s' * (self.atoms != 1)}, {self.how}"

    def including(
        self,
        origin: NDArray[np.int64],
        energies: Tensor,
        forces: tuple[Tensor, Tensor] | None = None,
        virials: Tensor | None = None,
    ) -> "Agreement":
        """A copy that includes further differences where they are larger; reads the device.

        Args:
            origin: (n,) index of each atom in the state.
            energies: (n,) eV, of atoms, without their signs.
            forces: differences (n, 3) eV/A of forces, and the forces (n, 3).
            virials: eV/atom, of systems.
        """
        whole = self
        # Not `value > known`: what is not a number must count as larger.
        energy, place = energies.max(0)
        if not float(energy) <= self.energy_worst:
            atom = int(origin[int(place)])
            whole = replace(whole, energy_worst=float(energy), energy_atom=atom)
        if forces is not None:
            worst, scale, place_of_worst = _worst(*forces, self.scale)
            if not worst / scale <= self.relative_worst:
                atom = int(origin[place_of_worst])
                whole = replace(whole, force_worst=worst, worst_scale=scale, force_atom=atom)
        if virials is not None and not float(virials.max()) <= self.virial:
            whole = replace(whole, virial=float(virials.max()))
        return whole

    def worse(self, other: "Agreement") -> "Agreement":
        """Whichever of two comparisons of the same atoms is nearer to being refused."""
        # Not `>`: what is not a number must count as worse.
        return self if not max(self._shares()) <= max(other._shares()) else other

    def _shares(self) -> list[float]:
        """Each figure over what it may be in `mixed`; infinite for what is not a number."""
        shares = [value / limit for value, limit, _ in self._figures(_MIXED)]
        return [share if np.isfinite(share) else np.inf for share in shares]

    def _figures(self, tolerance: Tolerance) -> list[tuple[float, float, str]]:
        """Each figure, what it may be, and its name in a sentence."""
        return [
            (
                self.force_worst,
                tolerance.force_worst * self.worst_scale,
                f"eV/A in the force on atom {self.force_atom}",
            ),
            (
                self.energy_worst,
                tolerance.energy_worst * self.scale,
                f"eV in the energy of atom {self.energy_atom}",
            ),
            (
                self.force_rms,
                tolerance.force_rms * self.scale,
                f"eV/A RMS in forces, most on atom {self.force_atom}",
            ),
            (
                self.energy,
                tolerance.energy * self.scale,
                f"eV/atom in the energy, most of atom {self.energy_atom}",
            ),
            (
                self.virial,
                tolerance.virial * self.scale,
                f"eV/atom in the virial, with forces most off on atom {self.force_atom}",
            ),
        ]

    def beyond(
        self, precision: Precision, share: float = 1.0, rounding: "Agreement | None" = None
    ) -> str | None:
        """The first figure beyond the tolerance of a precision, as a sentence's end, or None.

        Args:
            precision: of the fast evaluator.
            share: of the tolerance.
            rounding: what the reference, rounded, errs by on the same atoms.
        """
        factor = HALF_PRECISION if precision.reduced else ROUNDING
        tolerance = TOLERANCES[precision.name]
        usual = self._figures(_MIXED)
        steepness = rounding._shares() if rounding is not None else [0.0] * len(usual)
        figures = [
            (value, max(share * limit, factor * steep * mixed if np.isfinite(steep) else 0.0), name)
            for (value, limit, name), (_, mixed, _), steep in zip(
                self._figures(tolerance), usual, steepness, strict=True
            )
        ]
        figures.append((self.tables, TABLES, "times what its tables may err by"))
        works = [
            (work, max(tolerance.work * self.scale, factor * _rounded_work(rounding, part)), _WORK)
            for part, work in self.works
        ]
        # One length that fits is enough: longer steps truncate, and shorter ones only round.
        if works and not any(work <= allowed for work, allowed, _ in works):
            figures.append(works[0])
        for value, allowed, name in figures:
            # Not `value > allowed`: what is not a number must count as beyond.
            if not value <= allowed:
                return f"by {value:.2e} {name}, where {allowed:.1e} is allowed ({self._compared})"
        return None


def _rounded_work(rounding: Agreement | None, part: float) -> float:
    """eV/atom of work that is missing where results are rounded; steps are 1/part as long."""
    if rounding is None:
        return 0.0
    of_forces = 2.0 * (math.sqrt(3.0) * SHIFT * rounding.force_rms + STRAIN * rounding.virial)
    return part * rounding.energy + of_forces


def compare(fast: State, reference: State, origin: NDArray[np.int64], how: str) -> Agreement:
    """The differences between two states; reads the device.

    Args:
        fast: results of the fast evaluator, for the systems of the reference or several copies
            of them; the last copy is compared.
        reference: results of the reference.
        origin: (N,) index of each atom of the reference in the whole state.
        how: which atoms these are, in words.
    """
    group = reference.grouping
    forces, energies = fast.forces[-group.atoms :], fast.energies[-group.atoms :]
    totals, virials = fast.energy[-group.systems :], fast.virial[-group.systems :]
    exact = reference.forces.double()
    force = forces.double() - exact
    scale = float(exact.square().mean().sqrt())
    worst, worst_scale, atom = _worst(force, exact, max(scale, SMALLEST_FORCE))
    energy = (energies - reference.energies).abs()
    virial = (virials - reference.virial).abs().amax((-2, -1)) / group.counts
    return Agreement(
        force_rms=float(force.square().mean().sqrt()),
        force_worst=worst,
        worst_scale=worst_scale,
        force_scale=scale,
        force_atom=int(origin[atom]),
        energy=float((totals - reference.energy).abs().sum()) / group.atoms,
        energy_worst=float(energy.max()),
        energy_atom=int(origin[int(energy.argmax())]),
        virial=float(virial.max()),
        atoms=group.atoms,
        systems=group.systems,
        how=how,
    )


def _worst(differences: Tensor, forces: Tensor, scale: float) -> tuple[float, float, int]:
    """Length (eV/A), scale (eV/A) and place of the difference that is largest over its scale."""
    lengths = torch.linalg.vector_norm(differences.double(), dim=-1)
    # The scale of forces that are no numbers must not hide that.
    own = torch.linalg.vector_norm(forces.double(), dim=-1).nan_to_num(0.0, 0.0, 0.0)
    scales = scale + OWN_FORCE * own
    place = int((lengths / scales).argmax())
    return float(lengths[place]), float(scales[place]), place
