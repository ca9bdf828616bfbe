"""What can be chosen for a run, from a YAML file, the command line, or Python.

Every field carries its unit in its name and its description below it; the command line
makes its options from here.
"""

from mdgraph.runs.configuration.base import Configuration, RunConfig
from mdgraph.runs.configuration.benchmark import BenchConfig
from mdgraph.runs.configuration.dynamics import MDConfig
from mdgraph.runs.configuration.frames import EvalConfig, FramesConfig, RelaxConfig
from mdgraph.runs.configuration.minimization import Descent, MinimizeConfig

__all__ = [
    "BenchConfig",
    "Configuration",
    "Descent",
    "EvalConfig",
    "FramesConfig",
    "MDConfig",
    "MinimizeConfig",
    "RelaxConfig",
    "RunConfig",
]
