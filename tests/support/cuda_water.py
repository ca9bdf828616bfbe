"""Water for tests on a GPU: systems, a small random potential, simulations."""

from functools import cache

import numpy as np
import torch

from mdgraph.engine import Simulation
from mdgraph.engine.calculation import as_evaluator
from mdgraph.evaluators import Evaluator
from mdgraph.models import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    TensorNetConfig,
    TensorNetPotential,
)
from mdgraph.precision import precision_named
from mdgraph.system import System


def liquid(molecules: int = 64, seed: int = 0) -> System:
    generator = np.random.default_rng(seed)
    points = int(np.ceil(molecules ** (1 / 3)))
    edge = (molecules * 29.9) ** (1 / 3)
    grid = np.stack(np.meshgrid(*[np.arange(points)] * 3, indexing="ij"), -1).reshape(-1, 3)
    centres = (grid[:molecules] + 0.5) * edge / points
    shape = np.array([[0.0, 0.0, 0.0], [0.76, 0.59, 0.0], [-0.76, 0.59, 0.0]])
    turns, _ = np.linalg.qr(generator.normal(size=(molecules, 3, 3)))
    return System(
        numbers=np.tile([8, 1, 1], molecules),
        positions=(centres[:, None] + shape @ turns).reshape(-1, 3),
        cell=np.eye(3) * edge,
        pbc=np.full(3, True),
    )


def potential(architecture: str = "tensornet") -> TensorNetPotential:
    torch.manual_seed(3)
    charged = architecture == "tensornet2"
    config = TensorNetConfig(
        architecture=architecture,
        species=(1, 8),
        channels=32,
        layers=2,
        cutoff=4.5,
        radial_basis=RadialBasisConfig(number=16),
        readout=ReadoutConfig(hidden=(16,)),
        self_interaction=True,
        charge_channels=4 if charged else 0,
        coulomb=CoulombConfig(cutoff=7.0) if charged else None,
    )
    return TensorNetPotential(config)


@cache
def evaluator(device: str, precision: str = "mixed", architecture: str = "tensornet") -> Evaluator:
    """Simulations share it: its tables are made on the host, which may be busy, in seconds."""
    model, place = potential(architecture), torch.device(device)
    return as_evaluator(model, precision_named(precision), place)


def simulation(system: System, integrator: object, **options: object) -> Simulation:
    options = {"device": "cuda", "seed": 5, "temperature": 300.0, "check": False} | options
    shared = evaluator(str(options["device"]))
    return Simulation(system, shared, integrator, **options)  # type: ignore[arg-type]
