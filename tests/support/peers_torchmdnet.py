"""Random checkpoints of TorchMD-Net and what that program computes from them in float64.

Runs in an environment that has TorchMD-Net: `python peers_torchmdnet.py FOLDER FIRST LAST`.
"""

import pickle
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

ELEMENTS = (1, 6, 7, 8, 9, 11, 26, 29, 35, 47, 53)
"""None whose power of the charge torch rounds in two ways."""


def spread(rng: np.random.Generator, atoms: int, width: float, apart: float) -> Any:
    """Random places, none closer than said."""
    places: list[Any] = []
    while len(places) < atoms:
        trial = rng.normal(size=3) * width
        width *= 1.01
        if all(np.linalg.norm(trial - one) > apart for one in places):
            places.append(trial)
    return np.array(places)


def arguments(choose: random.Random) -> dict[str, Any]:
    """Hyper-parameters."""
    two, layers = choose.random() < 0.35, choose.randrange(4)
    values: dict[str, Any] = {
        "model": "tensornet2" if two else "tensornet",
        "precision": 32,
        "embedding_dimension": choose.choice([4, 8, 16, 24, 48]),
        "num_layers": layers,
        "num_rbf": choose.choice([3, 5, 16, 32]),
        "rbf_type": choose.choice(["expnorm", "gauss"]),
        "trainable_rbf": choose.random() < 0.5,
        "activation": choose.choice(["silu", "ssp", "tanh", "sigmoid", "swish", "mish"]),
        "cutoff_lower": choose.choice([0.0, 0.0, 0.0, 0.5]),
        "cutoff_upper": choose.choice([3.0, 4.5, 5.0]),
        "max_z": choose.choice([60, 90, 100, 128]),
        "max_num_neighbors": 128,
        "equivariance_invariance_group": choose.choice(["O(3)", "SO(3)"]),
        "static_shapes": choose.random() < 0.3,
        "atom_filter": -1,
        "derivative": True,
        "output_model": "Scalar",
        "reduce_op": choose.choice(["add", "sum", "sum", "mean"]),
    }
    if two:
        values |= {"q_dim": choose.choice([1, 4, 16]), "repulsion": choose.random() < 0.4}
        if choose.random() < 0.7:
            values |= {
                "output_model": "ScalarPlusWeightedCoulomb",
                "q_weights": [choose.choice([0.1, 0.2, 1.0, 0.7]) for _ in range(layers + 1)],
                "coulomb_cutoff": choose.choice([None, 6.0]),
                "coulomb_max_num_neighbors": 128,
                "output_mlp_num_layers": choose.choice([0, 1]),
            }
    pairwise = {"max_num_neighbors": 128, "distance_scale": 1e-10}
    pairwise |= {"energy_scale": 1.602176634e-19, "atomic_number": list(range(55))}
    priors: list[dict[str, Any]] = []
    if choose.random() < 0.4:
        atomref = {"max_z": values["max_z"], "enable": choose.random() < 0.8}
        priors.append({"Atomref": atomref})
    if choose.random() < 0.35:
        priors.append({"ZBL": pairwise | {"cutoff_distance": choose.choice([3.0, 4.0])}})
    if choose.random() < 0.25:
        priors.append({"D2": pairwise | {"cutoff_distance": choose.choice([4.0, 10.0])}})
    return values | {"prior_model": priors or None}


def systems(values: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Molecules, a dimer, an ion and, where the program can have one, a box."""
    made = []
    for kind, atoms, width, apart in (
        ("molecule", int(rng.choice([1, 3, 9, 17])), 1.3, 0.7),
        ("dimer", 2, 0.4, float(rng.choice([0.3, 0.6]))),
        ("ion", int(rng.choice([3, 9])), 1.3, 0.7),
        ("box", int(rng.choice([12, 30])), 3.0, 0.8),
    ):
        box = None
        if kind == "box":
            everything = values.get("coulomb_cutoff", 1.0) is None
            if everything or any("D2" in prior for prior in values["prior_model"] or ()):
                continue  # It raises, or leaves the cell out.
            edge = 2.0 * max(values["cutoff_upper"], values.get("coulomb_cutoff") or 0.0, 4.0) + 0.6
            box = np.array([[edge, 0.0, 0.0], [0.3, edge, 0.0], [-0.2, 0.1, edge + 1.0]])
        numbers = rng.choice(ELEMENTS, atoms)
        charge = float(rng.choice([1.0, -1.0])) if kind == "ion" else 0.0
        places = spread(rng, atoms, width, apart)
        made.append({"numbers": numbers, "positions": places, "charge": charge, "cell": box})
    return made


def main(folder: Path, first: int, last: int) -> None:
    from torchmdnet.models.model import create_model, load_model

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = []
    for seed in range(first, last):
        rng, choose = np.random.default_rng(seed), random.Random(seed)
        torch.manual_seed(seed)
        values = arguments(choose)
        scales = torch.tensor(choose.choice([0.0, -1234.567])), torch.tensor(3.1115)
        model = create_model(dict(values), mean=scales[0], std=scales[1])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            for prior in model.prior_model or ():
                if hasattr(prior, "atomref"):
                    prior.atomref.weight.copy_(1000.0 * torch.randn_like(prior.atomref.weight))
        path = folder / f"{seed}.ckpt"
        state = {f"model.{name}": value for name, value in model.state_dict().items()}
        torch.save({"state_dict": state, "hyper_parameters": values}, path)
        exact = load_model(str(path), precision=64, derivative=True).eval()
        for system in systems(values, rng):
            cell, charge = system["cell"], system["charge"]
            energy, forces = exact(
                torch.tensor(system["numbers"]),
                torch.tensor(system["positions"]),
                box=None if cell is None else torch.tensor(cell),
                q=torch.tensor([charge], dtype=torch.float64) if charge else None,
            )
            result = {"energy": energy.item(), "forces": forces.detach().numpy()}
            cases.append({"path": path.name, **system, "pbc": cell is not None, **result})
    (folder / "cases.pkl").write_bytes(pickle.dumps(cases))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
