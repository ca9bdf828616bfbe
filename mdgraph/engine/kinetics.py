"""Kinetic energy, temperature and pressure of a state, and deformations of its cells."""

import math
from collections.abc import Sequence
from itertools import compress
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.errors import InputError, printable
from mdgraph.gpu import launch
from mdgraph.neighbors.geometry import complete_cell, inverse
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN, KINETIC_ENERGY


def kinetic_energy(state: State, velocities: Tensor | None = None) -> Tensor:
    """Kinetic energy (S,) float64 in eV; does not sync.

    Args:
        state: masses, and velocities unless given.
        velocities: (N, 3) A/fs; default: those of the state.
    """
    velocities = state.velocities if velocities is None else velocities
    if launch.step_kernels_on(state.device):
        from mdgraph.engine.kernels import reductions as sums

        return sums.kinetic_energy(state, velocities)
    per_atom = state.masses.double() * velocities.double().square().sum(-1)
    return 0.5 * KINETIC_ENERGY * state.sum(per_atom)


def energy_of_end(state: State, timestep: Tensor) -> Tensor:
    """Total energy (S,) float64, eV, at the end of a step whose velocities are of its middle.

    Does not sync.

    Args:
        state: with forces at the end of the step.
        timestep: (S,) float64, fs.
    """
    half = 0.5 * ACCELERATION * state.of_atoms(timestep)
    velocities = state.velocities + half * state.inverse_masses[:, None] * state.forces
    return state.energy + kinetic_energy(state, velocities)


def kinetic_tensor(state: State) -> Tensor:
    """Sum of m v (x) v over atoms, (S, 3, 3) float64 in eV; its trace is 2K. Does not sync."""
    if launch.step_kernels_on(state.device):
        from mdgraph.engine.kernels import reductions as sums

        return sums.kinetic_tensor(state)
    velocities = state.velocities.double()
    weighted = state.masses.double()[:, None] * velocities
    return KINETIC_ENERGY * state.sum(weighted[:, :, None] * velocities[:, None])


def volume(state: State) -> Tensor:
    """Volume (S,) float64 in A^3; 0 if the cell vectors do not span one. Does not sync."""
    first, second, third = state.cell.double().unbind(-2)
    return (torch.linalg.cross(first, second) * third).sum(-1).abs()


def pressure(state: State, kinetic: Tensor) -> Tensor:
    """P = (2K + trace W) / 3V, (S,) float64 in eV/A^3; NaN if the volume is 0. Does not sync.

    Args:
        state: virial W and cell, for the volume V.
        kinetic: kinetic energy K, (S,) eV.
    """
    volumes = volume(state)
    numerator = 2.0 * kinetic + state.virial.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.where(volumes > 0.0, numerator / (3.0 * volumes), torch.nan)


def remove_momentum_(state: State, due: Tensor | None = None, heat: Tensor | None = None) -> None:
    """Subtracts the velocity of the centre of mass of each system; does not sync.

    Args:
        state: its velocities are changed in place.
        due: () bool on the device; if false, nothing changes. Default: true.
        heat: (N,) float64, eV, to which what each atom's kinetic energy gains is added.
    """
    due = torch.ones((), dtype=torch.bool, device=state.device) if due is None else due
    if launch.step_kernels_on(state.device):
        from mdgraph.engine.kernels import reductions as sums

        sums.remove_momentum_(state, due, heat)
        return
    masses = state.masses.double()[:, None]
    before = state.velocities.double().square().sum(1)
    drift = state.sum(masses * state.velocities.double()) / state.sum(masses)
    state.velocities -= state.grouping.spread(drift * due).to(state.dtype)
    if heat is not None:
        gained = state.velocities.double().square().sum(1) - before
        heat.addcmul_(masses[:, 0], gained, value=0.5 * KINETIC_ENERGY)


def temperature(energy: Tensor, degrees: Tensor) -> Tensor:
    """Temperature (S,) in K from kinetic energy (S,) eV; 0 for 0 degrees of freedom."""
    return torch.where(degrees > 0, 2.0 * energy / (BOLTZMANN * degrees.clamp(min=1.0)), 0.0)


LARGEST_STRAIN = 0.2
"""Limit of the strain of one step, met only far from equilibrium; keeps the cell from inverting."""


WIDEST_GAP: Final = 8.0
"""A, along z, of a structure whose z may vary; a wider one is a vacuum, which pressure closes."""

CELL_DOF: Final = {
    "isotropic": 1,
    "semiisotropic": 2,
    "semiisotropic-fixed-z": 1,
    "axes": 3,
    "full": 6,
}
"""Number of independent strains by the word for them."""

