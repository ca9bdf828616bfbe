"""Devices by their names."""

from typing import Any

import pytest
import torch

from mdgraph.devices import device_named
from mdgraph.errors import InputError


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("toaster", "Unknown device 'toaster'; choose"),
        ("", "Unknown device ''; choose"),
        ("cuda:-1", "Unknown device 'cuda:-1'; choose"),
        (None, "Unknown device 'None'; choose"),
        (3.5, "Unknown device '3.5'; choose"),
        ("meta", "does not run on 'meta'; choose cpu or cuda"),
        ("cuda:99", "Asked for cuda:99, but this machine has .*; choose another"),
    ],
)
def test_what_is_no_device_here_is_refused(name: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        device_named(name)


def test_auto_is_cuda_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert device_named("auto").type == expected
    assert device_named(torch.device("cpu")) == torch.device("cpu")
