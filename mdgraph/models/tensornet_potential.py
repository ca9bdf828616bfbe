"""TensorNetPotential: network, readout, Coulomb energy, repulsion and references together."""

import math
from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor, nn

from mdgraph.errors import InputError, UnknownSpeciesError, name_some
from mdgraph.models.config import CoulombConfig, TensorNetConfig
from mdgraph.models.dispersion import Dispersion
from mdgraph.models.potential import Atoms, ListRoles
from mdgraph.models.repulsion import repulsion
from mdgraph.models.tensornet import TensorNet, readout
from mdgraph.models.tensornet2 import Coulomb, TensorNet2
from mdgraph.neighbors.pairs import Pairs
from mdgraph.units import SYMBOLS


class TensorNetPotential(nn.Module):
    """Energies of atoms, e_i = scale (network_i + in-network terms_i) + reference_i + shift / n.

    Repulsions and dispersion that a program adds outside its network follow; where the reduction
    is a mean, the network's energies and the references are divided by n + 1.

    Weights are made in float64 and cast as a whole by `at_precision`; scale, shift and
    references stay float64, because they are large.

    Attributes:
        config: see TensorNetConfig.
        scale: () float64.
        shift: () float64, eV a system, shared out over its atoms.
        references: (species,) float64, eV an atom of each species.
    """

    scale: Tensor
    shift: Tensor
    references: Tensor
    rows: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        architecture = TensorNet2 if config.architecture == "tensornet2" else TensorNet
        self.network = architecture(config)
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
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros((), dtype=torch.float64))
        references = torch.zeros(len(config.species), dtype=torch.float64)
        self.register_buffer("references", references)
        rows = torch.full((len(SYMBOLS),), -1, dtype=torch.int64)
        rows[list(config.species)] = torch.arange(len(config.species))
        self.register_buffer("rows", rows, persistent=False)

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
        """A; ranges of its neighbor lists, the network's first."""
        return self.list_roles.cutoffs

    @property
    def species(self) -> tuple[int, ...]:
        """Atomic numbers it accepts."""
        return self.config.species

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy."""
        return self.config.uses_charge

    @property
    def parameter_count(self) -> int:
        """Number of trainable numbers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def at_precision(self, kind: torch.dtype) -> "TensorNetPotential":
        """A copy for inference whose network is of this type, with gradients off."""
        copy = self._with(self.config)
        for module in (copy.network, copy.readout, copy.coulomb):
            if module is not None:
                module.to(kind)
        return copy.requires_grad_(False).eval()

    def with_coulomb_cutoff(self, cutoff: float | None) -> "TensorNetPotential":
        """A copy with the same weights and another range of its Coulomb energy.

        Args:
            cutoff: A, of the reaction field; None sums all pairs.

        Raises:
            InputError: it has no Coulomb energy, or the cutoff is not a positive number.
        """
        if self.coulomb is None:
            raise InputError(
                "A Coulomb cutoff is given, but the potential has no Coulomb energy; "
                "leave the cutoff out."
            )
        if cutoff is not None:
            if not (isinstance(cutoff, Real) and math.isfinite(cutoff) and cutoff > 0.0):
                raise InputError(
                    f"The Coulomb cutoff is {cutoff!r}; give a positive number of A, "
                    "or None for all pairs."
                )
            cutoff = float(cutoff)
        return self._with(self.config.model_copy(update={"coulomb": CoulombConfig(cutoff=cutoff)}))

    def _with(self, config: TensorNetConfig) -> "TensorNetPotential":
        copy = TensorNetPotential(config)
        copy.load_state_dict(self.state_dict())
        return copy.to(self.scale.device)

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential."""
        return self.energies_and_charges(atoms, pairs)[0]

    def energies_and_charges(
        self, atoms: Atoms, pairs: tuple[Pairs, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """Energies as a Potential gives them, and partial charges (N,) float64, e, of TensorNet2.

        A partial charge is the mean over channels, with the weights of the Coulomb energy.
        """
        lists = self.list_roles.assign(pairs)
        invariants, charges = self._invariants(atoms, lists)
        energies = self.readout(invariants).double()
        if self.coulomb is not None:
            energies = energies + self.coulomb(charges, lists["coulomb"])
        if self.repulsions:
            within, after = self._repulsion_energies(atoms, lists)
            energies = self._reduced(self.scale * (energies + within), atoms) + after
        else:
            energies = self._reduced(self.scale * energies, atoms)
        if self.dispersion is not None:
            energies = energies + self.dispersion(atoms.numbers, lists["dispersion"])
        energies = energies + self.constant_energies(atoms)
        if charges is None:
            return energies, None
        weights = torch.ones_like(charges[0]) if self.coulomb is None else self.coulomb.weights
        return energies, (charges.double() * (weights / weights.sum())).sum(-1)

    def latent(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """What the last layer of the readout sees of each atom (N, H), in the network's type."""
        return self.readout.features(self._invariants(atoms, self.list_roles.assign(pairs))[0])

    def _invariants(self, atoms: Atoms, lists: Mapping[str, Pairs]) -> tuple[Tensor, Tensor | None]:
        """Of each atom (N, F), and its charges (N, C) in TensorNet2."""
        own = lists["network"]
        rows = self.rows.index_select(0, atoms.elements)
        if isinstance(self.network, TensorNet2):
            return self.network.with_charges(rows, atoms, own)
        return self.network(rows, atoms, own), None

    def _repulsion_energies(
        self, atoms: Atoms, lists: Mapping[str, Pairs]
    ) -> tuple[Tensor, Tensor]:
        """Repulsion (N,) float64 of each atom: what `scale` multiplies, and the rest, in eV."""
        within = torch.zeros(len(atoms.numbers), dtype=torch.float64, device=self.scale.device)
        after = torch.zeros_like(within)
        for part, role in zip(self.repulsions, self.repulsion_roles, strict=True):
            energy = part(atoms.numbers, lists[role])
            if part.scaled:
                within = within + energy
            else:
                after = after + energy
        return within, after

    def constant_energies(self, atoms: Atoms) -> Tensor:
        """References and the share of the shift (N,) float64, eV, whatever the positions."""
        rows = self.rows.index_select(0, atoms.elements)
        references = self.references.index_select(0, rows).index_select(0, atoms.kinds)
        return self._reduced(references, atoms) + atoms.grouping.spread(
            self.shift / atoms.grouping.counts
        )

    def _reduced(self, energies: Tensor, atoms: Atoms) -> Tensor:
        """Energies (N,) as they enter the sum, which gives the mean where that is the energy."""
        if self.config.reduction == "sum":
            return energies
        return energies / atoms.grouping.spread(atoms.grouping.counts + 1)


def check_species(potential_species: tuple[int, ...] | None, numbers: list[int]) -> None:
    """Raises UnknownSpeciesError naming the elements and atoms that a potential lacks."""
    if potential_species is None:
        return
    unknown = [atom for atom, number in enumerate(numbers) if number not in potential_species]
    if not unknown:
        return
    elements = sorted({numbers[atom] for atom in unknown})
    known = [SYMBOLS[number] for number in sorted(potential_species)]
    raise UnknownSpeciesError(
        f"The potential does not know {name_some([SYMBOLS[number] for number in elements])} "
        f"(atoms {name_some(unknown)}); it was made for {name_some(known, 20)}, "
        "so choose another potential or change the structure."
    )
