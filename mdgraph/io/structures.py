"""Reads structures from PDB, mmCIF, GRO and all formats of ASE; converts from and to ase.Atoms."""

import codecs
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import ase.io
import numpy as np
from ase import Atoms
from ase import units as ase_units
from ase.constraints import FixAtoms
from ase.data import atomic_masses
from ase.io.cif import parse_cif
from ase.io.formats import IOFormat, UnknownFileTypeError, filetype, get_ioformat
from numpy.typing import NDArray

from mdgraph.errors import FileError, InputError, name_some, printable
from mdgraph.host_memory import available_host_memory, bounded_growth, check_fits
from mdgraph.io.files import (
    COMPRESSIONS,
    LARGEST_TEXT,
    UTF8_MARK,
    as_text,
    disk_failures,
    path_argument,
    read_decompressed,
    readable_file,
)
from mdgraph.io.formats import format_of, read_trajectory
from mdgraph.io.pdb import parse_gro, parse_mmcif, parse_pdb
from mdgraph.io.sdf import parse_sdf
from mdgraph.io.xyz import (
    FrameText,
    PlainFrame,
    count_frames,
    parse_frame,
    parse_plain_frame,
    read_xyz,
)
from mdgraph.system import System, SystemArrays, Topology

_logger = logging.getLogger(__name__)

CHARGE_KEYS: Final = ("charge", "total_charge")
"""Names of a total charge in `info`, the first that is there."""

# A singlet has 0 unpaired electrons and the multiplicity 1; `spin` may mean either.
SINGLETS: Final = {"spin": (0.0, 1.0), "spin_multiplicity": (1.0,), "multiplicity": (1.0,)}
"""Names of a spin in `info`, and the values that a singlet may have there."""

_UNLIKE: Final = 0.5
"""amu between the mass of a type and that of an element beyond which it is no such element."""

_WHOLE: Final = 0.99
"""Least occupancy of a site that counts as full."""


def from_ase(atoms: Atoms) -> System:
    """Converts ASE's Atoms to a system; copies the arrays.

    The charge is `atoms.info['charge']`, else that of `total_charge`, or None. Atoms that ASE's
    `FixAtoms` holds are fixed; other constraints are left out.

    Raises:
        InputError: the charge in `info` is not a number, the spin is not a singlet, or the
            atoms are no valid `System`.
    """
    _check_singlet(atoms.info)
    masses: Any = atoms.arrays.get("masses")
    if masses is None and np.isin(atoms.numbers, range(len(atomic_masses))).all():
        masses = atoms.get_masses()
    charges = (_number(atoms.info, key) for key in CHARGE_KEYS)
    system = System(
        numbers=atoms.numbers,
        positions=atoms.positions,
        cell=atoms.cell.array,
        pbc=atoms.pbc,
        masses=masses,
        charge=next((charge for charge in charges if charge is not None), None),
        fixed=fixed_atoms(atoms),
    )
    if not atoms.has("momenta"):
        return system
    momenta = atoms.arrays["momenta"]
    if momenta.dtype.kind not in "iuf" or momenta.shape != system.positions.shape:
        raise InputError(
            f"The momenta have shape {momenta.shape} and type {momenta.dtype}; give numbers of "
            f"shape {system.positions.shape}, or none."
        )
    return system.replace(velocities=momenta / system.masses[:, None] * ase_units.fs)


def to_ase(system: System) -> Atoms:
    """Converts to ASE's Atoms, with FixAtoms; a known charge goes to `info['charge']`."""
    atoms = Atoms(
        numbers=system.numbers,
        positions=system.positions,
        cell=system.cell,
        pbc=system.pbc,
        masses=system.masses,
    )
    if system.velocities is not None:
        atoms.set_velocities(system.velocities / ase_units.fs)
    if system.charge is not None:
        atoms.info["charge"] = system.charge
    if system.fixed is not None:
        atoms.set_constraint(FixAtoms(mask=system.fixed))
    return atoms


