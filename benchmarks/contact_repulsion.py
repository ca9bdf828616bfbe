"""A copy of a potential whose atoms repel each other where they are nearer than in training.

    python benchmarks/contact_repulsion.py acac-first acac-contact

The repulsion ends where the domain beside the weights says that atoms of training frames were, or
at 0.7 of the sum of two covalent radii if that is nearer. So errors on these frames stay as they
are, and the domain, which tells the same distances, is copied too.
"""

import argparse
from pathlib import Path

from cases import run_script

from mdgraph.checkpoints import load, load_domain, save, save_domain
from mdgraph.checkpoints.native import FILE_NAME
from mdgraph.errors import InputError
from mdgraph.train.setup import trainable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="folder or shipped name")
    parser.add_argument("target", type=Path, help="folder to be made")
    options = parser.parse_args()
    domain = load_domain(options.source)
    if domain is None:
        raise InputError(f"{options.source} has no domain; measure it by mdgraph domain.")
    potential = trainable(load(options.source), options.source).with_contact_repulsion(domain)
    options.target.mkdir(parents=True)
    save(potential, options.target / FILE_NAME)
    save_domain(domain, options.target)


if __name__ == "__main__":
    run_script(main)
