"""DFT-D3 dispersion with Becke-Johnson damping, as a term such as `d3bj:pbe@18`.

    E = -sum_ij C_ij (s6 / (r^6 + f^6) + 3 s8 q_i q_j / (r^8 + f^8)) S(r)    over pairs
    f = a1 sqrt(3 q_i q_j) + a2
    C_ij = sum_ab w_ia w_jb C_ab,   w_ia = exp(-4 (CN_i - CN_a)^2) / sum over the references
    CN_i = sum_j S'(r) / (1 + exp(-16 (r_ij / r - 1)))

==================  ========================================================================
C_ab, CN_a          C6 of pairs of reference molecules, and coordination numbers in them
q_i                 sqrt(C8 / C6 / 3) of an element, from its <r^4> and <r^2>
r_ij                4/3 of the sum of covalent radii
s6, s8, a1, a2      of the functional
S, S'               1, and over the last angstroms before the cutoffs a quintic to 0
==================  ========================================================================

DOI 10.1063/1.3382344 (D3), 10.1002/jcc.21759 (damping). The package tad-dftd3 holds tables and
parameters; its data files are read, and its program is not run. All is computed in float64, in
Hartree and Bohr.
"""

import hashlib
import importlib
import importlib.util
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mdgraph.errors import InputError, name_some, printable, similar_names
from mdgraph.models.architectures import Architecture, KeptNumbers, architecture_named, register
from mdgraph.models.config import PotentialConfig, Range, Text
from mdgraph.models.level_of_theory import functional_in
from mdgraph.models.ops.messages import gather, sum_slots
from mdgraph.models.pair_potentials import switched
from mdgraph.models.potential import Atoms, ListRoles, PotentialModule
from mdgraph.neighbors.pairs import Pairs

BOHR: Final = 0.529177210903
"""A."""
HARTREE: Final = 27.211386245988
"""eV."""

DEFAULT_CUTOFF: Final = 18.0
"""A; `docs/terms.md` has what cutoffs cost in energy and pressure."""

COORDINATION_CUTOFF: Final = 12.0
"""A, at most that of the energy."""

SWITCH: Final = 2.0
"""A."""

STEEPNESS: Final = 16.0
"""Of the count of neighbors."""

WIDTH: Final = 4.0
"""Of the weights of references."""

_INSTALL: Final = "install it with: pip install 'mdgraph[d3]'"


