"""Flags of torch that belong to the process: settings of them, and what they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def old_flag(value: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = value


def new_flag(value: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = value


def common_flag(value: str) -> None:
    torch.backends.fp32_precision = value


def processor_flag(value: str) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = value


SETTINGS = {
    "nothing": lambda: None,
    "allow_tf32": lambda: old_flag(True),
    "no allow_tf32": lambda: old_flag(False),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "highest": lambda: torch.set_float32_matmul_precision("highest"),
    "tf32": lambda: new_flag("tf32"),
    "ieee": lambda: new_flag("ieee"),
    "common tf32": lambda: common_flag("tf32"),
    "processor bf16": lambda: processor_flag("bf16"),
}


def read_flags() -> dict[str, object]:
    """Every way to ask; torch refuses some after others were set, which must stay so too."""
    questions = {
        "old": torch.get_float32_matmul_precision,
        "older": lambda: torch.backends.cuda.matmul.allow_tf32,
        "new": lambda: torch.backends.cuda.matmul.fp32_precision,
        "processor": lambda: torch.backends.mkldnn.matmul.fp32_precision,
        "common": lambda: torch.backends.fp32_precision,
    }
    answers: dict[str, object] = {}
    for name, question in questions.items():
        try:
            answers[name] = question()
        except RuntimeError as refusal:
            answers[name] = str(refusal).partition(".")[0]
    return answers


@contextmanager
def flags_set(name: str) -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    for reset in (new_flag, processor_flag, common_flag):
        reset("none")
    try:
        SETTINGS[name]()
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        for reset in (new_flag, processor_flag, common_flag):
            reset("none")
