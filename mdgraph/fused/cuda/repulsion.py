"""Nuclear repulsion on CUDA: energies, forces and virials in one walk of a row.

E_i = 1/2 sum over j of s / d * sum of c exp(-b l d) * w(m d), the repulsion of
`mdgraph.models.repulsion`, in float64: at 0.3 A it is hundreds of eV.
"""

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import add_central, listed_vectors, put, put_central
from mdgraph.fused.weights import RepulsionWeights
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.neighbors import NeighborRows
from mdgraph.state import State


@triton.jit
def _window(u, ORDER: tl.constexpr):
    """w(u) and w'(u): cos^2(pi u / 2), or the polynomial that begins with 1 - u^ORDER."""
    if ORDER == 0:
        sine = tl.sin(1.5707963267948966 * u)
        cosine = tl.cos(1.5707963267948966 * u)
        value = cosine * cosine
        slope = sine * cosine * -3.141592653589793
    else:
        FIRST: tl.constexpr = (ORDER + 1) * (ORDER + 2) / 2
        power = u
        for _ in tl.static_range(ORDER - 2):
            power *= u
        rest = 1.0 - u
        inner = FIRST - u * (ORDER * (ORDER + 2) - u * (ORDER * (ORDER + 1) / 2))
        value = 1.0 - u * power * inner
        slope = power * rest * rest * (-ORDER * FIRST)
    return value, slope


@kernel
def repulsion_kernel(
    positions,
    cell,
    wrap,
    system,
    index,
    image,
    count,
    offsets,
    kinds,
    constants,
    exponentials,
    slot,
    energies,
    forces,
    virials,
    slots,
    elements,
    atoms,
    ORDER: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Adds the repulsion of an atom.

    The pairs within reach are looked for first. So none beyond it costs an exponential, and
    the order of sums does not depend on how many there are.

    Args:
        positions, cell, wrap, system, index, image, count, offsets: as in `edges_kernel`.
        kinds: (N,) int64, element of each atom among those at hand.
        constants, exponentials: (E, E, 4), (2, 4) float64, see `RepulsionWeights`.
        slot: (N, K) int32, the slots of the pairs within reach, written.
        energies: (N,) float64, eV, added to.
        forces: (N, 3), eV/A, added to.
        virials: (9, N) float64, eV, added to.
        slots: K.
        elements: E.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    own = constants + tl.load(kinds + atom) * elements * 4
    used = tl.load(count + atom)
    found = 0
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        place = atom * slots + here
        other, _r, distance = listed_vectors(
            positions, cell, wrap, system, index, image, offsets, atom, place, valid
        )
        reach = tl.load(own + tl.load(kinds + other) * 4 + 3)
        chosen = valid & (distance < reach)
        rank = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(slot + atom * slots + found + rank, here, mask=chosen)
        found += tl.sum(chosen.to(tl.int32), 0)
    # What one thread stored, another one reads.
    tl.debug_barrier()
    zero = tl.zeros([WIDTH], tl.float64)
    energy = zero
    sums = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, found, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < found
        place = atom * slots + tl.load(slot + atom * slots + here, mask=valid, other=0)
        other, r, distance = listed_vectors(
            positions, cell, wrap, system, index, image, offsets, atom, place, valid
        )
        pair = own + tl.load(kinds + other) * 4
        inverse = tl.load(pair + 1)
        fall = tl.load(pair + 2)
        screening, change = zero, zero
        for term in tl.static_range(4):
            rate = -inverse * tl.load(exponentials + 4 + term)
            part = tl.load(exponentials + term) * tl.exp(rate * distance)
            screening += part
            change += rate * part
        weight, slope = _window(fall * distance, ORDER)
        bare = tl.where(valid, tl.load(pair) / distance, 0.0)
        energy += bare * screening * weight
        slope = change * weight + screening * (fall * slope - weight / distance)
        sums = add_central(sums, bare * slope / distance, r)
    put(energies + atom, 0.5 * tl.sum(energy, 0), ADDED=True)
    put_central(forces, virials, atom, atoms, sums, ADDED=True)


WARP = 32
"""Pairs that a program takes at a time."""


@dataclass(frozen=True)
class BoundRepulsion:
    """A repulsion with its buffers for one state and one capacity of the list.

    Attributes:
        weights: of all species.
        constants: (E, E, 4), for the elements present.
        slot: (N, K) int32, slots of the pairs within reach.
    """

    weights: RepulsionWeights
    constants: Tensor
    slot: Tensor = field(repr=False)

    @classmethod
    def to(cls, weights: RepulsionWeights, rows: Tensor, pairs: NeighborRows) -> "BoundRepulsion":
        """Allocates for elements in rows (E,) int64 of the species tables."""
        slot = torch.zeros_like(pairs.index, dtype=torch.int32)
        return cls(weights, weights.of_elements(rows), slot)

    def fits(self, pairs: NeighborRows) -> bool:
        """Whether the buffer has the capacity of this list."""
        return self.slot.shape[1] == pairs.capacity

    def add(
        self,
        state: State,
        atoms: int,
        pairs: NeighborRows,
        result: NetworkResult,
        launch: dict[str, bool],
    ) -> None:
        """Adds energies, forces and virials to the result; does not sync.

        Args:
            state: positions and cells.
            atoms: number of rows that are evaluated.
            pairs: neighbor list of the repulsion.
            result: buffers that are added to.
            launch: options of the launch.
        """
        repulsion_kernel[(atoms,)](
            state.positions,
            state.cell,
            pairs.wrap,
            state.grouping.index,
            pairs.index,
            pairs.image,
            pairs.count,
            pairs.offsets,
            state.kinds,
            self.constants,
            self.weights.exponentials,
            self.slot,
            result.energies,
            result.forces,
            result.virials,
            pairs.capacity,
            len(state.elements),
            len(state.numbers),
            ORDER=self.weights.order,
            WIDTH=WARP,
            num_warps=1,
            **launch,
        )