class D3Config(PotentialConfig):
    """Configuration of a D3Potential."""

    architecture: Literal["d3bj"] = "d3bj"
    functional: Text
    """As tad-dftd3 and s-dftd3 call it."""
    s6: float
    s8: float
    a1: float
    a2: float
    """Bohr."""
    cutoff: Range
    switch: Annotated[float, Field(ge=0.0)] = SWITCH
    """A, over which the energy of pairs ends; 0 ends it at once."""
    coordination_cutoff: Range
    coordination_switch: Annotated[float, Field(ge=0.0)] = SWITCH
    """A, over which the count of neighbors ends."""
    tables_sha256: Text = ""
    """Of the reference tables; those that are installed must be the same."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.switch > self.cutoff or self.coordination_switch > self.coordination_cutoff:
            raise ValueError("switch is longer than the cutoff")
        return self


@dataclass(frozen=True, eq=False)
class D3Tables:
    """What D3 knows of elements, by atomic number, in atomic units.

    Attributes:
        c6: (Z, Z, R, R) float64, of pairs of references.
        numbers: (Z, R) float64, coordination numbers of references; negative for none.
        radii: (Z,) float64, 4/3 of covalent radii.
        moments: (Z,) float64, q.
        sha256: of all four.
    """

    c6: Tensor
    numbers: Tensor
    radii: Tensor
    moments: Tensor
    sha256: str

    @property
    def species(self) -> tuple[int, ...]:
        """Elements with references."""
        return tuple(number for number, row in enumerate(self.numbers.tolist()) if max(row) >= 0.0)


@cache
def d3_tables() -> D3Tables:
    """The tables of the installed tad-dftd3; raises InputError without it."""
    folder = _package()
    try:
        radii = importlib.import_module("tad_mctc.data.radii").COV_D3(dtype=torch.float64)
    except (ImportError, AttributeError) as error:
        raise InputError(f"DFT-D3 needs the package tad-mctc; {_INSTALL}.") from error
    reference = _executed(folder / "reference.py").Reference(dtype=torch.float64)
    moments = _executed(folder / "data" / "r4r2.py").R4R2(dtype=torch.float64)
    rows = len(reference.cn)
    tables = (reference.c6, reference.cn, radii[:rows], moments[:rows])
    digest = hashlib.sha256()
    for table in tables:
        digest.update(table.contiguous().numpy().tobytes())
    return D3Tables(*tables, sha256=digest.hexdigest())


def _package() -> Path:
    """The folder of tad_dftd3, which is not imported: that takes seconds."""
    spec = importlib.util.find_spec("tad_dftd3")
    if spec is None or spec.origin is None:
        raise InputError(
            f"DFT-D3 needs the tables and parameters of the package tad-dftd3; {_INSTALL}."
        )
    return Path(spec.origin).parent


def _executed(path: Path) -> ModuleType:
    """The module of a file, by itself."""
    try:
        spec = importlib.util.spec_from_file_location(f"mdgraph_d3_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise InputError(
            f"The tables of DFT-D3 are not where tad-dftd3 0.7 has them ({printable(error, 200)}); "
            f"{_INSTALL}."
        ) from error
    return module


@cache
def _functionals() -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Parameters by functional, and other names of functionals."""
    folder = _package() / "param"
    try:
        parameters, aliases = (
            tomllib.loads((folder / name).read_text(encoding="utf-8"))
            for name in ("parameters.toml", "aliases.toml")
        )
        usual = parameters["default"]["parameter"]["d3"]["bj"]
        known = {
            name: usual | entry["d3"]["bj"]
            for name, entry in parameters["parameter"].items()
            if "bj" in entry.get("d3", {})
        }
        return known, dict(aliases["alias"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"The parameters of DFT-D3 are not where tad-dftd3 0.7 has them; {_INSTALL}."
        ) from error


def canonical_functional(name: str) -> str:
    """The name that parameters go by: lower case without hyphens, and no alias."""
    plain = name.strip().lower().replace("-", "")
    return _functionals()[1].get(plain, plain)


def d3_config(
    functional: str,
    cutoff: float = DEFAULT_CUTOFF,
    *,
    switch: float = SWITCH,
    coordination_cutoff: float | None = None,
    coordination_switch: float = SWITCH,
) -> D3Config:
    """The configuration of D3(BJ) for a functional.

    Args:
        functional: such as `pbe`, `PBE0` or `wB97X`.
        cutoff: A, of the energy of pairs.
        switch: A, over which that ends.
        coordination_cutoff: A; None takes 12, or the cutoff if that is shorter.
        coordination_switch: A.

    Raises:
        InputError: an unknown functional, or tad-dftd3 is not installed.
    """
    known = _functionals()[0]
    word = canonical_functional(functional)
    if word not in known:
        near = similar_names(word, known, 0.6)
        advice = f"did you mean {name_some(near[:4])}?" if near else "see `docs/terms.md`."
        raise InputError(
            f"D3(BJ) has no parameters for the functional '{printable(functional, 60)}'; {advice}"
        )
    if coordination_cutoff is None:
        coordination_cutoff = min(COORDINATION_CUTOFF, cutoff)
    tables = d3_tables()
    own = known[word]
    return D3Config(
        species=tables.species,
        name=f"d3bj:{word}@{cutoff:g}",
        functional=word,
        **{name: own[name] for name in ("s6", "s8", "a1", "a2")},
        cutoff=cutoff,
        switch=min(switch, cutoff),
        coordination_cutoff=coordination_cutoff,
        coordination_switch=min(coordination_switch, coordination_cutoff),
        tables_sha256=tables.sha256,
    )


class D3Potential(PotentialModule):
    """D3(BJ) of a functional, differentiable twice.

    Attributes:
        c6, numbers, radii, moments: see D3Tables.
    """

    config: D3Config
    c6: Tensor
    numbers: Tensor
    radii: Tensor
    moments: Tensor

    def __init__(self, config: D3Config) -> None:
        super().__init__(config)
        tables = d3_tables()
        if config.tables_sha256 not in ("", tables.sha256):
            raise InputError(
                f"{config.name or 'DFT-D3'} was made with other tables than those of the "
                f"tad-dftd3 that is installed ({config.tables_sha256[:12]}, not "
                f"{tables.sha256[:12]}); install the release it was made with, or add the term "
                "anew."
            )
        for name in ("c6", "numbers", "radii", "moments"):
            self.register_buffer(name, getattr(tables, name), persistent=False)

    @property
    def list_roles(self) -> ListRoles:
        """`dispersion` is the list of the energy, `coordination` that of coordination numbers."""
        own = {
            "dispersion": self.config.cutoff,
            "coordination": self.config.coordination_cutoff,
        }
        return ListRoles.of(own, {})

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """See Potential."""
        return self.list_roles.cutoffs

    def cast_(self, dtype: torch.dtype) -> None:
        """Tables stay float64."""

    @property
    def stated_dispersion(self) -> str:
        """See PotentialModule."""
        return "D3(BJ)"

    def objection(self, potential: PotentialModule) -> str | None:
        """See PotentialModule: dispersion that is there, or another level of theory."""
        config = potential.config
        if architecture_named(config.architecture).simple:
            return None
        name, level = config.name or "The potential", config.level_of_theory
        own = f"the term {self.config.name}"
        if present := potential.stated_dispersion:
            of_level = f", by its level of theory {level}" if level else ""
            return f"{name} has a dispersion already ({present}{of_level}), and {own} is another"
        if not level:
            return f"{name} does not state its level of theory, so {own} may not suit it"
        functional = functional_in(level)
        if canonical_functional(functional) != self.config.functional:
            return f"{name} is of {level}, and {own} is for the functional {self.config.functional}"
        return None

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential; each atom gets half the energy of its pairs."""
        lists = self.list_roles.assign(pairs)
        coordination = self.coordination(atoms, lists["coordination"])
        weights = self.weights(atoms.numbers, coordination)
        table = self.c6.index_select(0, atoms.elements).index_select(1, atoms.elements)
        # (N, E, R): C6 of an atom with each reference of each element.
        own = torch.einsum("na,neab->neb", weights, table.index_select(0, atoms.kinds))
        listed = lists["dispersion"]
        total = torch.zeros(len(atoms.numbers), dtype=torch.float64, device=weights.device)
        for block, weight in zip(listed.blocks, gather(weights, listed), strict=True):
            index = block.index.flatten()
            kinds = atoms.kinds.index_select(0, index).view_as(block.index)
            # One product for each element: a gather by kind would add in any order backwards.
            c6 = torch.zeros(block.index.shape, dtype=torch.float64, device=weights.device)
            for kind in range(len(atoms.elements)):
                products = (own[:, kind, None] * weight).sum(-1)
                c6 = c6 + torch.where(kinds == kind, products, 0.0)
            moment = self.moments.index_select(0, atoms.numbers)
            product = moment[:, None] * moment.index_select(0, index).view_as(block.index)
            distance = torch.linalg.vector_norm(block.vectors.double(), dim=-1)
            energy = c6 * self.of_distance(distance, product)
            inside = block.valid & (distance < self.config.cutoff)
            total = total + sum_slots(torch.where(inside, energy, 0.0))
        return 0.5 * HARTREE * total

    def of_distance(self, distance: Tensor, product: Tensor) -> Tensor:
        """E / C6 of pairs by their distances (A) and q_i q_j, in atomic units."""
        config = self.config
        radius = distance / BOHR
        ratio = 3.0 * product
        damping = config.a1 * torch.sqrt(ratio) + config.a2
        sixth = config.s6 / (radius**6 + damping**6)
        eighth = config.s8 * ratio / (radius**8 + damping**8)
        return -(sixth + eighth) * switched(distance, config.cutoff, config.switch)

    def coordination(self, atoms: Atoms, pairs: Pairs) -> Tensor:
        """CN (N,) float64."""
        config = self.config
        radii = self.radii.index_select(0, atoms.numbers)
        total = torch.zeros(len(atoms.numbers), dtype=torch.float64, device=radii.device)
        for block in pairs.blocks:
            neighbor = radii.index_select(0, block.index.flatten()).view_as(block.index)
            distance = torch.linalg.vector_norm(block.vectors.double(), dim=-1)
            reach = BOHR * (radii[:, None] + neighbor)
            count = torch.sigmoid(STEEPNESS * (reach / distance - 1.0))
            count = count * switched(
                distance, config.coordination_cutoff, config.coordination_switch
            )
            inside = block.valid & (distance < config.coordination_cutoff)
            total = total + sum_slots(torch.where(inside, count, 0.0))
        return total

    def weights(self, numbers: Tensor, coordination: Tensor) -> Tensor:
        """W (N, R) float64: a softmax, which does not underflow far from all references."""
        references = self.numbers.index_select(0, numbers)
        exponents = -WIDTH * (coordination[:, None] - references) ** 2
        return torch.softmax(exponents.masked_fill(references < 0.0, -torch.inf), dim=-1)

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        config = self.config
        return {
            "functional": config.functional,
            "parameters": [
                f"{name} {getattr(config, name):g}" for name in ("s6", "s8", "a1", "a2")
            ],
            "cutoff_A": config.cutoff,
            "switch_A": config.switch,
            "coordination_cutoff_A": config.coordination_cutoff,
            "coordination_switch_A": config.coordination_switch,
            "tables_sha256": config.tables_sha256[:12],
        }


def switched_with_slope(distance: Tensor, cutoff: float, width: float) -> tuple[Tensor, Tensor]:
    """S(r) of `switched` and its slope, 1/A, of distances in A."""
    value = switched(distance, cutoff, width)
    if width == 0.0:
        return value, torch.zeros_like(distance)
    u = ((distance - (cutoff - width)) / width).clamp(0.0, 1.0)
    return value, -30.0 / width * u**2 * (1.0 - u) ** 2


def _parse(arguments: str, cutoff: float | None) -> D3Config:
    functional, plus, more = arguments.partition("+")
    if not functional:
        raise InputError("The term d3bj needs a functional; write it as in d3bj:pbe.")
    if plus:
        raise InputError(
            f"The term d3bj:{printable(arguments, 60)} asks for "
            f"{'a three-body term' if more == 'atm' else printable(more, 40)}, which mdgraph does "
            f"not have; write d3bj:{printable(functional, 60)}."
        )
    return d3_config(functional, DEFAULT_CUTOFF if cutoff is None else cutoff)


def _kept(config: D3Config) -> KeptNumbers:
    """Autograd keeps some 30 numbers of a slot and element, about."""
    return KeptNumbers(radial=30)


register(Architecture("d3bj", "DFT-D3(BJ)", D3Config, D3Potential, _kept, parse=_parse))
