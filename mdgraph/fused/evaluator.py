"""FusedTensorNet: the fast evaluator of a TensorNet, and the choice between evaluators."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from importlib.util import find_spec
from typing import Final, Literal

import torch
from torch import Tensor

from mdgraph.errors import InputError, MDGraphError
from mdgraph.evaluators import AutogradEvaluator, Evaluator, SumEvaluator
from mdgraph.fused.backend import DividedNetwork, FusedNetwork, NetworkResult
from mdgraph.fused.d3 import BlockedD3
from mdgraph.fused.tables import PotentialTables, TableError, tabulated
from mdgraph.fused.weights import packed
from mdgraph.gpu.launch import HAS_TRITON
from mdgraph.models import (
    Atoms,
    D3Potential,
    ListRoles,
    PotentialModule,
    SumPotential,
    TensorNetConfig,
    TensorNetPotential,
    architecture_named,
)
from mdgraph.models.architectures import ARCHITECTURES, FusedForm, KeptNumbers
from mdgraph.models.config import PotentialConfig
from mdgraph.neighbors import NeighborList, NeighborRows
from mdgraph.precision import Precision, precision_named
from mdgraph.state import State

logger = logging.getLogger(__name__)

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


class FusedTensorNet(Evaluator):
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

    potential: TensorNetPotential
    precision: Precision
    device: torch.device
    runs_beside = True

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
        self._list_roles = potential.list_roles
        self.cutoffs = self._list_roles.cutoffs
        self.precision, self.device = precision, device
        self.tables = shared_tables(potential, precision.network)
        backend = backend or ("triton" if device.type == "cuda" else "compiled")
        self.rounds = precision.reduced and backend == "triton"
        self._network = _network(self.potential, self.tables, precision, device, backend)
        self.potential.network.cpu()  # kernels have copies of these weights
        # Coulomb energy and repulsion are functions of distances, and need no reverse slots.
        own = self._list_roles.places["network"] if self._network.reads_reverse else None
        self.one_way = tuple(number for number in range(len(self.cutoffs)) if number != own)

    @property
    def list_roles(self) -> ListRoles:
        """See Evaluator."""
        return self._list_roles

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. The first call for a state allocates and reads the device.

        Buffers belong to the state, so one evaluator serves several states and their graphs.
        """
        self._evaluate_into_(state, lists, state.forces)

    def evaluate_apart_(self, state: State, lists: Sequence[NeighborList], forces: Tensor) -> None:
        """See Evaluator; it leaves those of the state as they are."""
        self._evaluate_into_(state, lists, forces)

    def _evaluate_into_(self, state: State, lists: Sequence[NeighborList], forces: Tensor) -> None:
        with torch.no_grad():
            result = replace(self._bind(state), forces=forces)
            self._evaluate_(state, lists, result)
            self._network.total_(state, result)

    def evaluate_forces_(
        self, state: State, lists: Sequence[NeighborList], into: Tensor | None = None
    ) -> None:
        """See Evaluator."""
        with torch.no_grad():
            result = self._bind(state)
            result = result if into is None else result.apart(into)
            self._evaluate_(state, lists, result, forces_alone=True)

    def _evaluate_(
        self,
        state: State,
        lists: Sequence[NeighborList],
        result: NetworkResult,
        forces_alone: bool = False,
    ) -> None:
        by_role = self._list_roles.assign([item.whole() for item in lists])
        repulsion = [by_role[role] for role in self.potential.repulsion_roles]
        self._network.evaluate_(
            *(state, by_role["network"], by_role.get("coulomb"), repulsion, result, forces_alone)
        )

    def outgrown(self, state: State) -> Tensor | None:
        """See Evaluator."""
        return self._network.outgrown(state)

    def grow_(self, state: State) -> None:
        """See Evaluator."""
        self._network.grow_(state)

    @property
    def rounding(self) -> int:
        """Atoms that its kernels take together; raises InputError, as `domain_stages_`."""
        return self._divided().rounding

    def domain_stages_(
        self, state: State, rows: Sequence[NeighborRows], result: NetworkResult, owned: int
    ) -> Iterator[Tensor]:
        """What the pairs of a domain's own atoms give, in stages; see DividedNetwork.

        Args:
            state: own atoms and the others that they need.
            rows: one for each of `cutoffs`.
            result: buffers that are written.
            owned: number of own atoms, a multiple of `rounding`.

        Raises:
            InputError: TensorNet2.
        """
        by_role = self._list_roles.assign(rows)
        repulsion = [by_role[role] for role in self.potential.repulsion_roles]
        return self._divided().domain_stages_(state, by_role["network"], repulsion, result, owned)

    def _divided(self) -> DividedNetwork:
        if self.potential.config.predicts_charges:
            raise InputError(
                "TensorNet2 is not run in domains, as its charges depend on all atoms of a "
                "system; leave domains out."
            )
        assert isinstance(self._network, DividedNetwork)
        return self._network

    def _bind(self, state: State) -> NetworkResult:
        """Buffers and constant energies for a state."""
        result: NetworkResult | None = state.workspaces.get(self)
        if result is None:
            state.workspaces[self] = result = NetworkResult(
                self.constant_energies(state),
                state.energies,
                state.forces,
                state.energies.new_zeros(9, len(state.energies)),
            )
        return result

    def constant_energies(self, state: State, total: int | None = None) -> Tensor:
        """(N,) float64, eV, of the atoms of a state; does not sync.

        Args:
            state: of all atoms, or of some of one system.
            total: atoms of that system.
        """
        grouping = state.grouping
        if total is not None:
            grouping = copy(grouping)
            grouping.counts = torch.full_like(grouping.counts, total)
        atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, grouping)
        return self.potential.constant_energies(atoms)

    def release_(self, state: State) -> None:
        """Frees what evaluations of a state keep; the next one allocates it again."""
        network: object = self._network
        for user in list(state.workspaces):
            if user is self or user is network:
                del state.workspaces[user]

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner."""
        state.workspaces[self].constant.copy_(self.constant_energies(state))


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
    from mdgraph.fused.cpu.embedding import embed_adjoint
    from mdgraph.fused.cpu.simd import is_kept
    from mdgraph.fused.cpu.tensornet2 import interact_tensornet2_adjoint

    kernel = interact_tensornet2_adjoint if config.predicts_charges else embed_adjoint
    return not is_kept(kernel, str(precision.network).removeprefix("torch."))


EVALUATORS: Final = ("auto", "fused", "reference")
"""`auto` takes the fused form where there is one and says in the log where there is none."""


def is_fused(config: PotentialConfig, precision: Precision, name: str = "auto") -> bool:
    """Whether `chosen_evaluator` takes the fused form, if its tables can be made."""
    return _wants_fused(precision, name) and why_not_fused(config) is None


def why_not_fused(config: PotentialConfig) -> str | None:
    """What keeps a potential from a fused form, as the end of a sentence; None for nothing."""
    architecture = architecture_named(config.architecture)
    if architecture.fused is None:
        return f"{architecture.title} has none"
    return architecture.fused.obstacle(config)


def compiles_kernels(config: PotentialConfig, precision: Precision) -> bool:
    """Whether the first fused evaluation on a CPU compiles kernels."""
    form = architecture_named(config.architecture).fused
    return form is not None and form.compiles(config, precision)


def _wants_fused(precision: Precision, name: str) -> bool:
    return name == "fused" or (name == "auto" and precision.name != "double")


def check_evaluator_name(name: str) -> None:
    """Raises InputError for a name that is none of EVALUATORS."""
    if not isinstance(name, str) or name not in EVALUATORS:
        raise InputError(f"Unknown evaluator '{name}'; choose one of {', '.join(EVALUATORS)}.")


def chosen_evaluator(
    potential: PotentialModule, precision: Precision, device: torch.device, name: str = "auto"
) -> Evaluator:
    """Builds the evaluator of a potential; takes a second or two.

    `double` evaluates the network itself, so it always gets the reference unless the fused
    form is asked for by name.

    Args:
        potential: with float64 weights, as it was loaded.
        precision: of the evaluator.
        device: where it runs.
        name: `auto`, `fused` or `reference`.

    Raises:
        InputError: unknown name, or `fused` is asked for and the potential has no such form.
    """
    check_evaluator_name(name)
    if isinstance(potential, SumPotential):
        terms = [chosen_evaluator(part, precision, device, name) for part in potential.parts]
        return SumEvaluator(potential, terms)
    architecture = architecture_named(potential.config.architecture)
    if _wants_fused(precision, name) and not architecture.simple:
        try:
            if architecture.fused is None:
                raise NotFusedError(f"{architecture.title} has no fused form.")
            return architecture.fused.build(potential, precision, device)
        except (NotFusedError, TableError) as reason:
            if name == "fused":
                raise InputError(f"{reason} Choose the evaluator auto or reference.") from reason
            logger.warning("%s The slower reference evaluator runs.", reason)
    return AutogradEvaluator(potential.at_precision(precision.network).to(device))


def _fused_d3(potential: D3Potential, precision: Precision, device: torch.device) -> Evaluator:
    if device.type == "cuda" and HAS_TRITON:
        from mdgraph.fused.cuda.d3 import KernelD3

        return KernelD3(potential, precision, device)
    if device.type != "cpu":
        return BlockedD3(potential, precision, device)
    from mdgraph.fused.cpu.d3 import FusedD3

    return FusedD3(potential, precision, device)


def _compiles_d3(config: PotentialConfig, precision: Precision) -> bool:
    from mdgraph.fused.cpu.d3 import disperse
    from mdgraph.fused.cpu.simd import is_kept

    return not is_kept(disperse, "float64")


for _word in ("tensornet", "tensornet2"):
    ARCHITECTURES[_word].fused = FusedForm(obstacle, FusedTensorNet, will_compile)
ARCHITECTURES["d3bj"].fused = FusedForm(
    lambda config: None, _fused_d3, _compiles_d3, kept=KeptNumbers(slot=12, atom=200)
)
