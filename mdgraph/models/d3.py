"""DFT-D3 dispersion with Becke-Johnson damping, as a term such as `d3bj:pbe@18`.

`d3bj:pbe+atm` has the three-body term of Axilrod, Teller and Muto, E_3, too:

    E = -sum_ij C_ij (s6 / (r^6 + f^6) + 3 s8 q_i q_j / (r^8 + f^8)) S(r)    over pairs
    f = a1 sqrt(3 q_i q_j) + a2
    C_ij = sum_ab w_ia w_jb C_ab,   w_ia = exp(-4 (CN_i - CN_a)^2) / sum over the references
    CN_i = sum_j S'(r) / (1 + exp(-16 (r_ij / r - 1)))

    E_3 = s9 sum_ijk sqrt(C_ij C_ik C_jk) (1 + 3 cos_i cos_j cos_k) / (r_ij r_ik r_jk)^3
          g S3(r_ij) S3(r_ik) S3(r_jk)                         over triples
    g = 1 / (1 + 6 (R_ij R_ik R_jk / (r_ij r_ik r_jk))^(16/3))

==================  ========================================================================
C_ab, CN_a          C6 of pairs of reference molecules, and coordination numbers in them
q_i                 sqrt(C8 / C6 / 3) of an element, from its <r^4> and <r^2>
r_ij                4/3 of the sum of covalent radii
s6, s8, a1, a2      of the functional
s9, cos_i, R_ij     1 or 0; cosine of the angle at i; 4/3 of the cutoff radius of two elements
S, S', S3           1, and over the last angstroms before the cutoffs a quintic to 0
==================  ========================================================================

DOI 10.1063/1.3382344 (D3, three-body term), 10.1002/jcc.21759 (damping). The package
tad-dftd3 holds tables and parameters; its data files are read, and its program is not run. All is
computed in float64, in Hartree and Bohr.
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
from mdgraph.gpu.launch import tracing
from mdgraph.models.architectures import Architecture, KeptNumbers, architecture_named, register
from mdgraph.models.config import PotentialConfig, Range, Text
from mdgraph.models.ops.messages import gather, sum_slots
from mdgraph.models.pair_potentials import switched
from mdgraph.models.potential import Atoms, ListRoles, PotentialModule, functional_in
from mdgraph.neighbors.pairs import Pairs

BOHR: Final = 0.529177210903
"""A."""
HARTREE: Final = 27.211386245988
"""eV."""

DEFAULT_CUTOFF: Final = 18.0
"""A; `docs/terms.md` has what cutoffs cost in energy and pressure."""

COORDINATION_CUTOFF: Final = 12.0
"""A, at most that of the energy."""

THREE_BODY_CUTOFF: Final = 10.0
"""A, at most that of the energy of pairs; `docs/terms.md` has what cutoffs cost."""

THREE_BODY_RADIUS: Final = 4.0 / 3.0
"""Of the damping of triples, in cutoff radii of two elements."""

THREE_BODY_EXPONENT: Final = 16.0 / 3.0
"""Of the damping of triples, for the product of three ratios."""

MOST_TRIPLES: Final = 2**20
"""Entries (atom, slot, slot) that the reference holds at a time; more are computed in parts."""

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
    s9: Annotated[float, Field(ge=0.0)] = 0.0
    """Of the three-body term; 0 leaves it out."""
    three_body_cutoff: Range = THREE_BODY_CUTOFF
    three_body_switch: Annotated[float, Field(ge=0.0)] = SWITCH
    """A, over which the energy of triples ends along each side."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (
            self.switch > self.cutoff
            or self.coordination_switch > self.coordination_cutoff
            or self.three_body_switch > self.three_body_cutoff
        ):
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
        separations: (Z, Z) float64, cutoff radii of pairs of elements.
        sha256: of the first four.
        three_body_sha256: of all five.
    """

    c6: Tensor
    numbers: Tensor
    radii: Tensor
    moments: Tensor
    separations: Tensor
    sha256: str
    three_body_sha256: str

    @property
    def species(self) -> tuple[int, ...]:
        """Elements with references."""
        return tuple(number for number, row in enumerate(self.numbers.tolist()) if max(row) >= 0.0)


@cache
def d3_tables() -> D3Tables:
    """The tables of the installed tad-dftd3; raises InputError without it."""
    folder = _package()
    try:
        module = importlib.import_module("tad_mctc.data.radii")
        radii = module.COV_D3(dtype=torch.float64)
        separations = module.VDW_PAIRWISE(dtype=torch.float64)
    except (ImportError, AttributeError) as error:
        raise InputError(f"DFT-D3 needs the package tad-mctc; {_INSTALL}.") from error
    reference = _executed(folder / "reference.py").Reference(dtype=torch.float64)
    moments = _executed(folder / "data" / "r4r2.py").R4R2(dtype=torch.float64)
    rows = len(reference.cn)
    tables = (reference.c6, reference.cn, radii[:rows], moments[:rows])
    digest = hashlib.sha256()
    for table in tables:
        digest.update(table.contiguous().numpy().tobytes())
    sha256 = digest.hexdigest()
    # They are published with four decimals of an angstrom, and the file holds them in float32.
    separations = torch.round(separations[:rows, :rows] * BOHR, decimals=4) / BOHR
    digest.update(separations.numpy().tobytes())
    return D3Tables(*tables, separations, sha256, digest.hexdigest())


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
    three_body: bool = False,
    three_body_cutoff: float | None = None,
    three_body_switch: float = SWITCH,
) -> D3Config:
    """The configuration of D3(BJ) for a functional.

    Args:
        functional: such as `pbe`, `PBE0` or `wB97X`.
        cutoff: A, of the energy of pairs.
        switch: A, over which that ends.
        coordination_cutoff: A; None takes 12, or the cutoff if that is shorter.
        coordination_switch: A.
        three_body: whether to add the term of triples, with s9 = 1.
        three_body_cutoff: A, of each side of a triple; None takes 10, or the cutoff if that is
            shorter.
        three_body_switch: A.

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
    if three_body_cutoff is None:
        three_body_cutoff = min(THREE_BODY_CUTOFF, cutoff)
    tables = d3_tables()
    own = known[word]
    triples = f"+atm={three_body_cutoff:g}" if three_body else ""
    return D3Config(
        species=tables.species,
        name=f"d3bj:{word}{triples}@{cutoff:g}",
        functional=word,
        **{name: own[name] for name in ("s6", "s8", "a1", "a2")},
        cutoff=cutoff,
        switch=min(switch, cutoff),
        coordination_cutoff=coordination_cutoff,
        coordination_switch=min(coordination_switch, coordination_cutoff),
        tables_sha256=tables.three_body_sha256 if three_body else tables.sha256,
        s9=1.0 if three_body else 0.0,
        three_body_cutoff=three_body_cutoff,
        three_body_switch=min(three_body_switch, three_body_cutoff),
    )


