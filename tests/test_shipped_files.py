"""The files beside the weights of a shipped potential belong to these weights."""

import logging

import pytest
import torch

from mdgraph.checkpoints import load, load_domain, shipped_potentials

NAMES = sorted(shipped_potentials())


@pytest.mark.parametrize("name", NAMES)
def test_the_domain_belongs_to_the_weights(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """So that runs are watched, and sigma is told."""
    with caplog.at_level(logging.WARNING):
        domain = load_domain(name)
    assert domain is not None
    assert not caplog.records
    assert torch.equal(domain.species, torch.tensor(load(name).species))
