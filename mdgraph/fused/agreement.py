"""How far a fast evaluator lies from the reference, and how far it may."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.errors import SelfCheckError
from mdgraph.precision import Precision
from mdgraph.state import State

SMALLEST_FORCE: Final = 0.3
"""eV/A; what a force error is compared with at least. In a perfect crystal, or for an atom
alone, forces vanish and the rounding of their parts does not; 300 K stirs up 0.5 to 1 eV/A."""


@dataclass(frozen=True)
class Tolerance:
    """What rounding and tables may change.

    Attributes:
        force_rms: RMS error of a force component over F, the RMS force component.
        force_worst: largest error of an atom's force over F.
        energy: eV/atom, error of the energy.
        energy_worst: eV, largest error of an atom's energy; also what counts for the whole
            of few atoms, over the square root of their number.
    """

    force_rms: float
    force_worst: float
    energy: float
    energy_worst: float


TOLERANCES: Final = {
    "mixed": Tolerance(1e-5, 1e-4, 3e-6, 1e-5),
    "single": Tolerance(1e-4, 1e-3, 1e-5, 1e-4),
    "double": Tolerance(1e-5, 1e-4, 3e-6, 1e-5),
    "fast": Tolerance(4e-3, 4e-2, 3e-3, 1e-2),
}
"""By precision. The rounding of a float32 network alone was measured up to 3.5e-6 F RMS and
1.4e-5 F, and 2.8e-6 eV on an atom (`mixed` by autograd, potentials of MatGL, AceFF and
TorchMD-Net); what the atoms of a perfect crystal err by beside is below.