_FLAT: Final = 1e-6
"""Part of a vector of a cell that may lie off the xy plane."""


class Deformation:
    """Strains by which a barostat changes a cell, without rotating it.

    `isotropic` scales all three vectors by one factor, so the shape stays. `semiisotropic`
    scales x and y by one factor and z by another, for membranes and interfaces in the xy plane,
    in which the first two vectors lie; `semiisotropic-fixed-z` scales x and y alone, for slabs
    in a vacuum. `axes` scales chosen vectors, each by its own factor, so the angles between them
    stay. `full` is any symmetric strain, for solids: a liquid does not resist shear, and its
    cell would drift to any shape.

    A strain S changes cell, positions and velocities (rows are vectors) to h F, x F and v F^-T
    with F = exp(S), so dx dv keeps its measure.

    Attributes:
        cell_dof: a word of `CELL_DOF`.
        axes: the choice for `axes`, or None for all periodic vectors.
        count: number of independent strains, 1, 2, 3 or 6.
        varies: (S, 3) bool, cell vectors that may change; set by `allocate`.
    """

    def __init__(self, cell_dof: str, axes: Sequence[bool] | None = None) -> None:
        """Checks the choice.

        Args:
            cell_dof: `isotropic`, `semiisotropic`, `semiisotropic-fixed-z`, `axes` or `full`.
            axes: three bool, which cell vectors change their length; only for `axes`. Default:
                all periodic vectors.

        Raises:
            InputError: unknown `cell_dof`, or `axes` without any true value or not applicable.
        """
        if not isinstance(cell_dof, str) or cell_dof not in CELL_DOF:
            *words, last = CELL_DOF
            raise InputError(
                f"A cell cannot vary '{cell_dof}'; choose {', '.join(words)} or {last}."
            )
        choice = None if axes is None else np.asarray(axes)
        if choice is not None and (
            cell_dof != "axes" or choice.shape != (3,) or choice.dtype != bool or not choice.any()
        ):
            raise InputError(
                f"The axes {printable(axes, 100)} cannot vary; choose 'axes' and give three "
                "truth values, at least one of them true."
            )
        self.cell_dof = cell_dof
        self.axes = None if choice is None else tuple(choice.tolist())
        self.count = CELL_DOF[cell_dof]

    def allocate(self, state: State) -> None:
        """Checks the cells and sets `varies`; syncs.

        Raises:
            InputError: a direction that may change is not periodic, or a cell has no volume;
                of `semiisotropic`, a cell whose first two vectors leave the xy plane, or a gap
                along z above `WIDEST_GAP`.
        """
        pbc = state.pbc.cpu()
        if not bool(pbc.any(1).all()):
            raise InputError(
                "A system has no periodic direction, so no cell that pressure could change; leave "
                "the change of the cell out for it, or make it periodic."
            )
        if self.axes is None and self.cell_dof == "axes":
            varies = pbc
        elif self.cell_dof == "semiisotropic-fixed-z":
            varies = torch.tensor((True, True, False)).expand_as(pbc)
        else:
            varies = torch.tensor(self.axes or (True,) * 3).expand_as(pbc)
        if not bool((pbc | ~varies).all()) or not bool(varies.any(1).all()):
            raise InputError(
                "Pressure acts along periodic directions alone, and a system has others; "
                "let the cell vary along 'axes' that are periodic, or, of a slab, "
                "'semiisotropic-fixed-z'."
            )
        if not bool((torch.linalg.matrix_rank(state.cell.double()) == 3).all()):
            raise InputError(
                "Pressure needs a volume, and a cell has no three independent vectors; "
                "give it a vector along the direction that is not periodic."
            )
        if self.cell_dof.startswith("semiisotropic"):
            _check_flat(state)
        if self.cell_dof == "semiisotropic" and state.ranks is None:
            _check_gap(state)
        self.varies = varies.contiguous().to(state.device)
        self._basis = _basis(self.cell_dof).to(state.device)

    def settings(self) -> dict[str, float | str | list[float]]:
        """Settings for `run.json` and restart files."""
        axes = "all" if self.axes is None else "".join(compress("abc", self.axes))
        return {"cell_varies": self.cell_dof, "axes": axes}

    def forces(self, state: State, work: Tensor) -> Tensor:
        """Forces (S, count) on the strains; does not sync.

        Args:
            state: cells.
            work: (S, 3, 3) eV, symmetric, force on each component of a strain.
        """
        if self.cell_dof == "axes":
            cell = complete_cell(state.cell.double(), state.pbc)
            along = (cell @ work @ inverse(cell)).diagonal(dim1=-2, dim2=-1)
            return torch.where(self.varies, along, 0.0)
        return (work[:, None] * self._basis).sum((-2, -1))

    def apply_(self, state: State, strains: Tensor, velocities: Tensor | None = None) -> None:
        """Deforms cells, positions and velocities in place; does not sync.

        Args:
            state: its cells and positions are changed.
            strains: (S, count), clamped to `LARGEST_STRAIN`.
            velocities: (N, 3) A/fs, changed too if given.
        """
        factor = self._factor(state, strains.clamp(-LARGEST_STRAIN, LARGEST_STRAIN))
        state.cell.copy_(state.cell.double() @ factor)
        state.positions.copy_(_times(state, state.positions, factor))
        if velocities is not None:
            velocities.copy_(_times(state, velocities, inverse(factor).transpose(-2, -1)))

    def _factor(self, state: State, strains: Tensor) -> Tensor:
        """F = exp(S), (S, 3, 3) float64."""
        if self.cell_dof == "isotropic":
            return torch.diag_embed(torch.exp(strains / 3.0).expand(-1, 3))
        if self.cell_dof.startswith("semiisotropic"):
            diagonal = self._basis.diagonal(dim1=-2, dim2=-1)
            return torch.diag_embed(torch.exp((strains[..., None] * diagonal).sum(1)))
        if self.cell_dof == "axes":
            cell = complete_cell(state.cell.double(), state.pbc)
            stretch = torch.exp(torch.where(self.varies, strains, 0.0))
            return inverse(cell) @ (stretch[..., None] * cell)
        strain = (strains[..., None, None] * self._basis).sum(1)
        # To fourth order; cell, positions and velocities all use the same truncated F.
        factor = identity = torch.eye(3, dtype=strain.dtype, device=strain.device)
        for order in (4, 3, 2, 1):
            factor = identity + strain @ factor / order
        return factor