def write_structure(path: Path, system: System) -> None:
    """Writes a structure as extended XYZ; raises OSError."""
    ase.io.write(path, to_ase(system), format="extxyz")


def structures_text(systems: Mapping[str, System]) -> str:
    """Structures as extended XYZ, each with its name as `kind`, and no atom fixed."""
    written = []
    for name, system in systems.items():
        atoms = to_ase(system.replace(fixed=None))
        atoms.info["kind"] = name
        written.append(atoms)
    text = io.StringIO()
    ase.io.write(text, written, format="extxyz")
    return text.getvalue()


def other_constraints(atoms: Atoms) -> list[str]:
    """Names of the classes of constraints that a `System` cannot have."""
    # Not isinstance: a subclass constrains something else.
    names = {type(one).__name__ for one in atoms.constraints if type(one) is not FixAtoms}
    return sorted(names)


def fixed_atoms(atoms: Atoms) -> NDArray[np.bool_] | None:
    """(N,) bool, the atoms that `FixAtoms` holds; None for none."""
    fixed = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        if type(constraint) is FixAtoms:
            fixed[constraint.index] = True
    return fixed if fixed.any() else None


def _number(info: dict[str, Any], key: str) -> float | None:
    value = info.get(key)
    if value is None:
        return None
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError):
        raise InputError(f"info['{key}'] is {value!r}, which is not a number; repair it.") from None


def _check_singlet(info: dict[str, Any]) -> None:
    for key, singlets in SINGLETS.items():
        spin = _number(info, key)
        if spin is not None and spin not in singlets:
            raise InputError(
                f"info['{key}'] is {spin:g}, and the potentials know singlets alone; remove it "
                "or give a closed-shell system."
            )


_Frame = TypeVar("_Frame")

_PDB_SUFFIXES: Final = (".pdb", ".ent")
_GRO_SUFFIX: Final = ".gro"
_SDF_SUFFIXES: Final = (".sdf", ".sd", ".mol")
_MMCIF_SUFFIXES: Final = (".mmcif", ".pdbx")

_BYTES_A_CHARACTER: Final = 30
"""Upper bound of the memory that reading a text takes per character."""

_LEAST_ROOM: Final = 1 << 30
"""Memory in bytes that a reader of ASE may take for a file of any size."""

_ENCODING_SAMPLE: Final = 1 << 20
"""Bytes at the start of a file that are read to detect its encoding."""

_FILES_OF_RUNS: Final = {"trajectory", "start", "end"}
"""Names of files of a run, without suffix, whose atoms `topology.pdb` beside them names."""

_SYMBOL: Final = re.compile("[A-Za-z][A-Za-z0-9_+-]{0,9}")


def read_systems(path: str | Path, index: int | slice | str = ":") -> list[System]:
    """Reads the frames of a structure file.

    PDB, mmCIF and GRO have readers of mdgraph, because ASE takes atom names for elements where no
    column has these, and reads no atom after a MODEL record; so has SDF, of which ASE reads one
    molecule and no charge. H5MD files must be
    trajectories of mdgraph. ASE reads all other formats. Atoms in the trajectory of a run, and in
    its first and last structure, have the names in `topology.pdb` beside it.

    Args:
        path: the file; it may be compressed (`.gz`, `.bz2`, `.xz`). `FILE@3` or `FILE@-1` stands
            for that frame alone, see `split_frame`.
        index: an integer, a slice, or a slice as text, as in `ase.io.read`.

    Raises:
        FileError: the file is absent, empty, truncated or not readable.
        InputError: there is no such frame, the element of an atom is unknown, the spin is not
            a singlet, or the atoms are no valid `System`.
    """
    path = path_argument(path, "A structure")
    selection = _parse_index(index) if isinstance(index, str) else index
    file, frame = split_frame(path)
    systems = _read_systems(file, selection if frame is None else frame)
    if file.stem in _FILES_OF_RUNS:
        names = recorded_names(file, systems[0].numbers)
        systems = [system.replace(topology=names) for system in systems]
    return systems if frame is None else _select(path, systems, selection)


