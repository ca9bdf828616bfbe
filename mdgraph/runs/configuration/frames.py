"""Every frame of some files."""

from mdgraph.runs.configuration.base import DEFAULT_STEPS, Configuration
from mdgraph.runs.configuration.committee import CommitteeConfig
from mdgraph.runs.configuration.minimization import Descent
from mdgraph.runs.fields import Files, NumberOfSteps


class FramesConfig(Configuration):
    """What is done to every frame of some files."""

    arguments = ("structures",)

    structures: Files
    """Structure files."""
    out: str
    """Extended XYZ file to write."""
    overwrite: bool = False
    """Replace the file if it exists."""
    check: bool = True
    """Compare a fast evaluator with the reference on the first frame."""


class EvalConfig(CommitteeConfig, FramesConfig):
    """Energies, forces and stress of frames as they are; of a committee, their means."""

    structures: Files
    """Structure files; every frame of them is evaluated."""
    out: str = "results.extxyz"
    """Extended XYZ file to write."""
    sigma: bool = False
    """Write the uncertainty of energies by the last layer of a potential that knows its domain."""


class RelaxConfig(FramesConfig, Descent):
    """Minima of many structures."""

    structures: Files
    """Structure files; every frame of them is moved to a minimum."""
    out: str = "relaxed.extxyz"
    """Extended XYZ file to write."""
    steps: NumberOfSteps = DEFAULT_STEPS
    """Most steps that a structure takes."""
