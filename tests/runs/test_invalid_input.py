"""Bad input: one sentence, status 1, no traceback, and nothing written."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np
import pytest
import torch
from ase import Atoms

from mdgraph.engine import FIRE, LangevinMiddle, Simulation, VelocityVerlet
from mdgraph.errors import InputError, SimulationError
from mdgraph.models import Atoms as BatchAtoms
from mdgraph.neighbors import Pairs
from mdgraph.runs.config import MDConfig
from mdgraph.runs.md import start
from mdgraph.system import System

Command = Callable[..., Any]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def water(**changes: Any) -> Atoms:
    atoms = Atoms(
        "OHHOHH",
        [
            [1, 1, 1],
            [1.96, 1, 1],
            [0.76, 1.93, 1],
            [3.5, 3.4, 3.6],
            [3.5, 4.36, 3.6],
            [4.4, 3, 3.7],
        ],
        cell=np.eye(3) * 5.0,
        pbc=True,
    )
    for name, value in changes.items():
        setattr(atoms, name, value)
    return atoms


def with_positions(change: Callable[[np.ndarray], None]) -> Atoms:
    atoms = water()
    change(atoms.positions)
    return atoms


def with_mass_of_zero() -> Atoms:
    atoms = water()
    atoms.set_masses([16, 1, 0, 16, 1, 1])
    return atoms


STRUCTURES: dict[str, tuple[Callable[[], Atoms], str]] = {
    "unknown species": (
        lambda: water(numbers=[8, 1, 1, 9, 1, 17]),
        " does not know F, Cl (atoms 3, 5); it was made for H, O",
    ),
    "position that is not a number": (
        lambda: with_positions(lambda x: x.__setitem__((2, 1), np.nan)),
        "The positions of atom 2 are not finite",
    ),
    "infinite position": (
        lambda: with_positions(lambda x: x.__setitem__((4, 0), np.inf)),
        "The positions of atom 4 are not finite",
    ),
    "two atoms at one place": (
        lambda: with_positions(lambda x: x.__setitem__(5, x[1])),
        "Atoms 1 and 5 are at the same place",
    ),
    "an atom on an image": (
        lambda: with_positions(lambda x: x.__setitem__(5, x[1] + [5.0, -5.0, 10.0])),
        "Atoms 1 and 5 are at the same place",
    ),
    "singular cell": (
        lambda: water(cell=[[5, 0, 0], [0, 5, 0], [5, 5, 0]]),
        "The cell is singular",
    ),
    "missing cell": (lambda: water(cell=np.zeros((3, 3))), "The cell has no vector along"),
    "zero atoms": (lambda: Atoms(cell=np.eye(3) * 5.0, pbc=True), "no atoms"),
    "mass of zero": (with_mass_of_zero, "Atoms 2 have a mass that is not positive"),
    "charge in the file": (
        lambda: water(info={"charge": 1}),
        "The total charge is 1 e, but the potential takes no total charge",
    ),
    "triplet": (lambda: water(info={"spin": 3}), "singlets alone"),
}

OPTIONS: dict[str, tuple[list[str], str]] = {
    "time step of zero": (["--timestep-fs=0"], "--timestep-fs is 0; it should be greater than 0"),
    "negative time step": (["--timestep-fs=-0.5"], "--timestep-fs is -0.5; it should be greater"),
    "endless time step": (["--timestep-fs=inf"], "--timestep-fs is inf; it should be a finite"),
    "negative temperature": (["--temperature-K=-1"], "--temperature-K is -1; it should be"),
    "negative steps": (["--steps=-5"], "--steps is -5; it should be greater than or equal to 0"),
    "negative time": (["--time-ps=-5"], "--time-ps is -5; it should be greater than or equal"),
    "negative friction": (["--friction-per-ps=-1"], "--friction-per-ps is -1; it should be"),
    "negative skin": (["--skin-A=-1"], "--skin-A is -1; it should be"),
    "endless": (["--time-ps=1e300"], "--time-ps is more than 1e+15 steps"),
    "more than endless": (["--time-ps=1e308", "--timestep-fs=1e-6"], "--time-ps is more than"),
    "two lengths": (["--steps=1", "--time-ps=1"], "--steps and --time-ps both give the length"),
    "frames never": (["--trajectory-interval=0"], "--trajectory-interval is 0; it should be"),
    "charge": (
        ["--charge=-1"],
        "The total charge is -1 e, but the potential takes no total charge",
    ),
    "Coulomb": (["--coulomb-cutoff-A=12"], "the potential has no Coulomb energy"),
    "odd device": (["--device=toaster"], "Unknown device 'toaster'; choose cpu, cuda or cuda:N"),
    "device for others": (["--device=meta"], "mdgraph does not run on 'meta'"),
    "file of options": (["--config=none.yaml"], "Cannot read none.yaml: there is no such file"),
    "place within a file": (["--out=/dev/null/x"], "Cannot use /dev/null/x: a part of its path"),
    "place for a folder": (["--out=/dev/null"], "Cannot use /dev/null: a part of its path is not"),
    "place for nobody": (["--out=/dev/null/run"], "/dev/null"),
}


def check(done: Any, sentence: str) -> None:
    """One line on stderr, but for messages before it."""
    *messages, last = done.err.splitlines()
    assert last.startswith("mdgraph: error: "), done.err
    assert sentence in last
    assert last.endswith((".", "?"))
    assert done.status == 1
    assert all(line.startswith("mdgraph: ") for line in messages)
    assert done.out == ""


class TestDynamics:
    @pytest.mark.parametrize("fault", STRUCTURES)
    def test_structures(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path, fault: str
    ) -> None:
        make, sentence = STRUCTURES[fault]
        ase.io.write(place / "structure.traj", make())
        before = tree(place)
        for command in (["md"], ["md", "--minimize"], ["eval"]):
            done = mdgraph_command(*command, "structure.traj", "--potential", tiny_potential)
            check(done, sentence)
        assert tree(place) == before

    def test_a_potential_that_knows_the_elements_is_named(
        self, mdgraph_command: Command, place: Path
    ) -> None:
        ase.io.write(place / "copper.xyz", Atoms("Cu2", [[0, 0, 0], [0, 0, 2.5]]))
        check(
            mdgraph_command("md", "copper.xyz"),
            "The potential water-pbe0 does not know Cu (atoms 0, 1); it was made for H, O, so give "
            "another, such as --potential copper-pbe.",
        )

    @pytest.mark.parametrize("fault", OPTIONS)
    def test_options(
        self,
        mdgraph_command: Command,
        place: Path,
        tiny_potential: Path,
        water_file: Path,
        fault: str,
    ) -> None:
        options, sentence = OPTIONS[fault]
        done = mdgraph_command("md", water_file, "--potential", tiny_potential, *options)
        check(done, sentence)
        assert list(place.iterdir()) == []

    def test_no_cuda_device(
        self,
        mdgraph_command: Command,
        place: Path,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for command in ("md", "eval"):
            options = ["--potential", tiny_potential, "--device", "cuda:1"]
            done = mdgraph_command(command, water_file, *options)
            check(done, "Asked for cuda:1, but this machine has no CUDA device; choose another")
        assert list(place.iterdir()) == []

    def test_a_folder_that_holds_another_run(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        arguments = ["md", water_file, "--potential", tiny_potential, "--steps", 2]
        assert mdgraph_command(*arguments).status == 0
        before = tree(place)
        check(mdgraph_command(*arguments), "mdgraph-run holds a run already; continue it with")
        assert tree(place) == before

    def test_no_run_to_resume(self, mdgraph_command: Command, place: Path) -> None:
        check(mdgraph_command("md", "--resume"), "mdgraph-run holds no run to resume")
        assert list(place.iterdir()) == []


class TestFiles:
    def contents(self) -> dict[str, tuple[bytes, str]]:
        return {
            "empty.xyz": (b"", "it is empty"),
            "truncated.xyz": (b"6\n\nO 0 0 0\nH 1", "the file ends before it"),
            "noise.pdb": (bytes(range(256)), "it is not text"),
            "noise.h5": (bytes(range(256)), "noise.h5"),
            "noise.extxyz": (bytes(range(256)), "noise.extxyz"),
            "unknown.format": (b"water", "ASE knows no format"),
        }

    @pytest.mark.parametrize("command", ["md", "eval"])
    def test_that_are_no_structures(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path, command: str
    ) -> None:
        for name, (content, sentence) in self.contents().items():
            (place / name).write_bytes(content)
            before = tree(place)
            done = mdgraph_command(command, name, "--potential", tiny_potential)
            check(done, sentence)
            assert name in done.err
            assert tree(place) == before

    @pytest.mark.parametrize("command", ["md", "eval"])
    def test_that_are_absent(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path, command: str
    ) -> None:
        for name in ("none.xyz", "none.pdb", "none.h5"):
            done = mdgraph_command(command, name, "--potential", tiny_potential)
            check(done, f"Cannot read {name}: there is no such file")
        assert list(place.iterdir()) == []

    def test_a_trajectory_cut_short(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        arguments = [water_file, "--potential", tiny_potential]
        assert mdgraph_command("md", *arguments, "--steps", 20, "--out", "run").status == 0
        whole = (place / "run" / "trajectory.h5md").read_bytes()
        (place / "cut.h5").write_bytes(whole[: len(whole) // 2])
        done = mdgraph_command("eval", "cut.h5", "--potential", tiny_potential)
        check(done, "cut.h5")
        assert not (place / "results.extxyz").exists()

    def test_hdf5_of_something_else(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path
    ) -> None:
        with h5py.File(place / "other.h5", "w") as file:
            file["numbers"] = np.arange(3)
        done = mdgraph_command("eval", "other.h5", "--potential", tiny_potential)
        check(done, "other.h5 is not a trajectory that")

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("water-pbe", "perhaps water-pbe0 or water-pbe0-small is meant; potentials that"),
            (
                "Copper",
                "perhaps copper-pbe is meant; potentials that come with mdgraph",
            ),
            ("nope", "potentials that come with mdgraph: 3bpa"),
            ("hydrogen", "potentials that come with mdgraph: 3bpa-wb97x, acac-pbe, aspirin-pbe"),
            ("copper-pbe.ckpt", "potentials that come with mdgraph: 3bpa"),
            ("copper-pb/", "potentials that come with mdgraph: 3bpa"),
        ],
    )
    def test_that_are_nearly_those_of_mdgraph(
        self, mdgraph_command: Command, place: Path, name: str, advice: str
    ) -> None:
        done = mdgraph_command("md", "--potential", name)
        check(done, f"There is no file or folder '{name}' and no potential of that name; {advice}")

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (None, "There is no file or folder 'potential.ckpt' and no potential of that name"),
            (b"", "potential.ckpt"),
            (b"not a checkpoint, but long enough to be looked at", "potential.ckpt"),
        ],
    )
    def test_that_are_no_potentials(
        self,
        mdgraph_command: Command,
        place: Path,
        water_file: Path,
        content: bytes | None,
        sentence: str,
    ) -> None:
        if content is not None:
            (place / "potential.ckpt").write_bytes(content)
        before = tree(place)
        for arguments in (
            ["md", water_file, "--potential", "potential.ckpt"],
            ["eval", water_file, "--potential", "potential.ckpt"],
            ["inspect", "potential.ckpt"],
            ["convert", "potential.ckpt", "new.safetensors"],
        ):
            check(mdgraph_command(*arguments), sentence)
        assert tree(place) == before

    def test_a_disk_without_space(
        self, mdgraph_command: Command, place: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            done = [
                mdgraph_command("md", water_file, "--potential", tiny_potential),
                mdgraph_command("eval", water_file, "--potential", tiny_potential),
                mdgraph_command("convert", tiny_potential, "new.safetensors"),
            ]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        for one in done:
            check(one, "the file would exceed the largest size allowed")
        assert list(place.iterdir()) == []


class TestInterruptedWrites:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
    @pytest.mark.parametrize("name", ["fsync", "rename"])
    def test_of_a_run_folder_leave_nothing(
        self,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: Any,
        name: str,
    ) -> None:
        def refuse(*arguments: object) -> None:
            raise error

        monkeypatch.setattr(os, name, refuse)
        configuration = MDConfig(
            structure=str(water_file), potential=str(tiny_potential), out=str(tmp_path / "run")
        )
        with pytest.raises((KeyboardInterrupt, OSError)) as caught:
            start(configuration)
        if caught.type is not KeyboardInterrupt:
            assert "the disk is full; free some space." in str(caught.value)
        assert list(tmp_path.iterdir()) == []


class Cliff:
    """Atoms are free until two are 2 A apart, from where the forces are no numbers."""

    cutoffs: tuple[float, ...] = (3.0,)
    species = None
    uses_charge = False

    def __call__(self, atoms: BatchAtoms, pairs: tuple[Pairs, ...]) -> torch.Tensor:
        (block,) = pairs[0].blocks
        vectors = torch.where(block.valid[..., None], block.vectors, 1.0)
        apart = torch.linalg.vector_norm(vectors, dim=-1)
        return 0.0 * torch.sqrt(2.0 - apart).sum(1)


class TestRunsThatFail:
    def receding(self) -> System:
        return System(
            numbers=[1, 1, 1],
            positions=[[0, 0, 0], [1, 0, 0], [0, 50, 0]],
            velocities=[[0, 0, 0], [0.1, 0, 0], [0, 0, 0]],
        )

    def test_name_the_step_and_the_atoms_and_keep_the_last_good_state(self) -> None:
        simulation = Simulation(
            self.receding(), Cliff(), VelocityVerlet(0.5), device="cpu", chunk=7
        )
        with pytest.raises(SimulationError, match=r"forces on atoms 0, 1 are not finite") as caught:
            simulation.run(100)
        # 0.05 A a step bring them from 1 A to 2 A in 20.
        assert caught.value.atoms == (0, 1)
        assert caught.value.step == simulation.step + 1
        assert abs(simulation.step - 19) <= 1
        apart = float(simulation.state.positions[1, 0])
        np.testing.assert_allclose(apart, 1.0 + 0.05 * simulation.step, rtol=1e-12)
        assert torch.isfinite(simulation.state.forces).all()

    def test_at_the_start(self) -> None:
        system = self.receding().replace(positions=[[0, 0, 0], [2.5, 0, 0], [0, 50, 0]])
        with pytest.raises(SimulationError, match="atoms 0, 1 are not finite at the start"):
            Simulation(system, Cliff(), VelocityVerlet(0.5), device="cpu")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: VelocityVerlet(0.0), "The time step is 0.0 fs"),
        (lambda: VelocityVerlet(float("nan")), "timestep is nan; it must be a number"),
        (lambda: LangevinMiddle(0.5, -1.0), "The temperature is -1.0 K"),
        (lambda: LangevinMiddle(0.5, 300.0, 0.0), "The friction is 0.0 1/ps"),
        (lambda: FIRE("small"), "force_tolerance is 'small'; it must be a number"),  # type: ignore[arg-type]
    ],
)
def test_integrators_from_python(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_what_is_no_structure_is_named() -> None:
    with pytest.raises(InputError, match="or a list of them; VelocityVerlet is none"):
        Simulation(VelocityVerlet(0.5), VelocityVerlet(0.5), VelocityVerlet(0.5))
