"""The importer that a file needs, and the record of what it did."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from mdgraph.data.frames import LabelledFrame, Provenance
from mdgraph.data.keys import Request
from mdgraph.data.structures import read_structures
from mdgraph.data.tables import read_archive, read_hdf5
from mdgraph.io.files import disk_failures


def import_file(
    path: Path, request: Request, *, level_of_theory: str = "", licence: str = ""
) -> tuple[Iterator[LabelledFrame], Provenance]:
    """The frames of a file and where they are from.

    Args:
        path: extended XYZ or anything else ASE reads, an ASE database (.db), a numpy archive
            (.npz), or HDF5 (.h5, .hdf5) in the layout of SPICE, ANI-1x or TorchMD-Net.
        request: keys, units, and what becomes of frames without labels.
        level_of_theory: what to write down of the calculation.
        licence: of the data.

    Raises:
        FileError: the file cannot be read.
        InputError: a label is missing or ambiguous, or a unit is unknown.
    """
    units = request.units.description()
    reader, importer = read_structures, "ase"
    if path.suffix in (".h5", ".hdf5"):
        reader, importer = read_hdf5, "hdf5"
    elif path.suffix == ".npz":
        reader, importer = read_archive, "npz"
    with disk_failures(path, "read"), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    keys, frames = reader(path, request)
    provenance = Provenance(path.name, digest, importer, keys, units, level_of_theory, licence)
    return frames, provenance
