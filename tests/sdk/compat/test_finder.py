"""The vendor's names exist in a process that asks for them, and in no other."""

import subprocess
from pathlib import Path

import pytest

from openwafer.sdk.compat.finder import MODULES
from tests.sdk.forked_python import with_libraries, with_sdk
from tests.tables import case


def python(code: str) -> subprocess.CompletedProcess[str]:
    return with_libraries().run(code)


EACH = [case([name], by_default=False) for name in MODULES]


@pytest.mark.parametrize("names", [case(sorted(MODULES), by_default=True, id="all"), *EACH])
def test_a_process_with_the_finder_has_the_modules(names: list[str]) -> None:
    result = python(
        "from importlib import import_module\n"
        "from openwafer.sdk.compat import finder; finder.install()\n"
        f"for name in {names}: print(import_module(name).__name__)"
    )
    assert result.stdout.split() == names, result.stderr


def test_a_process_without_the_finder_has_none() -> None:
    result = python("import openwafer.sdk.compat.finder, cerebras")
    assert "No module named 'cerebras'" in result.stderr


def test_a_name_that_the_vendor_does_not_have_stays_unknown() -> None:
    result = python(
        "from openwafer.sdk.compat import finder; finder.install(); import cerebras.sdk.nothing"
    )
    assert "No module named 'cerebras.sdk.nothing'" in result.stderr


def test_the_compiler_is_loaded_for_layouts_alone() -> None:
    result = python(
        "from openwafer.sdk.compat import finder; finder.install()\n"
        "import sys; from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime\n"
        "print('openwafer.sdk.csl' in sys.modules)\n"
        "from cerebras.sdk.runtime.sdkruntimepybind import SdkLayout\n"
        "print('openwafer.sdk.csl' in sys.modules)"
    )
    assert result.stdout.split() == ["False", "True"], result.stderr


def test_a_public_module_has_no_other_names() -> None:
    result = python(
        "from openwafer.sdk.compat import finder; finder.install()\n"
        "from cerebras.geometry.geometry import dataclass"
    )
    assert "cannot import name 'dataclass'" in result.stderr


def test_the_older_name_of_the_client_gives_the_same() -> None:
    result = python(
        "from openwafer.sdk.compat import finder; finder.install()\n"
        "from cerebras_appliance.sdk import SdkCompiler, SdkRuntime\n"
        "from cerebras_appliance.sdk.debug_util import debug_util\n"
        "from cerebras_appliance.pb.sdk.sdk_common_pb2 import MemcpyOrder\n"
        "import cerebras.sdk.client as newer; print(newer.SdkRuntime is SdkRuntime)"
    )
    assert result.stdout == "True\n", result.stderr


def test_a_script_of_the_first_releases_gets_as_far_as_its_runner(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "from cerebras.elf.cs_elf_runner import CSELFRunner\n"
        "from cerebras.elf.cself import ELFMemory\n"
        "import cerebras.elf.cs_elf_runner.lib.csl_utils as csl_utils\n"
        "runner = CSELFRunner(['out/bin/out_0_0.elf'])\n",
        encoding="utf-8",
    )
    ended = with_sdk().run_module("openwafer.cli.cs_python", str(script), folder=tmp_path)
    assert "error[no-elf-runner]: CSELFRunner of the first SDK releases" in ended.stderr
    assert "run.py:4" in ended.stderr
