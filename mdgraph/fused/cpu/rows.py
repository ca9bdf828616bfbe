"""Kernels on the rows of the list: edges within the cutoff, and forces from their gradients."""

import math

from mdgraph.fused.cpu.compilation import kernel, routine


@routine
def vector_to(listed, i, slot, vector):
    """Writes the vector from an atom to a neighbor of its row; returns its square.

    r = x_j - x_i + (n_image - n_j + n_i) h with whole numbers n, so that the two directions
    of a pair are negatives of each other to the last bit.
    """
    j, image, h = listed.neighbor[i, slot], listed.image[i, slot], listed.system[i]
    a = listed.offsets[image, 0] - listed.wrap[j, 0] + listed.wrap[i, 0]
    b = listed.offsets[image, 1] - listed.wrap[j, 1] + listed.wrap[i, 1]
    c = listed.offsets[image, 2] - listed.wrap[j, 2] + listed.wrap[i, 2]
    square = 0.0
    for axis in range(3):
        x = listed.positions[j, axis] - listed.positions[i, axis]
        x += a * listed.cell[h, 0, axis]
        x += b * listed.cell[h, 1, axis]
        x += c * listed.cell[h, 2, axis]
        square += x * x
        vector[axis] = x
    return square


@kernel
def find_edges(first, last, listed, grid, edges):
    """Writes the edges of atoms [first, last), in the order of the list."""
    for i in range(first, last):
        start = i * edges.slots
        found = 0
        for slot in range(listed.counts[i]):
            edge = start + found
            square = vector_to(listed, i, slot, edges.vector[4 * edge : 4 * edge + 3])
            distance = math.sqrt(square)
            # A distance that is no finite number stays in, and the energy will be none either.
            if grid.cutoff <= distance < math.inf:
                continue
            edges.neighbor[edge] = listed.neighbor[i, slot]
            edges.slot[edge] = slot
            interval, offset = _located(distance, grid)
            edges.interval[edge] = interval
            edges.offset[edge] = offset
            edges.vector[4 * edge + 3] = 1.0 / distance
            edges.central[edge] = 0.0
            found += 1
        edges.counts[i] = found


@routine
def _located(distance, grid):
    """As `RadialGrid.locate`; what is no finite number gets a place on the grid too."""
    if distance < grid.start:
        return 0, distance - 0.5 * grid.start
    zone = _whole((distance - grid.start) / grid.zone_width, len(grid.counts))
    within = distance - (grid.start + zone * grid.zone_width)
    width = grid.widths[zone]
    place = _whole(within / width, grid.counts[zone])
    return grid.first[zone] + place, within - (place + 0.5) * width


@routine
def _whole(ratio, number):
    """The integer part, from 0 to number - 1; 0 for what is no number."""
    if ratio >= number:
        return number - 1
    return int(ratio) if ratio >= 1.0 else 0


@kernel
def add_up(first, last, listed, edges, forces, virials):
    """Forces (N, 3) and virials (9, N) of atoms [first, last), edge by edge.

    F_i = sum_k (w_ik - w_reverse) and W_i = -sum_k r_ik (x) w_ik.
    """
    w = edges.gradient
    for i in range(first, last):
        start = i * edges.slots
        for column in range(3):
            forces[i, column] = 0.0
            for row in range(3):
                virials[3 * row + column, i] = 0.0
        for edge in range(start, start + edges.counts[i]):
            slot = edges.slot[edge]
            own = 3 * (start + slot)
            other = 3 * (listed.neighbor[i, slot] * edges.slots + listed.reverse[i, slot])
            for column in range(3):
                forces[i, column] += w[own + column] - w[other + column]
                for row in range(3):
                    part = edges.vector[4 * edge + row] * w[own + column]
                    virials[3 * row + column, i] -= part


@kernel
def add_systems(system, values, sums):
    """Sums values (C, N) over the atoms of each system, in their order, to (S, C)."""
    for one in range(len(sums)):
        for column in range(len(values)):
            sums[one, column] = 0.0
    for i in range(len(system)):
        for column in range(len(values)):
            sums[system[i], column] += values[column, i]