class D3Potential(PotentialModule):
    """D3(BJ) of a functional, differentiable twice.

    Attributes:
        c6, numbers, radii, moments, separations: see D3Tables.
    """

    config: D3Config
    c6: Tensor
    numbers: Tensor
    radii: Tensor
    moments: Tensor
    separations: Tensor

    def __init__(self, config: D3Config) -> None:
        super().__init__(config)
        tables = d3_tables()
        installed = tables.three_body_sha256 if config.s9 else tables.sha256
        if config.tables_sha256 not in ("", installed):
            raise InputError(
                f"{config.name or 'DFT-D3'} was made with other tables than those of the "
                f"tad-dftd3 that is installed ({config.tables_sha256[:12]}, not "
                f"{installed[:12]}); install the release it was made with, or add the term "
                "anew."
            )
        for name in ("c6", "numbers", "radii", "moments", "separations"):
            self.register_buffer(name, getattr(tables, name), persistent=False)

    @property
    def list_roles(self) -> ListRoles:
        """`dispersion` and `three_body` are lists of energies, `coordination` that of counts."""
        own = {
            "dispersion": self.config.cutoff,
            "coordination": self.config.coordination_cutoff,
        }
        if self.config.s9:
            own["three_body"] = self.config.three_body_cutoff
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
        return "D3(BJ)+ATM" if self.config.s9 else "D3(BJ)"

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
        """See Potential; each atom gets half the energy of its pairs, a third of its triples."""
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
        total = 0.5 * total
        if self.config.s9:
            total = total + self._three_body(atoms, lists["three_body"], weights, own)
        return HARTREE * total

    def _three_body(self, atoms: Atoms, listed: Pairs, weights: Tensor, own: Tensor) -> Tensor:
        """Energy (N,) of triples, Hartree, a third of each to its atoms; see `forward`."""
        blocks = listed.blocks
        vectors = torch.cat([block.vectors.double() for block in blocks], 1)
        index = torch.cat([block.index for block in blocks], 1)
        inside = torch.cat([block.valid for block in blocks], 1)
        weight = torch.cat(gather(weights, listed), 1)
        others = torch.cat(gather(own.flatten(1), listed), 1).unflatten(-1, own.shape[1:])
        kinds = atoms.kinds.index_select(0, index.flatten()).view_as(index)
        # Rows of `own` for the element of each neighbor, again without a gather by kind.
        mine = torch.zeros(index.shape, dtype=torch.float64, device=weights.device)
        for kind in range(len(atoms.elements)):
            products = (own[:, kind, None] * weight).sum(-1)
            mine = mine + torch.where(kinds == kind, products, 0.0)
        radii = self.separations.index_select(0, atoms.elements).index_select(1, atoms.elements)
        reach = THREE_BODY_RADIUS * BOHR * radii
        parts = (vectors, inside, kinds, weight, others, mine, atoms.kinds)
        step = max(1, MOST_TRIPLES // max(1, index.shape[1] ** 2))
        if tracing() or step >= len(index):
            return _triples(self.config, reach, *parts)
        energies = []
        for first in range(0, len(index), step):
            part = [values[first : first + step] for values in parts]
            energies.append(_Recomputed.apply(self.config, reach, *part))
        return torch.cat(energies)

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
        } | (
            {
                "three_body": f"Axilrod-Teller-Muto, s9 {config.s9:g}",
                "three_body_cutoff_A": config.three_body_cutoff,
                "three_body_switch_A": config.three_body_switch,
            }
            if config.s9
            else {}
        )


