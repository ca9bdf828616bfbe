"""What the process that others are forked from does first, so that none of them has to.

Kernels are loaded, the tables of the potential that most commands use are made, and collections
of garbage leave out what is there.
"""

import gc

import torch
from compiling import compile_once
from repository import ROOT

from mdgraph.engine import Calculation
from mdgraph.io.structures import read_system

compile_once()
torch.set_num_threads(1)
WATER = ROOT / "potentials" / "water-pbe0" / "start.extxyz"
Calculation([read_system(WATER)], "water-pbe0", device="cpu").compute()
gc.collect()
gc.freeze()
