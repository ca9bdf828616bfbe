"""Drivers in several threads and processes take turns."""

import os
import signal
import threading

import pytest
import torch

from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.errors import InputError


def test_one_thread_holds_the_lock_and_may_take_it_again() -> None:
    order: list[str] = []

    def other() -> None:
        with EVALUATION_LOCK:
            order.append("other")

    thread = threading.Thread(target=other)
    with EVALUATION_LOCK:
        with EVALUATION_LOCK:
            thread.start()
            thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with EVALUATION_LOCK:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with EVALUATION_LOCK:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()


def test_cuda_of_a_parent_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="initialization error"), EVALUATION_LOCK:
        raise RuntimeError("CUDA error: initialization error")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    refused = pytest.raises(InputError, match=r"forked, and cannot be used in it; .* 'spawn'")
    with refused, EVALUATION_LOCK, EVALUATION_LOCK:
        raise RuntimeError("CUDA error: initialization error")
    with EVALUATION_LOCK:  # what needs no CUDA goes on
        pass
