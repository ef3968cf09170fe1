"""Tests of front ends compute on one thread, and each begins without a program."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from openwafer.training.frontends.present import backends
from openwafer.training.frontends.session import program


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_program() -> Iterator[None]:
    yield
    program.end()
    backends.end()


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts leave this process as it was."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    _forget_vendor_names()
    yield
    _forget_vendor_names()


def _forget_vendor_names() -> None:
    """Drop what a script, or a look for the Model Zoo, has imported under them."""
    for name in [name for name in sys.modules if name.startswith(("cerebras", "modelzoo"))]:
        del sys.modules[name]
