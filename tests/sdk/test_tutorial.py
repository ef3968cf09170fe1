"""The tutorial's program compiles and runs as its page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "wafer-tutorial.md"
FILE = re.compile(r"```(?:csl|python)\n((?://|#) (\S+)\n.*?)```", re.DOTALL)
COMMAND = re.compile(r"\$ cslc (.*?)\ncompile successful", re.DOTALL)


def command(module: str, *arguments: str, folder: Path) -> str:
    line = [sys.executable, "-m", f"openwafer.cli.{module}", *arguments]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_student_who_follows_the_page_ends_with_checked_results(
    arch: str, tmp_path: Path
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for text, name in FILE.findall(page):
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = COMMAND.search(page)
    assert found is not None
    arguments = found[1].replace("\\\n", " ").replace("--arch=wse3", f"--arch={arch}").split()
    assert "compile successful" in command("cslc", *arguments, folder=tmp_path)
    assert "SUCCESS" in command("cs_python", "run.py", folder=tmp_path)