_WITH_FRAME: Final = re.compile(r"(.+)@(-?\d{1,18})", re.DOTALL)


def split_frame(path: str | Path) -> tuple[Path, int | None]:
    """File and frame of `FILE@FRAME`; the frame is None without one.

    Frames count from 0, negative ones from the end. A name with such an end that a file has is
    that of the file.
    """
    match = _WITH_FRAME.fullmatch(str(path))
    if match is None or Path(path).exists():
        return Path(path), None
    return Path(match[1]), int(match[2])


def recorded_names(trajectory: Path, numbers: NDArray[np.int64]) -> Topology | None:
    """Names, residues and bonds in `topology.pdb` beside a trajectory; None without such a file.

    Args:
        trajectory: the file, or `start.extxyz` or `end.extxyz` beside it. These hold all atoms also
            where the trajectory does not; `all-atoms.pdb` then has their names.
        numbers: (N,) atomic numbers in it; a topology of others is not used, with a warning.
    """
    path = trajectory.with_name("topology.pdb")
    whole = trajectory.with_name("all-atoms.pdb")
    if trajectory.stem != "trajectory" and whole.is_file():
        path = whole
    if not path.is_file():
        return None
    named = read_system(path)
    if not np.array_equal(named.numbers, numbers):
        _logger.warning("%s names other atoms and is not used", path)
        return None
    return named.topology


def _read_systems(path: Path, selection: int | slice) -> list[System]:
    trajectory_format = format_of(path)
    if trajectory_format is not None and not trajectory_format.read_by_ase:
        with read_trajectory(path) as trajectory:
            systems = []
            for frame in _select(path, range(len(trajectory)), selection):
                try:
                    systems.append(trajectory.system(frame))
                except InputError as error:
                    raise type(error)(f"{path}, frame {frame}: {error}") from error
            return systems
    suffix = _suffixes(path)[0]
    if suffix in _PDB_SUFFIXES:
        return _select(path, parse_pdb(path, _text(path)), selection)
    if suffix in _SDF_SUFFIXES:
        return _select(path, parse_sdf(path, _text(path)), selection)
    if suffix == _GRO_SUFFIX:
        return _select(path, parse_gro(path, _text(path)), selection)
    if suffix in _MMCIF_SUFFIXES or (suffix == ".cif" and "_atom_site.Cartn_x" in _text(path)):
        return _select(path, parse_mmcif(path, _text(path)), selection)
    return _read_with_ase(path, selection)


def read_system(path: str | Path, index: int = -1) -> System:
    """Reads one frame of a structure file, the last one by default; see `read_systems`."""
    return read_systems(path, index)[0]


def _parse_index(text: str) -> int | slice:
    try:
        parts = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    if len(parts) not in (2, 3):
        raise InputError(
            f"The frame index '{text}' is neither an integer nor a slice; give one like '-1' "
            "or '0:100:10'."
        )
    return slice(*parts)


def _suffixes(path: Path) -> tuple[str, str]:
    """Suffix of the format and suffix of the compression, in lower case."""
    last = path.suffix.lower()
    return (Path(path.stem).suffix.lower(), last) if last in COMPRESSIONS else (last, "")


def _text(path: Path) -> str:
    content = read_decompressed(path, "a structure", LARGEST_TEXT)
    check_fits(
        _BYTES_A_CHARACTER * len(content),
        available_host_memory(),
        f"Reading {path}",
        "take a part of it, or write a trajectory of it as extended XYZ",
    )
    return as_text(path, content)


