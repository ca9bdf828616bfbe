"""Options of a distillation: those of the student's training, the teachers and the sampling."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mdgraph.arguments import Names
from mdgraph.train.config import Count, NotNegative, Part, Positive, TrainConfig


def _number_or_many(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


Texts = Annotated[tuple[str, ...], Names]
Temperatures = Annotated[
    tuple[Annotated[float, Field(gt=0, le=1e5)], ...],
    BeforeValidator(_number_or_many, json_schema_input_type=float | list[float]),
    Field(min_length=1, max_length=32),
]


class SamplingConfig(Part):
    """The frames that the teachers label in each round."""

    temperatures: Temperatures = (300.0, 600.0, 1000.0, 1500.0)
    """K, of dynamics: of the teacher in the first round, then of the student."""
    starts: Literal["all", "structures"] = "all"
    """Where dynamics start: from structures and the training frames of data, or from structures
    alone, which leaves frames of data that no dynamics should start from."""
    trajectories: Annotated[int, Field(ge=2, le=10_000)] = 8
    """At each temperature; one of them is held out."""
    frames: Count = 1000
    """In each round, before near-copies and frames without a label go."""
    interval: Positive = 100.0
    """fs of dynamics between two frames of a trajectory."""
    timestep: Annotated[float, Field(gt=0, le=10)] = 0.5
    """fs."""
    friction: NotNegative = 5.0
    """1/ps, of the Langevin dynamics."""
    moved: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Share of the frames that are copies of others with atoms moved: displaced; bonds stretched;
    parts turned about bonds or swung about atoms; atoms pushed together; cells strained."""
    drawn: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the frames that are copies of others with some hydrogens drawn out of their bonds or
    into them, by `stretch`, half of them towards the next heavy atom, also in cells, whose bonds no
    other move stretches. A student that takes a proton for free there lets outer steps run away."""
    pairs: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the moved frames of molecules that hold two copies of one, near each other."""
    relaxed: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of the moved frames that are brought some way to a minimum of the potential that drives
    dynamics, which leads into its holes."""
    displacement: Positive = 0.1
    """A, standard deviation of each coordinate of a displaced frame."""
    stretch: tuple[Positive, Positive] = (0.8, 1.6)
    """Range of a stretched bond, over its length."""
    bend: Annotated[float, Field(gt=0, le=90)] = 40.0
    """Degrees; most by which a part of a molecule is swung about the atom that holds it."""
    strain: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """Largest change of a cell's lengths; shear is a third of it."""
    largest_force: Positive = 50.0
    """eV/A; frames on which a teacher has a larger force are left out."""
    largest_energy: Positive = 1.0
    """eV an atom; frames that lie so far above the lowest of their composition are left out."""
    shortest_distance: NotNegative = 0.55
    """Of the sum of two covalent radii; frames with atoms nearer than that are left out."""
    squeezed: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Further frames in each round that hold squeezed lattices: those of structures, or of data
    where none are given, at rest and without forces on atoms, squeezed evenly, with energies that
    continue the teacher's by Vinet's equation of state. Reference energies are not refitted at the
    end then."""
    believed_to: Annotated[float, Field(gt=0.5, le=0.97)] = 0.88
    """Lattice constant over that at rest down to which the teacher is believed; squeezed frames
    begin there."""
    squeezed_to: Annotated[float, Field(gt=0.3, lt=0.97)] = 0.56
    """Lattice constant over that at rest at which squeezed frames end."""
    squeezed_weight: Positive = 1.0
    """Weight of squeezed lattices in the loss; see `clip`, which may take it away."""
    random: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Further frames in each round that are random crystals and free clusters of up to eight atoms,
    of the compositions of periodic structures and frames, or, where none is periodic, molecules
    with atoms out of place: as drawn, and some way and all the way to minima of the potential that
    drives dynamics, which lead into its holes."""
    random_teacher: str = ""
    """What labels random structures, where the teachers know nothing like them. Its energies are
    shifted so that they agree with the teachers' on the lowest structure of each composition.
    Frames of dynamics on which it differs by more than 0.3 eV an atom from them are left out."""
    random_shift: Annotated[float, Field(ge=-5, le=5)] = 0.0
    """eV an atom, added to random structures by random_teacher: what it has disordered ones, such
    as melts, too low against crystals at rest. `mdgraph eval` of frames of both tells it."""
    random_weight: Positive = 1.0
    """Weight of random structures in the loss; see `clip`, which may take it away."""
    turned: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Further frames in each round that are molecules with two or more sides turned about bonds at
    once, by any angles: half of them of structures and frames as they are, half of such at rest,
    and the share `relaxed` of them some way to a minimum. random_teacher labels them."""
    turned_within: NotNegative = 0.1
    """eV. Labels of turned molecules are the teachers' where these are so near to random_teacher,
    after the mean difference before molecules were turned, and random_teacher's, so much nearer to
    the teachers', elsewhere."""
    turned_weight: Positive = 1.0
    """Weight of turned molecules in the loss."""
    disagreement: Positive = 0.3
    """eV; frames on which the energies of several teachers differ by more get no label."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.moved + self.drawn >= 1.0:
            raise ValueError("moved and drawn leave no frame of dynamics; their sum is below 1")
        if self.squeezed_to >= self.believed_to:
            raise ValueError("squeezed_to must lie below believed_to, where squeezed frames begin")
        return self


class DistilConfig(TrainConfig):
    """Options of a distillation; those of a training hold for the student of each round."""

    renamed: ClassVar = TrainConfig.renamed

    data: str = ""
    """Labelled frames, which the student is trained on too, and from which dynamics start, unless
    sampling.starts says otherwise."""
    teacher: Annotated[Texts, Field(min_length=1, max_length=16, examples=["large-potential"])]
    """What labels frames: a potential, or a committee of several, whose mean counts."""
    structures: Annotated[Texts, Field(examples=["structures.extxyz"])] = ()
    """Files with structures from which dynamics start, beside the training frames of data."""
    sampling: SamplingConfig = SamplingConfig()
    rounds: Annotated[int, Field(ge=1, le=20)] = 2
    """Times that frames are sampled and a student is trained on all frames so far."""
    earlier_steps: Count | None = None
    """Length of the trainings of all rounds but the last, whose students only drive dynamics;
    without it, as long as the last."""
    label_weight: NotNegative = 1.0
    """Weight of the frames of data in the loss, beside 1 of the frames that teachers label."""
    label_copies: Annotated[int, Field(ge=1, le=100)] = 1
    """Times that steps take each training frame of data while they take a sampled one once. A
    weight alone does not do that: where few frames of a step are of data, it follows those few."""

    @model_validator(mode="after")
    def _has_starts(self) -> Self:
        if not self.data and not self.structures:
            raise ValueError("nothing says where dynamics start; give data or structures")
        if self.sampling.starts == "structures" and not self.structures:
            raise ValueError(
                "sampling.starts is structures, and none are given; give some, or leave it out"
            )
        if self.baseline:
            raise ValueError("a student replaces its teacher; leave baseline out")
        return self

    def training(self, **changes: Any) -> TrainConfig:
        """The training of a student, with other values for some keys."""
        own = set(TrainConfig.model_fields)
        values = {name: getattr(self, name) for name in self.model_fields_set & own}
        return TrainConfig.model_validate(values | changes)
