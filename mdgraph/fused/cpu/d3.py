"""FusedD3 and its kernels: DFT-D3 in passes over lists; `mdgraph.models.d3` has equations.

Distances are in A, and all constants are converted to A and eV before. The passes are

1. CN_i, and from it w_ia, u_ieb = sum_a w_ia C_ab for each element e, and derivatives by CN_i;
2. C_ij = sum_b u_ib w_jb, energies, forces at constant C_ij, and dE/dCN_i;
3. with a three-body term, what triples add to these, seen from each of their corners;
4. forces by the chain rule, (dE/dCN_i + dE/dCN_j) dCN/dr.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from mdgraph.fused.cpu import packing
from mdgraph.fused.cpu.arrays import Integers, Numbers
from mdgraph.fused.cpu.embedding import add_systems, vector_to
from mdgraph.fused.cpu.simd import Work, kernel, routine, run
from mdgraph.fused.d3 import D3Evaluator
from mdgraph.models.d3 import (
    BOHR,
    HARTREE,
    STEEPNESS,
    THREE_BODY_EXPONENT,
    THREE_BODY_RADIUS,
    WIDTH,
)
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


class D3Arrays(NamedTuple):
    """Constants of the E elements of a state, with R references each.

    Attributes:
        c6: (E, E, R, R) float64, eV A^6.
        references: (E, R) float64, coordination numbers; negative for none.
        reach: (E, E) float64, A, r_ij.
        damping: (E, E, 4) float64, s6, 3 s8 q_i q_j in A^2, f^6 in A^6, f^8 in A^8.
        cutoff, switch, coordination_cutoff, coordination_switch: A.
        steepness, width: of the count of neighbors, and of the weights.
        triple_reach: (E, E) float64, A, R_ij.
        triple_cutoff, triple_switch: A.
        triple_strength: s9 over the root of a Hartree in eV, as C6 are in eV A^6.
    """

    c6: Numbers
    references: Numbers
    reach: Numbers
    damping: Numbers
    cutoff: float
    switch: float
    coordination_cutoff: float
    coordination_switch: float
    steepness: float
    width: float
    triple_reach: Numbers
    triple_cutoff: float
    triple_switch: float
    triple_strength: float


class D3Buffers(NamedTuple):
    """What the passes write.

    Attributes:
        kinds: (N,) int64, element of each atom; read.
        weights, changes: (N, R) float64, w and its derivative by CN_i.
        own, slopes: (N, E, R) float64, u and its derivative, eV A^6.
        by_coordination: (N,) float64, eV, dE/dCN_i.
        energies: (N,) float64, eV.
        forces: (N, 3) float64, eV/A.
        virials: (9, N) float64, eV.
    """

    kinds: Integers
    weights: Numbers
    changes: Numbers
    own: Numbers
    slopes: Numbers
    by_coordination: Numbers
    energies: Numbers
    forces: Numbers
    virials: Numbers


@routine
def _switch(distance, cutoff, width):
    """S(r) and its slope."""
    u = distance - (cutoff - width)
    if u <= 0.0:
        return 1.0, 0.0
    u /= width
    rest = 1.0 - u
    value = 1.0 - u * u * u * (10.0 - u * (15.0 - 6.0 * u))
    return value, -30.0 * u * u * rest * rest / width


@routine
def _count(distance, reach, d3):
    """A neighbor's part of CN, and its slope."""
    count = 1.0 / (1.0 + math.exp(-d3.steepness * (reach / distance - 1.0)))
    slope = -count * (1.0 - count) * d3.steepness * reach / (distance * distance)
    value, fall = _switch(distance, d3.coordination_cutoff, d3.coordination_switch)
    return count * value, slope * value + count * fall


@routine
def _add(buffers, atom, force, products):
    """Adds a force, and half of the sums of pull times the products of components."""
    for row in range(3):
        buffers.forces[atom, row] += force[row]
    for component in range(9):
        buffers.virials[component, atom] -= 0.5 * products[component]


