"""ListStatus: what the host learns about a list."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ListStatus:
    """What the host reads of a list between chunks.

    Attributes:
        found: largest number of neighbors of any atom since the last growth.
        capacity: slots a row.
        occupancy: most atoms in one bin of the cell list; 0 on CUDA, where bins cannot
            overflow.
        bin_capacity: atoms a bin has room for.
        insufficient: the cell shrank beyond what the search was planned for.
    """

    found: int
    capacity: int
    occupancy: int
    bin_capacity: int
    insufficient: bool

    @property
    def complete(self) -> bool:
        """Whether every pair found its slot."""
        return (
            self.found <= self.capacity
            and self.occupancy <= self.bin_capacity
            and not self.insufficient
        )