`fast` may err by twice 2 meV/A RMS where F is 1 eV/A. On an H200, random TensorNets on water
erred by 1.2e-4 eV/A RMS, 5.4e-4 eV/A on the worst atom and 8e-6 eV/atom. F was 0.02 eV/A there
and counts as 0.3: 4e-4 and 1.8e-3 of that. Errors grow with a network's weights: water-pbe0,
in Triton's interpreter, erred by 1.4e-3 eV/A RMS, 7e-3 eV/A on the worst atom and 8e-5 eV/atom
at F = 0.8, and with weights by AdamW by a quarter of that."""


_ALIKE: Final = 1e-5
"""eV/atom that energies, and the work between two of them, may miss beside. Those of a perfect
crystal all round alike, and no longer once its atoms have moved: 4.9e-6 in diamond, work 2.9e-6
in copper, by potentials of MatGL, where water missed 1e-7. Forces three times too large miss
1e-2."""

_ALIKE_VIRIAL: Final = 5e-5
"""eV/atom that a virial may miss beside, for the same reason: 2.0e-5 in copper by the potential
that comes with mdgraph and 1.8e-5 in tungsten by one of MatGL, where rattled ones missed 2e-6."""


@dataclass(frozen=True)
class Agreement:
    """Differences of a fast evaluator from the reference.

    Attributes:
        force_rms: eV/A, RMS difference of a force component.
        force_worst: eV/A, largest difference of an atom's force.
        force_scale: eV/A, RMS force component of the reference, F.
        force_atom: index in the state of the atom where it is largest.
        energy: eV/atom, differences of the systems' energies without their signs, over all
            atoms.
        energy_worst: eV, largest difference of an atom's energy.
        energy_atom: index in the state of the atom where it is largest.
        virial: eV/atom, largest difference of a component of a system's virial, over its
            atoms.
        atoms: how many were compared.
        systems: how many systems these formed.
        how: which atoms, in words.
        work: eV/atom by which the evaluator's energies change otherwise than its forces and
            virial say, on all atoms; 0 where all were compared anyway.
    """

    force_rms: float
    force_worst: float
    force_scale: float
    force_atom: int
    energy: float
    energy_worst: float
    energy_atom: int
    virial: float
    atoms: int
    systems: int
    how: str
    work: float = 0.0

    @property
    def relative_rms(self) -> float:
        """`force_rms` over F, where F counts 0.3 eV/A at least."""
        return self.force_rms / max(self.force_scale, SMALLEST_FORCE)

    @property
    def relative_worst(self) -> float:
        """`force_worst` over F, where F counts 0.3 eV/A at least."""
        return self.force_worst / max(self.force_scale, SMALLEST_FORCE)

    @property
    def _compared(self) -> str:
        return f"{self.atoms:,} atom{'s' * (self.atoms != 1)}, {self.how}"

    def __str__(self) -> str:
        return (
            f"forces within {self.relative_worst:.1e} of their RMS, energies within "
            f"{self.energy:.0e} eV/atom ({self._compared})"
        )

    @property
    def measured(self) -> str:
        """Errors of a precision that rounds, absolute and relative."""
        return (
            f"forces err by {1e3 * self.force_rms:.2g} meV/A RMS and {1e3 * self.force_worst:.2g} "
            f"meV/A on the worst atom, {self.relative_rms:.1e} and {self.relative_worst:.1e} of "
            f"their RMS ({SMALLEST_FORCE} eV/A at least), and energies by {self.energy:.0e} "
            f"eV/atom ({self._compared})"
        )

    def including(
        self,
        origin: NDArray[np.int64],
        energies: Tensor,
        forces: Tensor | None = None,
        virials: Tensor | None = None,
    ) -> "Agreement":
        """With further differences counted in where they are larger; reads the device.

        Args:
            origin: (n,) the index by which each atom is called.
            energies: (n,) eV, of atoms, without their signs.
            forces: (n,) eV/A, lengths.
            virials: eV/atom, of systems.
        """
        found = self
        # Not `value > known`: what is not a number must count as larger.
        energy, place = energies.max(0)
        if not float(energy) <= self.energy_worst:
            atom = int(origin[int(place)])
            found = replace(found, energy_worst=float(energy), energy_atom=atom)
        if forces is not None:
            force, place = forces.max(0)
            if not float(force) <= self.force_worst:
                atom = int(origin[int(place)])
                found = replace(found, force_worst=float(force), force_atom=atom)
        if virials is not None and not float(virials.max()) <= self.virial:
            found = replace(found, virial=float(virials.max()))
        return found

    def check(self, precision: Precision, cutoff: float) -> None:
        """Raises SelfCheckError where a difference is beyond the tolerance of a precision.

        A virial may err by what forces may on average, times the cutoff (A), an atom, beside
        what atoms that are alike err by together.
        """
        allowed = TOLERANCES[precision.name]
        scale = max(self.force_scale, SMALLEST_FORCE)
        few = allowed.energy_worst / math.sqrt(self.atoms / self.systems)
        force = f"eV/A in the force on atom {self.force_atom}"
        rms = f"eV/A RMS in forces, most on atom {self.force_atom}"
        energy = f"eV in the energy of atom {self.energy_atom}"
        mean = f"eV/atom in the energy, most of atom {self.energy_atom}"
        virial = f"eV/atom in the virial, with forces most off on atom {self.force_atom}"
        work = "eV/atom between its energies and the work of its forces and virial on all atoms"
        found = [
            (self.force_worst, allowed.force_worst * scale, force),
            (self.energy_worst, allowed.energy_worst, energy),
            (self.force_rms, allowed.force_rms * scale, rms),
            (self.energy, max(allowed.energy, few) + _ALIKE, mean),
            (self.virial, allowed.force_rms * scale * cutoff + _ALIKE_VIRIAL, virial),
            (self.work, max(allowed.energy, few) + _ALIKE, work),
        ]
        # Not `value > limit`: what is not a number must count as beyond.
        beyond = [one for one in found if not one[0] <= one[1]]
        if beyond:
            value, limit, where = beyond[0]
            advice = (
                "run with --precision mixed (precision='mixed' in Python)."
                if precision.reduced
                else "run with --evaluator reference (evaluator='reference' in Python), and "
                "report the potential and the structure."
            )
            raise SelfCheckError(
                f"The fast evaluator differs from the reference by {value:.2e} {where}, where "
                f"{limit:.1e} is allowed ({self._compared}); {advice}"
            )


def compare(found: State, reference: State, origin: NDArray[np.int64], how: str) -> Agreement:
    """Differences between two states of the same systems; reads the device.

    Args:
        found: what the fast evaluator wrote.
        reference: what the reference wrote.
        origin: (N,) the index by which each atom is called.
        how: which atoms these are.
    """
    group = reference.grouping
    exact = reference.forces.double()
    force = found.forces.double() - exact
    length = torch.linalg.vector_norm(force, dim=-1)
    energy = (found.energies - reference.energies).abs()
    counts = group.counts
    virial = (found.virial - reference.virial).abs().amax((-2, -1)) / counts
    return Agreement(
        force_rms=float(force.square().mean().sqrt()),
        force_worst=float(length.max()),
        force_scale=float(exact.square().mean().sqrt()),
        force_atom=int(origin[int(length.argmax())]),
        energy=float((found.energy - reference.energy).abs().sum()) / group.atoms,
        energy_worst=float(energy.max()),
        energy_atom=int(origin[int(energy.argmax())]),
        virial=float(virial.max()),
        atoms=group.atoms,
        systems=group.systems,
        how=how,
    )
