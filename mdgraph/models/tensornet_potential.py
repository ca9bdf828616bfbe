"""TensorNetPotential: network, readout, Coulomb energy, repulsion, dispersion and references."""

import itertools
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn

from mdgraph.errors import InputError
from mdgraph.models.config import (
    CoulombConfig,
    DispersionConfig,
    RepulsionConfig,
    TensorNetConfig,
)
from mdgraph.models.ops.messages import sum_slots
from mdgraph.models.potential import Atoms, Domain, ListRoles, TrainablePotential
from mdgraph.models.repulsion import (
    CONTACT,
    ContactRepulsion,
    TorchMDNetNetwork,
    contact_reach,
    repulsion,
)
from mdgraph.models.tensornet import EdgeNetwork, PerceptronReadout, TensorNet, readout
from mdgraph.models.tensornet2 import Coulomb, TensorNet2
from mdgraph.neighbors.pairs import Pairs
from mdgraph.units import SYMBOLS

_STEEPNESS = 20.0


class Dispersion(nn.Module):
    """DFT-D2: E_ij = -c_ij / R^6 / (1 + exp(-20 (R / R_ij - 1))) / `energy`.

    Each atom of a pair gets half of it. R is the distance times `length`, c_ij the geometric mean
    of the two coefficients and R_ij the sum of the two radii. Coefficients and radii have units
    of their own, such as Hartree and Bohr.

    Attributes:
        coefficients: (119,), energy times R^6; zero for elements without one.
        radii: (119,), in the unit of R.
        length: (), units of R in 1 A.
        energy: (), units of the coefficients' energy in 1 eV.
    """

    coefficients: Tensor
    radii: Tensor
    length: Tensor
    energy: Tensor

    def __init__(self, config: DispersionConfig) -> None:
        super().__init__()
        self.cutoff = config.cutoff
        for name in ("coefficients", "radii"):
            self.register_buffer(name, torch.ones(len(SYMBOLS), dtype=torch.float64))
        for name in ("length", "energy"):
            self.register_buffer(name, torch.ones((), dtype=torch.float64))

    def forward(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """Atomic numbers (N,) to energies (N,) eV in the dtype of the pair vectors."""
        dtype = pairs.vectors[0].dtype
        total = pairs.vectors[0].new_zeros(len(numbers))
        for block in pairs.blocks:
            neighbor = numbers.index_select(0, block.index.flatten()).view_as(block.index)
            product = self.coefficients[numbers][:, None] * self.coefficients[neighbor]
            reach = (self.radii[numbers][:, None] + self.radii[neighbor]).to(dtype)
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            scaled = distance * self.length.to(dtype)
            damping = torch.sigmoid(_STEEPNESS * (scaled / reach - 1.0))
            energy = product.sqrt().to(dtype) / scaled**6 * damping
            inside = block.valid & (distance < self.cutoff)
            total = total + sum_slots(torch.where(inside, energy, 0.0))
        return -0.5 * total / self.energy.to(dtype)


class TensorNetPotential(TrainablePotential):
    """Energies of atoms, e_i = scale (network_i + in-network terms_i) + reference_i + shift / n.

    Repulsions and dispersion outside the network are added. If the reduction is a mean, the
    network's energies and the references are divided by n + 1.

    Weights are made in float64, and `at_precision` casts them; scale, shift and references are
    large and stay float64.

    Attributes:
        config: see TensorNetConfig.
    """

    config: TensorNetConfig
    species_tables = ("network.embedding.species.weight", "references")

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__(config)
        self.network = (TensorNet2 if config.predicts_charges else TensorNet)(config)
        self.readout = readout(config)
        self.coulomb: Coulomb | None = None
        if config.coulomb is not None:
            charges = (config.layers + 1) * config.charge_channels
            self.coulomb = Coulomb(charges, config.coulomb.cutoff)
        self.repulsions = nn.ModuleList(repulsion(part) for part in config.repulsion)
        self.dispersion: Dispersion | None = None
        if config.dispersion is not None:
            self.dispersion = Dispersion(config.dispersion)
        self.double()

    @property
    def list_roles(self) -> ListRoles:
        """Which neighbor list network, Coulomb energy, repulsions and dispersion read."""
        own = {"network": self.config.cutoff}
        if self.coulomb is not None:
            own["coulomb"] = self.coulomb.cutoff
        cutoffs = [part.cutoff for part in self.config.repulsion]
        within = dict(zip(self.repulsion_roles, cutoffs, strict=True))
        if self.dispersion is not None:
            within["dispersion"] = self.dispersion.cutoff
        return ListRoles.of(own, within)

    @property
    def repulsion_roles(self) -> tuple[str, ...]:
        """Role of each repulsion in `list_roles`."""
        return tuple(f"repulsion {number}" for number in range(len(self.config.repulsion)))

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """Ranges of its neighbor lists, A, the network's first."""
        return self.list_roles.cutoffs

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy."""
        return self.config.uses_charge

    @property
    def predicts_charges(self) -> bool:
        """Whether it predicts partial charges, which make atoms depend on the whole system."""
        return self.config.predicts_charges

    @property
    def has_repulsion(self) -> bool:
        """See PotentialModule."""
        return bool(self.config.repulsion)

    @property
    def stated_dispersion(self) -> str:
        """See PotentialModule."""
        return super().stated_dispersion if self.dispersion is None else "D2"

    @property
    def network_dtype(self) -> torch.dtype:
        """See TrainablePotential."""
        return self.network.linear.weight.dtype

    def cast_(self, dtype: torch.dtype) -> None:
        """Casts the network, in place; repulsions and dispersion stay float64."""
        for module in (self.network, self.readout, self.coulomb):
            if module is not None:
                module.to(dtype)

    def with_coulomb_cutoff(self, cutoff: float | None) -> Self:
        """See PotentialModule."""
        if self.coulomb is None:
            return super().with_coulomb_cutoff(cutoff)
        if cutoff is not None:
            if not (isinstance(cutoff, Real) and math.isfinite(cutoff) and cutoff > 0.0):
                raise InputError(
                    f"The Coulomb cutoff is {cutoff!r}; give a positive number of A, "
                    "or None for all pairs."
                )
            cutoff = float(cutoff)
        return self._with(self.config.model_copy(update={"coulomb": CoulombConfig(cutoff=cutoff)}))

    def with_contact_repulsion(self, domain: Domain, share: float = CONTACT) -> Self:
        """A copy whose atoms repel each other where they are nearer than in any training frame.

        Energies of the frames that the domain was measured on stay as they are.

        Args:
            domain: of this potential.
            share: of the sum of two covalent radii; the repulsion reaches no farther.
        """
        reach = contact_reach(share)
        rows = domain.species
        reach[rows[:, None], rows] = reach[rows[:, None], rows].minimum(domain.shortest)
        # In float32, as files have it, and never longer.
        reach = torch.nextafter(reach.float(), torch.zeros(())).double()
        kept = [part for part in self.config.repulsion if part.kind != "contact"]
        added = RepulsionConfig(kind="contact", cutoff=float(reach.max()))
        copy = type(self)(self.config.model_copy(update={"repulsion": (*kept, added)}))
        own = {name: value for name, value in self.state_dict().items() if ".reach" not in name}
        copy.load_state_dict(own | {f"repulsions.{len(kept)}.reach": reach})
        return copy.to(self.device)

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential."""
        return self.energies_and_charges(atoms, pairs)[0]

    def energies_and_charges(
        self, atoms: Atoms, pairs: tuple[Pairs, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """Energies as of `Potential`, and partial charges (N,) float64, e, of TensorNet2.

        A partial charge is the mean over channels, weighted as in the Coulomb energy.
        """
        lists = self.list_roles.assign(pairs)
        invariants, charges = self._invariants(atoms, lists)
        energies = self.readout(invariants).double()
        if self.coulomb is not None:
            energies = energies + self.coulomb(charges, lists["coulomb"])
        if self.repulsions:
            within, after = self._repulsion_energies(atoms, lists)
            energies = self._reduce(self.scale * (energies + within), atoms) + after
        else:
            energies = self._reduce(self.scale * energies, atoms)
        if self.dispersion is not None:
            energies = energies + self.dispersion(atoms.numbers, lists["dispersion"])
        energies = energies + self.constant_energies(atoms)
        if charges is None:
            return energies, None
        weights = torch.ones_like(charges[0]) if self.coulomb is None else self.coulomb.weights
        return energies, (charges.double() * (weights / weights.sum())).sum(-1)

    def latent(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Inputs (N, H) of the readout's last layer, in the dtype of the network."""
        return self.readout.features(self._invariants(atoms, self.list_roles.assign(pairs))[0])

    def _invariants(self, atoms: Atoms, lists: Mapping[str, Pairs]) -> tuple[Tensor, Tensor | None]:
        """Invariants (N, F) and, of a TensorNet2, charges (N, C)."""
        own = lists["network"]
        rows = self.rows.index_select(0, atoms.elements)
        if isinstance(self.network, TensorNet2):
            return self.network.with_charges(rows, atoms, own)
        return self.network(rows, atoms, own), None

    def _repulsion_energies(
        self, atoms: Atoms, lists: Mapping[str, Pairs]
    ) -> tuple[Tensor, Tensor]:
        """Repulsions (N,) float64 that `scale` multiplies, and those in eV."""
        within = torch.zeros(len(atoms.numbers), dtype=torch.float64, device=self.scale.device)
        after = torch.zeros_like(within)
        for part, role in zip(self.repulsions, self.repulsion_roles, strict=True):
            energy = part(atoms.numbers, lists[role])
            if part.scaled:
                within = within + energy
            else:
                after = after + energy
        return within, after

    def _reduce(self, energies: Tensor, atoms: Atoms) -> Tensor:
        """See TrainablePotential; divides energies (N,) if the reduction is a mean."""
        if self.config.reduction == "sum":
            return energies
        return energies / atoms.grouping.spread(atoms.grouping.counts + 1)

    def distance_layers(self) -> set[nn.Module]:
        """See TrainablePotential."""
        networks = [module for module in self.modules() if isinstance(module, EdgeNetwork)]
        return {self.network.embedding.distance, *itertools.chain(*(n.linears for n in networks))}

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        config = self.config
        coulomb: str | None = None
        if config.coulomb is not None:
            cutoff = config.coulomb.cutoff
            coulomb = "all pairs" if cutoff is None else f"reaction field, {cutoff:g} A"
        return {
            "group": config.group,
            "layers": config.layers,
            "channels": config.channels,
            "parameters": self.parameter_count,
            "cutoff_A": config.cutoff,
            "cutoff_lower_A": config.cutoff_lower,
            "radial_basis": f"{config.radial_basis.number} {config.radial_basis.kind}",
            "activation": config.activation,
            "uses_charge": config.uses_charge,
            "coulomb": coulomb,
            "repulsion": [f"{part.kind}, {part.cutoff:g} A" for part in config.repulsion],
        }

    def flaw(self) -> str | None:
        """See PotentialModule.

        Finds ranges of pairs that break Newton's third law, and weights of zero by which the
        network has no force on any structure.
        """
        for part in self.repulsions:
            if not isinstance(part, TorchMDNetNetwork | ContactRepulsion):
                continue
            species = torch.tensor(self.species)
            table = part.radii if isinstance(part, TorchMDNetNetwork) else part.reach
            radii = table[species][:, species]
            wrong = ~torch.isclose(radii, radii.T, rtol=1e-6) | (radii <= 0.0)
            if bool(wrong.any()):
                first, second = (SYMBOLS[self.species[row]] for row in wrong.nonzero()[0])
                return (
                    "holds ranges of the repulsion that are no lengths or differ between "
                    f"the directions of a pair, as of {first} and {second}; save it again with the "
                    "program that trained it."
                )
        reason = self._reason_for_no_force()
        if reason is None:
            return None
        return (
            "holds a potential whose network gives no force on any structure, since "
            f"{reason}; save it again with the program that trained it, or train it again."
        )

    def _reason_for_no_force(self) -> str | None:
        """Which zero weights make the network's energy constant; None if it varies."""
        network, readout = self.network, self.readout
        if _zero(self):
            return "all its weights are zero"
        if not self.scale.any():
            return "the scale of its energies is zero"
        if isinstance(network, TensorNet2) and self.coulomb is not None:
            predictions = network.charges.named_modules()
            if not all(_zero(part) for name, part in predictions if name.endswith("linears.2")):
                return None  # The Coulomb energy has forces, whatever the readout.
        if isinstance(readout, PerceptronReadout):
            constant = _constant(readout.linears)
        else:
            # A constant value times a gate that varies is an energy that varies.
            constant = _zero(readout.values[-1]) or (
                _constant(readout.values) and _constant(readout.gates)
            )
        if constant:
            return "the weights of a layer of its readout are all zero"
        if not (network.norm.weight.any() and network.linear.weight.any()):
            return "the weights of the layer before its readout are all zero"
        if _zero(network.embedding.mixing) or _zero(network.embedding.distance):
            return "the weights of its embedding are all zero"
        return None


def _zero(part: nn.Module) -> bool:
    return not any(bool(weights.any()) for weights in part.parameters())


def _constant(layers: nn.ModuleList) -> bool:
    """Whether a sequence of layers has the same output for all inputs."""
    return not all(bool(layer.get_parameter("weight").any()) for layer in layers)
