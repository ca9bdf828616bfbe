"""Speed or errors of a potential."""

from typing import Self

from pydantic import model_validator

from mdgraph.runs.configuration.base import Configuration
from mdgraph.runs.fields import Count, Seconds, Timestep


class BenchConfig(Configuration):
    """Speed or errors of a potential on a structure."""

    arguments = ("potential", "structure")

    structure: str | None = None
    """Structure file; without it, the start that comes with a potential that is named."""
    atoms: Count | None = None
    """Of a box of water made on the spot (default 192 on a CPU, 648 on CUDA)."""
    timestep_fs: Timestep = 0.5
    """Time step of the steps that are timed, at 300 K."""
    seconds: Seconds = 20.0
    """Time for the steps that are timed; compilation comes on top."""
    picture: str | None = None
    """Bar chart to draw, a .png, .svg or .pdf file."""
    overwrite: bool = False
    """Replace the picture if it exists."""

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        if self.structure is not None and self.atoms is not None:
            raise ValueError("structure and atoms both say what is timed; give one")
        return self