@kernel
def coordinate(first, last, listed, d3, buffers):
    """Pass 1 for atoms [first, last); writes weights, own and their derivatives."""
    vector = np.empty(3)
    elements, references = d3.references.shape
    end = d3.coordination_cutoff**2
    for i in range(first, last):
        kind, coordination = buffers.kinds[i], 0.0
        for slot in range(listed.counts[i]):
            square = vector_to(listed, i, slot, vector)
            # A distance that is no finite number stays in, and shows.
            if end <= square < math.inf:
                continue
            distance = math.sqrt(square)
            reach = d3.reach[kind, buffers.kinds[listed.neighbor[i, slot]]]
            coordination += _count(distance, reach, d3)[0]
        largest = -math.inf
        for a in range(references):
            if d3.references[kind, a] >= 0.0:
                from_reference = coordination - d3.references[kind, a]
                largest = max(largest, -d3.width * from_reference * from_reference)
        norm, mean = 0.0, 0.0
        for a in range(references):
            weight = 0.0
            from_reference = coordination - d3.references[kind, a]
            if d3.references[kind, a] >= 0.0:
                weight = math.exp(-d3.width * from_reference * from_reference - largest)
            buffers.weights[i, a] = weight
            norm += weight
            mean += weight * from_reference
        mean /= norm
        for a in range(references):
            weight = buffers.weights[i, a] / norm
            from_reference = coordination - d3.references[kind, a]
            buffers.weights[i, a] = weight
            buffers.changes[i, a] = -2.0 * d3.width * weight * (from_reference - mean)
        for element in range(elements):
            for b in range(references):
                own, slope = 0.0, 0.0
                for a in range(references):
                    own += buffers.weights[i, a] * d3.c6[kind, element, a, b]
                    slope += buffers.changes[i, a] * d3.c6[kind, element, a, b]
                buffers.own[i, element, b] = own
                buffers.slopes[i, element, b] = slope


@kernel
def disperse(first, last, listed, d3, buffers):
    """Pass 2 for atoms [first, last); writes energies, forces, virials and dE/dCN."""
    vector = np.empty(3)
    references = d3.references.shape[1]
    begin, end = (d3.cutoff - d3.switch) ** 2, d3.cutoff**2
    for i in range(first, last):
        kind = buffers.kinds[i]
        fx = fy = fz = xx = yy = zz = xy = xz = yz = 0.0
        energy, by_coordination = 0.0, 0.0
        for slot in range(listed.counts[i]):
            square = vector_to(listed, i, slot, vector)
            if end <= square < math.inf:
                continue
            j = listed.neighbor[i, slot]
            other = buffers.kinds[j]
            c6, change = 0.0, 0.0
            for b in range(references):
                c6 += buffers.own[i, other, b] * buffers.weights[j, b]
                change += buffers.slopes[i, other, b] * buffers.weights[j, b]
            sixth, eighth = d3.damping[kind, other, 0], d3.damping[kind, other, 1]
            fourth = square * square
            first_part = 1.0 / (fourth * square + d3.damping[kind, other, 2])
            second_part = 1.0 / (fourth * fourth + d3.damping[kind, other, 3])
            sixth *= first_part
            eighth *= second_part
            bare = -(sixth + eighth)
            # Over the distance.
            slope = fourth * (6.0 * sixth * first_part + 8.0 * square * eighth * second_part)
            if square > begin:
                distance = math.sqrt(square)
                value, fall = _switch(distance, d3.cutoff, d3.switch)
                slope = slope * value + bare * fall / distance
                bare *= value
            energy += 0.5 * c6 * bare
            by_coordination += change * bare
            pull = c6 * slope
            x, y, z = vector[0], vector[1], vector[2]
            fx += pull * x
            fy += pull * y
            fz += pull * z
            xx += pull * x * x
            yy += pull * y * y
            zz += pull * z * z
            xy += pull * x * y
            xz += pull * x * z
            yz += pull * y * z
        buffers.energies[i] = energy
        buffers.by_coordination[i] = by_coordination
        buffers.forces[i] = 0.0
        buffers.virials[:, i] = 0.0
        _add(buffers, i, (fx, fy, fz), (xx, xy, xz, xy, yy, yz, xz, yz, zz))


_NEAR: Final = 9
"""Numbers of a neighbor in `triple`: vector, square, damping, S, S'/2r, C6 and its change."""