def switched_with_slope(distance: Tensor, cutoff: float, width: float) -> tuple[Tensor, Tensor]:
    """S(r) of `switched` and its slope, 1/A, of distances in A."""
    value = switched(distance, cutoff, width)
    if width == 0.0:
        return value, torch.zeros_like(distance)
    u = ((distance - (cutoff - width)) / width).clamp(0.0, 1.0)
    return value, -30.0 / width * u**2 * (1.0 - u) ** 2


def _triples(
    config: D3Config,
    reach: Tensor,
    vectors: Tensor,
    inside: Tensor,
    kinds: Tensor,
    weight: Tensor,
    others: Tensor,
    mine: Tensor,
    kind: Tensor,
) -> Tensor:
    """Energy (n,) of the triples at n atoms, Hartree, a third of each.

    Args:
        config: of the potential.
        reach: (E, E) A, R of two elements.
        vectors: (n, K, 3) A, to neighbors.
        inside: (n, K) bool, which there are.
        kinds: (n, K) int64, elements of neighbors.
        weight: w (n, K, R) of neighbors.
        others: sum_a w_a C_ab (n, K, E, R) of neighbors.
        mine: C_ij (n, K).
        kind: (n,) int64, elements of the atoms.
    """
    cutoff, width = config.three_body_cutoff, config.three_body_switch
    inside = inside & (torch.linalg.vector_norm(vectors, dim=-1) < cutoff)
    vectors = torch.where(inside[..., None], vectors, vectors.new_tensor([cutoff, 0.0, 0.0]))
    distance = torch.linalg.vector_norm(vectors, dim=-1)
    both = inside[:, :, None] & inside[:, None]
    both = both & ~torch.eye(vectors.shape[1], dtype=torch.bool, device=vectors.device)
    between = torch.where(
        both[..., None], vectors[:, None] - vectors[:, :, None], vectors.new_tensor([cutoff, 0, 0])
    )
    third = torch.linalg.vector_norm(between, dim=-1)
    both = both & (third < cutoff)
    c6 = torch.zeros_like(third)
    for element in range(reach.shape[0]):
        products = torch.einsum("njb,nkb->njk", others[:, :, element], weight)
        c6 = c6 + torch.where((kinds == element)[:, None], products, 0.0)
    square, fourth = distance.square(), third.square()
    one, two = square[:, :, None], square[:, None]
    product = distance[:, :, None] * distance[:, None] * third
    angle = 0.375 * (one + two - fourth) * (one + fourth - two) * (two + fourth - one)
    angle = angle / product**5 + 1.0 / product**3
    ratio = reach[kind[:, None], kinds] / distance
    ratio = ratio[:, :, None] * ratio[:, None] * (reach[kinds[:, :, None], kinds[:, None]] / third)
    strength = mine[:, :, None] * mine[:, None] * torch.where(both, c6, 1.0)
    ends = switched(distance, cutoff, width)
    energy = torch.sqrt(strength) * angle / (1.0 + 6.0 * ratio**THREE_BODY_EXPONENT)
    energy = energy * ends[:, :, None] * ends[:, None] * switched(third, cutoff, width)
    energy = sum_slots(sum_slots(torch.where(both, energy, 0.0)))
    return config.s9 * BOHR**9 / 6.0 * energy


