"""Modules that release 0.1.0 had under other names: importing one warns and gives the new one.

Only those that its documents and examples showed, or that files name; they go with 0.3.0.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "mdgraph.analysis.recorded": "mdgraph.analysis.plots",
    "mdgraph.drivers.openmmml.models": "mdgraph.drivers.openmmml.force",
    "mdgraph.engine.ranks": "mdgraph.engine.replicas.ranks",
    "mdgraph.engine.replica_exchange": "mdgraph.engine.replicas.exchange",
    "mdgraph.io.atoms": "mdgraph.io.structures",
}

STORED: Final = {"mdgraph.drivers.openmmml.models"}
"""Named by Systems of OpenMM that were written to XML, which nobody can rewrite: no warning."""


class MovedModules(MetaPathFinder, Loader):
    """Finds the old names, after every other finder has failed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module with everything that the new one holds."""
        new = MOVED[spec.name]
        if spec.name not in STORED:
            from mdgraph.errors import MDGraphFutureWarning, old_name  # which imports numpy

            warnings.warn(old_name(spec.name, new), MDGraphFutureWarning, stacklevel=2)
        module = ModuleType(spec.name, f"The old name of {new}.")
        public = {key: value for key, value in vars(import_module(new)).items() if key[0] != "_"}
        vars(module).update(public)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


sys.meta_path.append(MovedModules())
