"""Tables that evaluators of equal networks share, so that none but the first waits for them."""

import hashlib
from typing import Final

import torch

from mdgraph.fused.tables import PotentialTables, tabulated
from mdgraph.models import TensorNetPotential

_KEPT: Final = 4
"""Networks whose tables are kept, a few MB each."""

_made: dict[tuple[str, torch.dtype], PotentialTables] = {}


def shared_tables(potential: TensorNetPotential, dtype: torch.dtype) -> PotentialTables:
    """As `tabulated`, which it asks only for numbers that it has not seen lately.

    What counts are the configuration and every number of the network as they are now, so
    a potential whose weights change gets new tables.

    Raises:
        TableError: see `tabulated`.
    """
    key = (_digest(potential), dtype)
    tables = _made.pop(key, None) or tabulated(potential, dtype)
    _made[key] = tables
    while len(_made) > _KEPT:
        _made.pop(next(iter(_made)), None)  # another thread may have been here
    return tables


def _digest(potential: TensorNetPotential) -> str:
    digest = hashlib.sha256(potential.config.model_dump_json().encode())
    for name, tensor in potential.network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