@kernel
def triple(first, last, listed, d3, buffers):
    """Pass 3 for atoms [first, last); adds to energies, forces, virials and dE/dCN."""
    vector = np.empty(3)
    references = d3.references.shape[1]
    end = d3.triple_cutoff**2
    slots = listed.neighbor.shape[1]
    near, others = np.empty((slots, _NEAR)), np.empty(slots, np.int64)
    sums = np.empty((slots, 2))
    for i in range(first, last):
        kind, found = buffers.kinds[i], 0
        for slot in range(listed.counts[i]):
            square = vector_to(listed, i, slot, vector)
            if end <= square < math.inf:
                continue
            j = listed.neighbor[i, slot]
            other = buffers.kinds[j]
            distance = math.sqrt(square)
            c6, change = 0.0, 0.0
            for b in range(references):
                c6 += buffers.own[i, other, b] * buffers.weights[j, b]
                change += buffers.slopes[i, other, b] * buffers.weights[j, b]
            value, fall = _switch(distance, d3.triple_cutoff, d3.triple_switch)
            damping = (d3.triple_reach[kind, other] / distance) ** THREE_BODY_EXPONENT
            near[found, 0] = vector[0]
            near[found, 1] = vector[1]
            near[found, 2] = vector[2]
            near[found, 3] = square
            near[found, 4] = damping
            near[found, 5] = value
            near[found, 6] = 0.5 * fall / distance
            near[found, 7] = c6
            near[found, 8] = change
            sums[found] = 0.0
            others[found] = j
            found += 1
        for a in range(found):
            j = others[a]
            kind_a, one = buffers.kinds[j], near[a, 3]
            for b in range(a + 1, found):
                x = near[b, 0] - near[a, 0]
                y = near[b, 1] - near[a, 1]
                z = near[b, 2] - near[a, 2]
                three = x * x + y * y + z * z
                if end <= three < math.inf:
                    continue
                k = others[b]
                kind_b, two = buffers.kinds[k], near[b, 3]
                third = math.sqrt(three)
                c6 = 0.0
                for r in range(references):
                    c6 += buffers.own[j, kind_b, r] * buffers.weights[k, r]
                c9 = d3.triple_strength * math.sqrt(c6 * near[a, 7] * near[b, 7])
                value, _ = _switch(third, d3.triple_cutoff, d3.triple_switch)
                c9 *= value
                q = (d3.triple_reach[kind_a, kind_b] / third) ** THREE_BODY_EXPONENT
                q *= near[a, 4] * near[b, 4]
                f = 1.0 / (1.0 + 6.0 * q)
                inverse = 1.0 / (one * two * three)
                cube = inverse * math.sqrt(inverse)
                u, v, w = one + two - three, one + three - two, two + three - one
                shape = 0.375 * inverse * cube
                skew = shape * u * v * w
                angle = skew + cube
                both = near[a, 5] * near[b, 5]
                energy = c9 * angle * f * both
                # By the squares of both sides that meet in this corner.
                rest = f * (16.0 * f * q * angle - 2.5 * skew - 1.5 * cube)
                by_one = f * shape * (v * w + u * w - u * v) + rest / one
                by_two = f * shape * (v * w - u * w + u * v) + rest / two
                sums[a, 0] += energy
                sums[b, 0] += energy
                sums[a, 1] += c9 * (by_one * both + angle * f * near[a, 6] * near[b, 5])
                sums[b, 1] += c9 * (by_two * both + angle * f * near[b, 6] * near[a, 5])
        fx = fy = fz = xx = yy = zz = xy = xz = yz = 0.0
        energy, by_coordination = 0.0, 0.0
        for a in range(found):
            energy += sums[a, 0]
            by_coordination += sums[a, 0] * near[a, 8] / near[a, 7]
            pull = 2.0 * sums[a, 1]
            x, y, z = near[a, 0], near[a, 1], near[a, 2]
            fx += pull * x
            fy += pull * y
            fz += pull * z
            xx += pull * x * x
            yy += pull * y * y
            zz += pull * z * z
            xy += pull * x * y
            xz += pull * x * z
            yz += pull * y * z
        # Each triple is in two of the sums, and each atom gets a third of it.
        buffers.energies[i] += energy / 6.0
        buffers.by_coordination[i] += 0.5 * by_coordination
        _add(buffers, i, (fx, fy, fz), (xx, xy, xz, xy, yy, yz, xz, yz, zz))