def read_atoms(path: Path, index: int | slice = slice(None)) -> Iterator[tuple[int | None, Atoms]]:
    """Frames of a file that ASE reads, as ASE's Atoms.

    Args:
        path: the file; it may be compressed (`.gz`, `.bz2`, `.xz`).
        index: the frames to read; missing frames are no error.

    Yields:
        The number of the frame, None if it is unknown, and its atoms.

    Raises:
        FileError: the file is absent, empty, truncated or not readable.
    """
    ase_format = _ase_format(path)
    if ase_format.name == "extxyz":
        yield from read_xyz(path, index)
        return
    with warnings.catch_warnings(record=True) as ase_warnings:
        warnings.simplefilter("always")
        frames = _parse(path, ase_format, index)
    if ase_format.name == "lammps-data":
        _check_types(path, frames)
    if ase_format.name.startswith("lammps-dump"):
        _check_elements_of_dump(path, is_text=ase_format.name == "lammps-dump-text")
    for message in dict.fromkeys(str(warning.message) for warning in ase_warnings):
        _logger.warning("%s: %s", path, message)
    first = index.start or 0 if isinstance(index, slice) else index
    step = index.step or 1 if isinstance(index, slice) else 1
    for place, atoms in enumerate(frames):
        if ase_format.name == "cif":
            _check_whole_sites(path, atoms)
        yield first + step * place if first >= 0 < step else None, atoms


def _ase_format(path: Path) -> IOFormat:
    """ASE's format of a file, by its name or content; raises FileError as `read_atoms`."""
    readable_file(path, "a structure")
    if path.stat().st_size == 0:
        raise FileError(f"Cannot read {path}: it is empty; give a file with atoms.")
    if _suffixes(path)[1]:  # checks the unpacked size, which ASE does not limit
        read_decompressed(path, "a structure", LARGEST_TEXT)
    try:
        name = filetype(_ase_path(path))
        # `.data` is the end of another program's files, too.
        return get_ioformat("lammps-data" if name == "runnerdata" and _is_lammps(path) else name)
    except UnknownFileTypeError as error:
        raise FileError(
            f"Cannot read {path}: ASE knows no format by this name or content; convert it, "
            "for example to extended XYZ."
        ) from error
    except Exception as error:  # ASE's readers raise errors of any class
        raise unreadable(path, error) from error


def _is_lammps(path: Path) -> bool:
    """Whether a text begins as data files of LAMMPS do."""
    with path.open("rb") as file:
        return re.search(rb"^\s*\d+\s+atom types", file.read(4096), re.MULTILINE) is not None


def is_xyz(path: Path) -> bool:
    """Whether a structure file is XYZ, by its name or content; raises FileError as `read_atoms`."""
    suffix = _suffixes(path)[0]
    if suffix in (*_PDB_SUFFIXES, *_MMCIF_SUFFIXES, *_SDF_SUFFIXES, _GRO_SUFFIX):
        return False
    return _ase_format(path).name == "extxyz"


def _parse(path: Path, ase_format: IOFormat, index: int | slice) -> list[Atoms]:
    """Reads frames of a file with ASE."""
    selection = index if isinstance(index, slice) else slice(index, index + 1 or None)
    # ASE's readers of single frames accept no other index.
    index_to_read = slice(None) if ase_format.single else selection
    source: Any = _ase_path(path)
    if ase_format.acceptsfd and _needs_decoding(path):
        text = _text(path)
        source = io.BytesIO(text.encode()) if ase_format.isbinary else io.StringIO(text)
    try:
        with bounded_growth(_LEAST_ROOM + _BYTES_A_CHARACTER * path.stat().st_size):
            frames = list(
                ase.io.iread(source, index_to_read, ase_format.name, do_not_split_by_at_sign=True)
            )
    except Exception as error:  # ASE's readers raise errors of any class
        if ase_format.name == "cif":
            _check_coordinates(path)
        raise unreadable(path, error, ase_format.description) from error
    return frames[selection] if ase_format.single else frames


def _check_coordinates(path: Path) -> None:
    """Refuses a CIF with an unknown coordinate, ? or a full stop, which ASE reads as a text."""
    blocks: list[Any] = []
    with suppress(Exception):  # what cannot be parsed has an error of its own
        blocks = list(parse_cif(io.StringIO(_text(path))))
    for block, kind, axis in product(blocks, ("fract", "cartn"), "xyz"):
        for value in block.get(f"_atom_site_{kind}_{axis}") or ():
            if isinstance(value, str):
                raise FileError(
                    f"Cannot read {path}: an atom has {printable(value, 20)} for its coordinate "
                    f"{axis}; give the number, or leave the atom out."
                )


