"""Which side of release 3.0 wrote a checkpoint: TorchMD-Net and MatGL both changed there."""

from typing import Literal

Layout = Literal["auto", "before-3.0", "3.0"]
"""`auto` decides by what is in the file; the others say it."""
