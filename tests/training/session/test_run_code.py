"""Code that the folder of a run names runs only where the user asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.config import to_yaml
from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import UserModule
from openwafer.training.session import Session
from tests.training.session.tiny_runs import MODEL, TinyData, quiet, tiny_config


@pytest.fixture
def folder(data: TinyData, tmp_path: Path) -> Path:
    config = tiny_config(data, tmp_path)
    config.path.mkdir()
    (config.path / "config.yaml").write_text(to_yaml(config))
    return config.path


def test_a_run_folder_that_names_code_is_not_opened_without_leave(folder: Path) -> None:
    message = rf"run-code.*{MODEL.factory}(.|\n)*add --trust-code"
    with pytest.raises(OpenwaferError, match=message):
        Session(folder, console=quiet())


def test_code_that_the_user_trusts_is_run(folder: Path) -> None:
    Session(folder, console=quiet(), trusts_code=True).plan()


def test_an_override_that_names_no_code_needs_no_leave(folder: Path) -> None:
    session = Session(folder, ["model={kind: reference-gpt}"], console=quiet())
    assert not isinstance(session.config.model, UserModule)


def test_code_in_a_config_of_the_users_own_is_run(data: TinyData, tmp_path: Path) -> None:
    own = UserModule("tests.training.session.tiny_model:NoSuchModel")
    with pytest.raises(OpenwaferError, match="defines no 'NoSuchModel'"):
        Session(replace(tiny_config(data, tmp_path), model=own), console=quiet()).plan()