def _check_types(path: Path, frames: Sequence[Atoms]) -> None:
    """Refuses a LAMMPS data file whose types ASE takes for elements without a word."""
    cure = "write a section Atom Type Labels with the elements of its types"
    if not re.search(r"^\s*(Masses|Atom Type Labels)\b", _text(path), re.MULTILINE):
        raise _no_elements(path, cure)
    for atoms in frames:
        _check_masses(path, atoms.get_masses(), atoms.numbers, cure)


def _check_elements_of_dump(path: Path, *, is_text: bool) -> None:
    """Refuses a LAMMPS dump whose types, or nearest masses, ASE takes for elements."""
    cure = "write it with a column element (dump_modify element)"
    text = _text(path) if is_text else ""
    header = re.search(r"^ITEM: ATOMS (.*)$", text, re.MULTILINE)
    columns = header[1].split() if header else []
    if "element" in columns:
        return
    if header is None or "mass" not in columns:
        raise _no_elements(path, cure)
    end = text.find("ITEM:", header.end())
    rows = text[header.end() : end if end > 0 else None].strip().splitlines()
    masses = np.unique([float(row.split()[columns.index("mass")]) for row in rows])
    nearest = 1 + np.abs(atomic_masses[1:] - masses[:, None]).argmin(axis=1)
    _check_masses(path, masses, nearest, cure)


def _no_elements(path: Path, cure: str) -> FileError:
    return FileError(f"Cannot use {path}: nothing in it tells the elements of its types; {cure}.")


def _check_masses(
    path: Path, masses: NDArray[np.float64], numbers: NDArray[np.integer], cure: str
) -> None:
    """Refuses masses (N,) amu that are far from those of the elements (N,) ASE takes them for."""
    # Nothing is as near to deuterium and tritium as hydrogen.
    unlike = (np.abs(masses - atomic_masses[numbers]) > _UNLIKE) & (numbers > 1)
    if unlike.any():
        mass = masses[unlike][0]
        raise FileError(f"Cannot use {path}: the mass {mass:g} is that of no element; {cure}.")


def _check_whole_sites(path: Path, atoms: Atoms) -> None:
    """Refuses a crystal with disorder, of which ASE's reader makes whole atoms of one element.

    It notes the shares in `info`, which also a structure made of these atoms still has; so only
    what was read from CIF is looked at.
    """
    for site in atoms.info.get("occupancy", {}).values():
        if len(site) > 1 or min(site.values()) < _WHOLE:
            shares = name_some([f"{share:g} {symbol}" for symbol, share in site.items()])
            raise FileError(
                f"Cannot use {path}: a site holds {shares}, where a structure has one whole atom; "
                "make a cell of whole atoms, or set its occupancy to 1."
            )


def _needs_decoding(path: Path) -> bool:
    """Whether a text has a byte order mark or is Latin-1, which ASE's readers cannot read."""
    with disk_failures(path, "read"), path.open("rb") as file:
        start = file.read(_ENCODING_SAMPLE)
    if start.startswith(UTF8_MARK):
        return True
    if b"\0" in start or _suffixes(path)[1]:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return True
    return False


def _ase_path(path: Path) -> str:
    """The absolute path, as ASE gives some relative names, such as "-", another meaning."""
    return str(path.absolute())


def _read_with_ase(path: Path, index: int | slice) -> list[System]:
    systems, left_out = [], set[str]()
    for number, atoms in read_atoms(path, index):
        left_out.update(other_constraints(atoms))
        try:
            systems.append(from_ase(atoms))
        except InputError as error:
            where = f"{path}, frame {number}" if number else str(path)
            raise type(error)(f"{where}: {error}") from error
    if left_out:
        _logger.warning(
            "%s: its constraints %s are not used, and these atoms move freely; FixAtoms is kept",
            path,
            name_some(sorted(left_out)),
        )
    if not systems:
        raise _no_frame(path, index, _count_frames(path))
    return systems


