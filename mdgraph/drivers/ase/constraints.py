"""What constraints of ASE hold, where the engine can hold it too."""

from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms, FixCom

from mdgraph.errors import InputError, name_some


@dataclass(frozen=True)
class Held:
    """What stays where it is.

    Attributes:
        fixed: indices of atoms.
        centre: whether the centre of mass does.
    """

    fixed: tuple[int, ...] = ()
    centre: bool = False


def held_by(atoms: Atoms) -> Held:
    """Reads the constraints of the atoms.

    Raises:
        InputError: other ones than FixAtoms and FixCom, or both together.
    """
    fixed: set[int] = set()
    centre, unknown = False, []
    for constraint in atoms.constraints:
        # Not isinstance: a subclass holds something else.
        if type(constraint) is FixAtoms:
            fixed.update(np.arange(len(atoms))[constraint.index].tolist())
        elif type(constraint) is FixCom:
            centre = True
        else:
            unknown.append(type(constraint).__name__)
    if unknown:
        raise InputError(
            f"mdgraph cannot keep the constraints {name_some(sorted(set(unknown)))}; it knows "
            "FixAtoms and FixCom. Remove them, or move the atoms by ASE's own classes with "
            "MDGraphCalculator."
        )
    if centre and fixed:
        raise InputError(
            "Fixed atoms hold the centre of mass already; take FixCom or FixAtoms, not both."
        )
    return Held(tuple(sorted(fixed)), centre)
