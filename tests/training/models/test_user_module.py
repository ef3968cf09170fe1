"""A user's module is found by its import path; mistakes in the path or the arguments are told."""

import sys
from pathlib import Path

import pytest
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import UserModule, build

SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

def broken() -> nn.Module:
    raise LookupError("my own mistake")

def nothing() -> int:
    return 3

def untold():
    return nn.Linear(1, 1)

def later() -> "Unknown":
    return nn.Linear(1, 1)

def liar() -> nn.Module:
    return 3

def told_in_words() -> "Net":
    return Net(2)

version = "1"
"""


@pytest.fixture(autouse=True)
def _in_folder_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").write_text(SOURCE)
    (tmp_path / "my_script.py").write_text("import no_such_package\n")
    (tmp_path / "my_typo.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_model", raising=False)


def test_a_class_in_the_working_directory_is_built_with_its_arguments() -> None:
    model = build(UserModule("my_model:Net", kwargs={"width": 4, "depth": 3}), seed=0)
    assert type(model).__name__ == "Net"
    assert len(list(model.parameters())) == 6


def test_a_class_of_an_installed_package_is_built() -> None:
    kwargs = {"in_features": 2, "out_features": 3}
    assert isinstance(build(UserModule("torch.nn:Linear", kwargs=kwargs), seed=0), nn.Linear)


def test_a_function_that_says_what_it_returns_is_called() -> None:
    assert type(build(UserModule("my_model:told_in_words"), seed=0)).__name__ == "Net"


def test_an_exception_of_the_users_code_comes_through() -> None:
    with pytest.raises(LookupError, match="my own mistake"):
        build(UserModule("my_model:broken"), seed=0)


@pytest.mark.parametrize(
    ("factory", "kwargs", "message"),
    [
        ("my_model", {}, "'my_model' is not of the form 'package.module:factory'"),
        ("my_modle:Net", {}, "cannot import my_modle: No module named 'my_modle'"),
        ("my_script:f", {}, "cannot import my_script: No module named 'no_such_package'"),
        ("my_typo:f", {}, "cannot import my_typo: invalid syntax"),
        ("my_model:Nett", {}, r"my_model\.py defines no 'Nett'\n.*did you mean 'Net'\?"),
        ("my_model:version", {}, r"my_model:version is str, which makes no torch\.nn\.Module"),
        ("my_model:nothing", {}, "a function that is annotated to return int, which makes no"),
        ("my_model:untold", {}, r"to return nothing in particular(.|\n)*def make_net\(\) ->"),
        ("my_model:later", {}, "is annotated to return Unknown, which makes no"),
        ("my_model:liar", {}, r"returned int, not a torch\.nn\.Module"),
        ("os:system", {"command": "exit"}, "os:system is builtin_function_or_method, which makes"),
        ("subprocess:Popen", {"args": "true"}, "is the class Popen, which makes no"),
        ("subprocess:run", {}, "a function that is annotated to return nothing in particular"),
        ("torch:load", {"f": "weights.pt"}, "is a function that is annotated to return Any"),
        ("my_model:Net", {}, "missing a required argument: 'width'"),
        ("my_model:Net", {"width": 1, "dept": 2}, "unexpected keyword argument 'dept'"),
        ("my_model:Net", {"width": 1, "dept": 2}, r"it accepts: \(width: int, depth: int = 1\)"),
    ],
)
def test_mistakes_are_told(factory: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(OpenwaferError, match=message):
        build(UserModule(factory, kwargs=kwargs), seed=0)


def test_a_failed_import_names_the_folder_searched(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=f"searched from the working directory, {tmp_path}"):
        build(UserModule("my_modle:Net"), seed=0)