def enthalpy_work(state: State, pressure: Tensor) -> Tensor:
    """Force (S, 3, 3) eV on each component of a strain from the enthalpy U + P V; does not sync.

    Args:
        state: virial and cells.
        pressure: external pressure P, (S,) eV/A^3.
    """
    virial = 0.5 * (state.virial + state.virial.transpose(-2, -1))
    return virial - torch.diag_embed((pressure * volume(state))[:, None].expand(-1, 3))


def _check_flat(state: State) -> None:
    """Raises InputError where a first or second cell vector leaves the xy plane; syncs."""
    vectors = state.cell.double().cpu()[:, :2]
    off = vectors[..., 2].abs() > _FLAT * torch.linalg.vector_norm(vectors, dim=-1)
    if bool(off.any()):
        raise InputError(
            "x and y scale together where the first two cell vectors lie in the xy plane, and a "
            "cell has others; turn the structure, or choose another coupling of the cell."
        )


def _check_gap(state: State) -> None:
    """Raises InputError where no atom lies in a slice along z above `WIDEST_GAP`; syncs."""
    heights = state.cell[:, 2, 2].double().cpu()
    places = state.positions[:, 2].double().cpu()
    systems = state.grouping.index.cpu()
    for system, height in enumerate(heights.abs().tolist()):
        z = (places[systems == system] % height).sort().values
        gap = float(torch.diff(z, append=z[:1] + height).max())
        if gap > WIDEST_GAP:
            raise InputError(
                f"The structure has a gap of {gap:.1f} A along z, above {WIDEST_GAP:g} A, which "
                "pressure along z would close; choose semiisotropic-fixed-z, which scales x and "
                "y together and keeps z."
            )


def _basis(cell_dof: str) -> Tensor:
    """Unit strains (count, 3, 3) float64; orthonormal but for `isotropic`, of trace 1."""
    identity = torch.eye(3, dtype=torch.float64)
    if cell_dof.startswith("semiisotropic"):
        flat = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)) / math.sqrt(2.0)
        along = torch.diag(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
        return torch.stack([flat, along])[: CELL_DOF[cell_dof]]
    if cell_dof != "full":
        return identity[None] / 3.0
    pairs = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]
    units = [identity[:, a, None] * identity[None, :, b] for a, b in pairs]
    symmetric = [unit + unit.T for unit in units]
    return torch.stack([strain / strain.norm() for strain in symmetric])


def _times(state: State, vectors: Tensor, matrices: Tensor) -> Tensor:
    """Rows (N, 3) times the matrix (S, 3, 3) of their system, in float64; does not sync."""
    # Not a matrix product, which may run in TF32 if the process allows it.
    own = matrices if state.grouping.systems == 1 else matrices[state.grouping.index]
    return (vectors[:, :, None] * own).sum(1)
