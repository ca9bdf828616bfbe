"""FusedTensorNet: the fast evaluator, made from a trained TensorNet."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from mdgraph.errors import MDGraphError
from mdgraph.fused.extraction import packed
from mdgraph.fused.network import FusedNetwork, NetworkResult
from mdgraph.fused.shared_tables import shared_tables
from mdgraph.fused.tables import PotentialTables
from mdgraph.models import Atoms, TensorNetConfig, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import Precision, precision_named
from mdgraph.state import State

WIDEST = 256
"""Channels that the kernels are made for."""


class NotFusedError(MDGraphError):
    """A potential has no fused form; the message says what stands against it."""


def obstacle(config: TensorNetConfig) -> str | None:
    """What keeps a potential from its fused form, as the end of a sentence; None for nothing."""
    if config.activation == "softexp":
        return "its activation is softexp"
    if config.dispersion is not None:
        return "it has a dispersion"
    if config.reduction != "sum":
        return "its energy is a mean over atoms"
    if any(part.cutoff_lower > 0.0 for part in config.repulsion):
        return "its repulsion ends at a lower cutoff"
    if config.channels > WIDEST:
        return f"it has {config.channels} channels, and kernels take up to {WIDEST}"
    if max(config.readout.hidden, default=0) > WIDEST:
        return f"its readout is wider than {WIDEST}"
    return None


class FusedTensorNet:
    """A TensorNet with tabulated radial functions and a hand-written backward pass.

    Energy, forces and virial are those of the tabulated surface, exactly: the derivative
    of each cubic is what enters the force. It agrees with `AutogradEvaluator` within the
    tables' error, about 1e-6.

    Attributes:
        potential: what it was made from.
        cutoffs: A, of the lists it expects.
        precision: what it was made for.
        device: where it runs.
        rounds: whether forces are rounded, and no exact derivative of the energy.
        tables: the radial functions and the errors measured when they were made.
    """

    def __init__(
        self,
        potential: TensorNetPotential,
        precision: str | Precision = "mixed",
        device: torch.device | str = "cpu",
        backend: Literal["triton", "compiled"] | None = None,
    ) -> None:
        """Builds tables and packs weights; takes about a second.

        Args:
            potential: with float64 weights, as it was loaded.
            precision: its network type is that of tables, weights and features. What `fast`
                rounds is rounded by Triton's kernels alone.
            device: where it runs.
            backend: which kernels; None takes Triton's on CUDA and compiled ones on a CPU, where
                Triton's need its interpreter.

        Raises:
            NotFusedError: the potential has no fused form.
            TableError: a radial function is too steep for a table.
        """
        reason = obstacle(potential.config)
        if reason is not None:
            raise NotFusedError(f"The potential has no fused form: {reason}.")
        device = torch.device(device)
        precision = precision_named(precision)
        self.potential = potential.at_precision(torch.float64).to(device)
        self.cutoffs = potential.cutoffs
        self.precision, self.device = precision, device
        self.tables = shared_tables(potential, precision.network)
        backend = backend or ("triton" if device.type == "cuda" else "compiled")
        self.rounds = precision.reduced and backend == "triton"
        self._network = _network(self.potential, self.tables, precision, device, backend)

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. The first call for a state allocates and reads the device.

        Buffers belong to the state, so one evaluator serves several states and their graphs.
        """
        with torch.no_grad():
            result = self._bind(state)
            potential, by_cutoff = self.potential, dict(zip(self.cutoffs, lists, strict=True))
            coulomb = potential.coulomb
            far = by_cutoff[coulomb.cutoff] if coulomb is not None else None
            close = [by_cutoff[cutoff] for cutoff in potential.repulsion_cutoffs]
            own = by_cutoff[potential.config.cutoff]
            self._network.evaluate_(state, own, far, close, result)
            self._network.total_(state, result)

    def _bind(self, state: State) -> NetworkResult:
        """Buffers and constant energies for a state."""
        result: NetworkResult | None = state.workspaces.get(self)
        if result is None:
            state.workspaces[self] = result = NetworkResult(
                self._constant(state),
                state.energies,
                state.forces,
                state.energies.new_zeros(9, len(state.energies)),
            )
        return result

    def _constant(self, state: State) -> Tensor:
        atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
        return self.potential.constant_energies(atoms)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner."""
        state.workspaces[self].constant.copy_(self._constant(state))


def _network(
    potential: TensorNetPotential,
    tables: PotentialTables,
    precision: Precision,
    device: torch.device,
    backend: str,
) -> FusedNetwork:
    weights = packed(potential, precision.network, device)
    if backend == "triton":
        if find_spec("triton") is None:
            raise NotFusedError("The fused form needs Triton on CUDA, and it is not installed.")
        from mdgraph.fused.cuda.network import TritonNetwork

        return TritonNetwork(potential.config, weights, tables, potential.rows, precision.reduced)
    from mdgraph.fused.cpu.network import CompiledNetwork

    return CompiledNetwork(potential.config, weights, tables, potential.rows)


def will_compile(config: TensorNetConfig, precision: Precision) -> bool:
    """Whether the first evaluation on a CPU compiles kernels, by one of those it calls."""
    from mdgraph.fused.cpu.charged_interaction import interact_charged_adjoint
    from mdgraph.fused.cpu.compilation import is_kept
    from mdgraph.fused.cpu.embedding import embed_adjoint

    charged = config.architecture == "tensornet2"
    kernel = interact_charged_adjoint if charged else embed_adjoint
    return not is_kept(kernel, str(precision.network).removeprefix("torch."))