class _Recomputed(torch.autograd.Function):
    """`_triples`, computed again where it is differentiated, so that nothing of it is kept.

    Its backward pass is differentiable. `torch.utils.checkpoint` does the same, and imports
    torch's compiler, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, config: D3Config, reach: Tensor, *parts: Tensor) -> Tensor:
        ctx.config = config
        ctx.save_for_backward(reach, *parts)
        return _triples(config, reach, *parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        again, inputs = torch.is_grad_enabled(), ctx.saved_tensors
        needed = [value for value in inputs if value.requires_grad]
        with torch.enable_grad():
            energy = _triples(ctx.config, *inputs)
            slopes = iter(torch.autograd.grad(energy, needed, gradients[0], create_graph=again))
        return None, *(next(slopes) if value.requires_grad else None for value in inputs)


def _parse(arguments: str, cutoff: float | None) -> D3Config:
    functional, plus, more = arguments.partition("+")
    if not functional:
        raise InputError("The term d3bj needs a functional; write it as in d3bj:pbe.")
    word, equals, number = more.partition("=")
    sides: float | None = None
    try:
        sides = float(number) if equals else None
    except ValueError:
        word = more
    if plus and word != "atm":
        raise InputError(
            f"The term d3bj:{printable(arguments, 60)} asks for {printable(more, 40)}, which "
            f"mdgraph does not have; write d3bj:{printable(functional, 60)}, or with the "
            f"three-body term d3bj:{printable(functional, 60)}+atm, or +atm=10 for its cutoff in A."
        )
    return d3_config(
        functional,
        DEFAULT_CUTOFF if cutoff is None else cutoff,
        three_body=bool(plus),
        three_body_cutoff=sides,
    )


def _kept(config: D3Config) -> KeptNumbers:
    """Autograd keeps some 30 numbers of a slot and element, about."""
    return KeptNumbers(radial=30)


register(Architecture("d3bj", "DFT-D3(BJ)", D3Config, D3Potential, _kept, parse=_parse))
