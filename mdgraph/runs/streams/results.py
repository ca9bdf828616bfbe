"""The file that a stream writes, whose frames are complete whenever it is killed."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from mdgraph.errors import InputError, printable
from mdgraph.io.files import AppendedFile, refuse_existing, write_atomically
from mdgraph.io.formats import FORMATS
from mdgraph.io.log import WrittenFrames, written_energy, written_frames
from mdgraph.io.structures import from_xyz
from mdgraph.runs.config import FramesConfig, RelaxConfig
from mdgraph.runs.streams.blocks import TextBlock

_SAME_ENERGY: Final = 1e-4
"""eV an atom; the same potential gives the energy of a structure anew within this, in `mixed`."""

_SAME_MINIMUM: Final = 1e-2
"""eV an atom; ways to a minimum end apart by less, also on other hardware."""


class ResultsFile:
    """The file that a stream writes: complete frames alone, whenever it is killed.

    Attributes:
        previous: frames that are in it before the stream goes on.
    """

    def __init__(
        self, path: Path, previous: WrittenFrames, *, overwrite: bool, moves: bool
    ) -> None:
        """Opens nothing yet; see `opened`."""
        self._path, self.previous = path, previous
        self._overwrite, self._moves = overwrite, moves
        self._file: AppendedFile | None = None
        self._frames = previous.count
        self._is_checked = previous.count == 0

    @classmethod
    def opened(cls, configuration: FramesConfig) -> "ResultsFile":
        """The file that a configuration names; nothing is written.

        Raises:
            InputError: its name is that of another format.
            FileError: it exists and may not be replaced, or holds other things than results.
        """
        path = Path(configuration.out)
        suffixes = FORMATS["extxyz"].suffixes
        if path.suffix and path.suffix.lower() not in suffixes:
            raise InputError(
                f"--out is {printable(path, 200)}, and extended XYZ is written; end the name in "
                f"{' or '.join(suffixes)}."
            )
        previous = WrittenFrames()
        if configuration.resume:
            previous = written_frames(path)
        else:
            refuse_existing(path, overwrite=configuration.overwrite, option=True, resumable=True)
        own = path.resolve()
        if any(Path(name).resolve() == own for name in configuration.structures):
            raise InputError(f"--out is {printable(path, 200)}, which is read; give another name.")
        return cls(
            path,
            previous,
            overwrite=configuration.overwrite or configuration.resume,
            moves=isinstance(configuration, RelaxConfig),
        )

    @property
    def is_written(self) -> bool:
        """Whether there is something to go on from."""
        return self._frames > 0

    def append(self, block: TextBlock) -> int:
        """Writes the frames that are not there yet; returns how many.

        Raises:
            InputError: the last frame that was there is not one of this stream.
            FileError: the disk refused; complete frames are kept.
        """
        start = max(0, self._frames - block.first)
        last = self.previous.count - 1 - block.first
        if not self._is_checked and last < len(block):
            self._check_last(bytes(block.text(last, last + 1)))
            self._is_checked = True
        if start >= len(block):
            return 0
        content = block.text(start)
        if self._file is not None:
            self._file.append(content)
        elif self.previous.count:
            self._file = AppendedFile(self._path, self.previous.size)
            self._file.append(content)
        else:
            # At once, so that a file is replaced by results alone, and none is left empty.
            write_atomically(self._path, content, new=not self._overwrite)
            self._file = AppendedFile(self._path, len(content))
        self._frames += len(block) - start
        return len(block) - start

    def _check_last(self, text: bytes) -> None:
        """Raises InputError if a frame of this stream is not the last one that was there."""
        last = self.previous.last
        assert last is not None
        new = replace(last, content=text, atoms=int(text.split(b"\n", 1)[0]))
        before, now = from_xyz(last), from_xyz(new)
        fault = None
        if not np.array_equal(before.numbers, now.numbers):
            fault = "has other atoms than that of this input"
        elif not np.array_equal(before.pbc, now.pbc):
            fault = "has other periodic directions than that of this input"
        elif not self._moves and not (
            np.array_equal(before.positions, now.positions)
            and np.array_equal(before.cell, now.cell)
        ):
            fault = "has other positions or another cell than that of this input"
        else:
            energies = written_energy(last), written_energy(new)
            limit = _SAME_MINIMUM if self._moves else _SAME_ENERGY
            if not abs(energies[0] - energies[1]) <= limit * len(now):
                fault = (
                    f"has an energy of {energies[0]:.6g} eV, where it is {energies[1]:.6g} eV now"
                )
        if fault is not None:
            raise InputError(
                f"{self._path} holds {self.previous.count:,} frames, and the last of them {fault}; "
                "resume with the input and the options that it began with, "
                "or give another --out."
            )

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._file is not None:
            self._file.close()