def from_xyz(frame: FrameText, plain: PlainFrame | None = None) -> System:
    """The system of a frame of XYZ.

    Args:
        frame: the frame.
        plain: what `parse_plain_frame` found in it, if that was called.

    Raises:
        FileError, InputError: it is no structure.
    """
    plain = parse_plain_frame(frame) if plain is None else plain
    if plain is None:
        atoms = parse_frame(frame)
        if atoms.constraints:
            _warn_of_constraints(frame.path)
        return from_ase(atoms)
    masses = plain.columns.get("masses")
    system = System(
        numbers=plain.numbers,
        positions=plain.columns["pos"],
        cell=plain.cell,
        pbc=plain.pbc,
        masses=atomic_masses[plain.numbers] if masses is None else masses[:, 0],
        charge=plain.charge,
    )
    momenta = plain.columns.get("momenta")
    if momenta is None:
        return system
    return system.replace(velocities=momenta / system.masses[:, None] * ase_units.fs)


def from_plain_frames(frames: Sequence[PlainFrame]) -> SystemArrays | None:
    """The systems of frames side by side, at least one; None where `from_xyz` must look at each."""
    if any({"masses", "momenta"} & frame.columns.keys() for frame in frames):
        return None
    numbers = np.concatenate([frame.numbers for frame in frames])
    charges = [math.nan if frame.charge is None else frame.charge for frame in frames]
    return SystemArrays.checked(
        sizes=np.array([len(frame.numbers) for frame in frames]),
        numbers=numbers,
        positions=np.concatenate([frame.columns["pos"] for frame in frames]),
        masses=atomic_masses[numbers],
        cells=np.stack([frame.cell for frame in frames]),
        pbc=np.stack([frame.pbc for frame in frames]),
        charges=np.array(charges),
    )


@cache
def _warn_of_constraints(path: Path) -> None:
    _logger.warning("%s: its constraints are not used", path)


def _count_frames(path: Path) -> int:
    """Number of frames in a file that ASE reads."""
    is_xyz = filetype(_ase_path(path)) == "extxyz"
    return count_frames(path) if is_xyz else sum(1 for _ in read_atoms(path))


def unreadable(path: Path, error: Exception, format_name: str = "") -> FileError:
    """The FileError for a file that a parser could not read.

    Args:
        path: the file.
        error: the error of the parser.
        format_name: description of the format that the parser expects.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if isinstance(error, MemoryError):
        reason = "it declares far more than a file of its size can hold"
    elif isinstance(error, UnicodeDecodeError):
        reason = "it is not UTF-8 text"
    elif "set_int_max_str_digits" in reason:
        reason = "it holds a number of thousands of digits"
    elif isinstance(error, KeyError) and _SYMBOL.fullmatch(name := str(error.args[0])):
        reason = f"'{name}' is not an element"
    format_text = f" as {format_name}" if format_name else ""
    return FileError(
        f"Cannot read {path}{format_text}: {printable(reason, 300)}; check its content, and "
        "that its name ends as its format does."
    )


def _select(path: Path, frames: Sequence[_Frame], index: int | slice) -> list[_Frame]:
    if isinstance(index, slice):
        frames_at_index = list(frames[index])
    else:
        frames_at_index = [frames[index]] if -len(frames) <= index < len(frames) else []
    if not frames_at_index:
        raise _no_frame(path, index, len(frames))
    return frames_at_index


def _no_frame(path: Path, index: int | slice, count: int) -> InputError:
    if isinstance(index, slice):
        parts = (index.start, index.stop, *([] if index.step is None else [index.step]))
        text = ":".join("" if part is None else str(part) for part in parts)
    else:
        text = str(index)
    if not count:
        return InputError(f"{path} holds no frames; give a file with some.")
    several = f"{count} frames, 0 to {count - 1} or -{count} to -1"
    frames = "1 frame, 0 or -1" if count == 1 else several
    return InputError(f"{path} holds no frame at index {text}; it holds {frames}.")
