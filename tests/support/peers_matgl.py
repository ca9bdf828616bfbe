"""Random folders of MatGL and what that program computes from them in float64.

Runs in an environment that has MatGL: `python peers_matgl.py FOLDER FIRST LAST`.
"""

import itertools
import pickle
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

CELLS = {
    "molecule": (np.eye(3) * 100.0, np.eye(3) * 4.0, (False, False, False)),
    "crystal": 2 * (np.array([[4.6, 0.3, 0.0], [1.0, 4.2, -0.2], [-0.5, 1.2, 4.9]]),)
    + ((True, True, True),),
    "slab": (np.diag([5.0, 5.5, 30.0]), np.diag([5.0, 5.5, 4.0]), (True, True, False)),
}


def spread(rng: np.random.Generator, atoms: int, room: Any, pbc: Any, apart: float) -> Any:
    """Random places in a room, none closer to another or its images than said."""
    images = np.array(list(itertools.product((-1, 0, 1), repeat=3))) * pbc
    places: list[Any] = []
    while len(places) < atoms:
        trial = rng.random(3) @ room
        leaps = [trial - one + image @ room for one in places for image in images]
        if all(np.linalg.norm(leap) > apart for leap in leaps):
            places.append(trial)
    return np.array(places)


def arguments(choose: random.Random) -> dict[str, Any]:
    """Arguments of a TensorNet."""
    activations = ["swish", "tanh", "sigmoid", "softplus2", "softplus", "softexp"]
    return {
        "element_types": choose.choice([("H", "C", "N", "O"), ("Na", "Cl", "Si", "Cu", "O")]),
        "units": choose.choice([4, 8, 16, 32]),
        "nblocks": choose.randrange(4),
        "num_rbf": choose.choice([5, 16, 20]),
        "max_n": choose.choice([1, 3, 4, 6]),
        "max_l": choose.choice([1, 2, 3, 4]),
        "rbf_type": choose.choice(["Gaussian", "SphericalBessel", "SphericalBessel", "ExpNorm"]),
        "use_smooth": choose.random() < 0.5,
        "activation_type": choose.choice(activations),
        "cutoff": choose.choice([3.5, 4.5, 5.0]),
        "equivariance_invariance_group": choose.choice(["O(3)", "SO(3)"]),
        "width": choose.choice([0.5, 0.3, None]),
        "is_intensive": False,
    }


def evaluated(potential: Any, numbers: Any, places: Any, cell: Any, pbc: Any) -> dict[str, Any]:
    """Energy and forces, on all pairs within the cutoff."""
    from ase.data import chemical_symbols
    from torch_geometric.data import Data

    cutoff = potential.model.cutoff
    heights = 1.0 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    reach = [
        int(np.ceil(cutoff / height)) + 1 if on else 0
        for height, on in zip(heights, pbc, strict=True)
    ]
    edges, images, lengths = [], [], []
    for image in itertools.product(*(range(-one, one + 1) for one in reach)):
        vectors = places[None] + np.array(image) @ cell - places[:, None]
        distances = np.linalg.norm(vectors, axis=-1)
        for pair in np.argwhere((distances <= cutoff) & (distances > 1e-8)):
            edges.append(pair)
            images.append(image)
            lengths.append(distances[tuple(pair)])
    elements = list(potential.model.element_types)
    kinds = [elements.index(chemical_symbols[number]) for number in numbers]
    graph = Data(
        node_type=torch.tensor(kinds),
        edge_index=torch.tensor(np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy()),
        pbc_offset=torch.tensor(np.array(images, dtype=np.float64).reshape(-1, 3)),
        frac_coords=torch.tensor(places @ np.linalg.inv(cell)),
        num_nodes=len(numbers),
    )
    if potential.calc_repuls:
        # TensorNet leaves this to the caller, so forces lack the repulsion.
        graph.bond_dist = torch.tensor(np.array(lengths))
    energy, forces, *_ = potential(g=graph, lat=torch.tensor(cell)[None])
    known = None if potential.calc_repuls else forces.detach().numpy()
    return {"energy": energy.item(), "forces": known}


def main(folder: Path, first: int, last: int) -> None:
    from ase.data import atomic_numbers
    from matgl.apps.pes import Potential
    from matgl.models import TensorNet

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = []
    for seed in range(first, last):
        rng, choose = np.random.default_rng(seed), random.Random(seed)
        torch.manual_seed(seed)
        network = TensorNet(**arguments(choose))
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
            for module in network.modules():
                if isinstance(getattr(module, "alpha", None), torch.Tensor):
                    module.alpha.fill_(choose.choice([0.0, 0.4, -0.3]))
        references = [float(one) for one in rng.normal(size=len(network.element_types)) * 1000.0]
        stated = [None, references, np.array(references), torch.tensor(references)]
        stated.append(torch.tensor(references, dtype=torch.float64))
        potential = Potential(
            network,
            data_mean=choose.choice([0.0, 0.3]),
            data_std=3.1115,
            element_refs=choose.choice(stated),
            calc_repuls=choose.random() < 0.35,
        )
        path = folder / str(seed)
        path.mkdir()
        potential.save(path)
        exact = Potential.load(path).double().eval()
        known = [atomic_numbers[element] for element in network.element_types]
        for kind, (cell, room, pbc) in CELLS.items():
            places = spread(rng, int(rng.choice([2, 6])), room, np.array(pbc), 1.1)
            numbers = rng.choice(known, len(places))
            system = {"numbers": numbers, "positions": places, "cell": cell, "pbc": pbc}
            result = evaluated(exact, *system.values())
            cases.append({"path": path.name, "kind": kind, "charge": 0.0, **system, **result})
    (folder / "cases.pkl").write_bytes(pickle.dumps(cases))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