@kernel
def follow_coordination(first, last, listed, d3, buffers):
    """Pass 4 for atoms [first, last); adds to forces and virials."""
    vector = np.empty(3)
    end = d3.coordination_cutoff**2
    for i in range(first, last):
        kind = buffers.kinds[i]
        fx = fy = fz = xx = yy = zz = xy = xz = yz = 0.0
        for slot in range(listed.counts[i]):
            square = vector_to(listed, i, slot, vector)
            if end <= square < math.inf:
                continue
            distance = math.sqrt(square)
            j = listed.neighbor[i, slot]
            slope = _count(distance, d3.reach[kind, buffers.kinds[j]], d3)[1]
            pull = (buffers.by_coordination[i] + buffers.by_coordination[j]) * slope / distance
            x, y, z = vector[0], vector[1], vector[2]
            fx += pull * x
            fy += pull * y
            fz += pull * z
            xx += pull * x * x
            yy += pull * y * y
            zz += pull * z * z
            xy += pull * x * y
            xz += pull * x * z
            yz += pull * y * z
        _add(buffers, i, (fx, fy, fz), (xx, xy, xz, xy, yy, yz, xz, yz, zz))


class FusedD3(D3Evaluator):
    """D3(BJ) by compiled kernels on a CPU, in float64 at every precision.

    Its numbers are those of `AutogradEvaluator` to rounding, and have the same bits for any number
    of threads.
    """

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. The first call for a state allocates, and may compile."""
        d3, buffers = self._bind(state)
        by_role = self._list_roles.assign(lists)
        near, far = (
            packing.listed(state, by_role[role]) for role in ("coordination", "dispersion")
        )
        passes: list[Work] = [
            lambda first, last: coordinate(first, last, near, d3, buffers),
            lambda first, last: disperse(first, last, far, d3, buffers),
            lambda first, last: follow_coordination(first, last, near, d3, buffers),
        ]
        if "three_body" in by_role:
            around = packing.listed(state, by_role["three_body"])
            passes.insert(2, lambda first, last: triple(first, last, around, d3, buffers))
        run(passes, len(state.numbers))
        state.energies.copy_(torch.from_numpy(buffers.energies))
        state.forces.copy_(torch.from_numpy(buffers.forces))
        system = state.grouping.index.numpy()
        add_systems(system, buffers.energies[None], state.energy[:, None].numpy())
        add_systems(system, buffers.virials, state.virial.flatten(1).numpy())

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner."""
        state.workspaces[self][1].kinds[:] = state.kinds.numpy()

    def _bind(self, state: State) -> tuple[D3Arrays, D3Buffers]:
        """Constants of the elements of a state, and buffers for its atoms."""
        bound: tuple[D3Arrays, D3Buffers] | None = state.workspaces.get(self)
        if bound is None:
            d3 = self._constants(state)
            state.workspaces[self] = bound = d3, _buffers(state, d3.references.shape[1])
        return bound

    def _constants(self, state: State) -> D3Arrays:
        own, config, elements = self.potential, self.potential.config, state.elements
        references = own.numbers[elements]
        count = int((references >= 0.0).sum(1).max())
        moments, radii = own.moments[elements], own.radii[elements]
        ratio = 3.0 * moments[:, None] * moments
        length = BOHR * (config.a1 * torch.sqrt(ratio) + config.a2)
        strengths = (torch.full_like(ratio, config.s6), config.s8 * ratio * BOHR**2)
        c6 = own.c6[elements][:, elements, :count, :count] * (HARTREE * BOHR**6)
        return D3Arrays(
            c6=c6.contiguous().numpy(),
            references=references[:, :count].contiguous().numpy(),
            reach=(BOHR * (radii[:, None] + radii)).numpy(),
            damping=torch.stack([*strengths, length**6, length**8], -1).contiguous().numpy(),
            cutoff=config.cutoff,
            switch=config.switch,
            coordination_cutoff=config.coordination_cutoff,
            coordination_switch=config.coordination_switch,
            steepness=STEEPNESS,
            width=WIDTH,
            triple_reach=(
                THREE_BODY_RADIUS * BOHR * own.separations[elements][:, elements]
            ).numpy(),
            triple_cutoff=config.three_body_cutoff,
            triple_switch=config.three_body_switch,
            triple_strength=config.s9 / math.sqrt(HARTREE),
        )


def _buffers(state: State, references: int) -> D3Buffers:
    atoms, elements = len(state.numbers), len(state.elements)
    return D3Buffers(
        kinds=state.kinds.numpy().copy(),
        weights=np.zeros((atoms, references)),
        changes=np.zeros((atoms, references)),
        own=np.zeros((atoms, elements, references)),
        slopes=np.zeros((atoms, elements, references)),
        by_coordination=np.zeros(atoms),
        energies=np.zeros(atoms),
        forces=np.zeros((atoms, 3)),
        virials=np.zeros((9, atoms)),
    )
