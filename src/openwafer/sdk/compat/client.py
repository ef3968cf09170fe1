"""The vendor's cluster client, its jobs run here: compile to an archive, run on the simulator."""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openwafer.diagnostics import error
from openwafer.sdk.compat import runtime, sdk_utils
from openwafer.sdk.compiler import compilations
from openwafer.sdk.compiler.command_line import parse_command
from openwafer.sdk.compiler.pipeline import compile_files

__all__ = ["SdkCompiler", "SdkLauncher", "SdkRuntime", "sdk_utils"]


class _Place:
    """A folder of its own, for as long as a `with` block lasts."""

    def __init__(self, **options: Any) -> None:
        if options.get("simulator") is False:
            raise error("no-system", "there is no system: programs run on the simulator")
        self._folder = Path(tempfile.mkdtemp(prefix="openwafer-client-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder)


class SdkCompiler(_Place):
    """Compiles programs to archives."""

    def compile(
        self, app_path: str, csl_main: str, options: str, out_path: str = ".", *_: Any
    ) -> str:
        """Compile a layout file and return the path of an archive with its output folder.

        Args:
            app_path: folder of the program.
            csl_main: layout file in it.
            options: what would stand on cslc's command line.
            out_path: folder that the archive goes to.
        """
        command = parse_command([str(Path(app_path) / csl_main), *shlex.split(options)])
        output = self._folder / command.output.name
        what = command.layout, command.options
        (compilations.find(*what) or compile_files(*what)).write(output)
        archive = Path(out_path) / f"{output.name}.tar.gz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz") as file:
            file.add(output, arcname=output.name)
        return str(archive)


class SdkRuntime(runtime.SdkRuntime):
    """Runs an archive: loads when the `with` block begins, stops when it ends."""

    def __init__(self, artifact_path: str, **options: Any) -> None:
        simulator = options.pop("simulator", True)
        if not simulator:
            raise error("no-system", "there is no system: programs run on the simulator")
        _check_archive(Path(artifact_path))
        self._place = Path(tempfile.mkdtemp(prefix="openwafer-client-"))
        super().__init__(_unpack(Path(artifact_path), self._place), **options)

    def __enter__(self) -> Self:
        self.load()
        self.run()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            shutil.rmtree(self._place)


class SdkLauncher(_Place):
    """Runs commands in the folder of an archive."""

    def __init__(self, artifact_path: str, **options: Any) -> None:
        _check_archive(Path(artifact_path))
        super().__init__(**options)
        _unpack(Path(artifact_path), self._folder)

    def stage(self, path: str) -> None:
        """Copy a file there."""
        shutil.copy(path, self._folder)

    def run(self, *commands: str) -> str:
        """Run shell commands, one after the other, and return what they print.

        ``%CMADDR%`` in them becomes empty: they run on the simulator.
        """
        outputs = [self._run(command.replace("%CMADDR%", "''")) for command in commands]
        return "".join(outputs)

    def download_artifact(self, name: str, out_path: str) -> None:
        """Copy a file from there."""
        shutil.copy(self._folder / name, out_path)

    def _run(self, command: str) -> str:
        here = Path(sys.argv[0]).resolve().parent
        environment = os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            command,
            shell=True,
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise error(
                "client-command",
                f"{command!r} ended with {done.returncode}",
                notes=(done.stderr.strip(),),
            )
        return done.stdout


def _check_archive(path: Path) -> None:
    """Raise OpenwaferError for what is no archive: a folder, for one, that cslc has written."""
    if path.is_file() and tarfile.is_tarfile(path):
        return
    kind = "a folder" if path.is_dir() else "no archive" if path.exists() else "not there"
    raise error(
        "client-archive",
        f"{path} is {kind}; the client runs archives",
        help="give the path that SdkCompiler.compile returned, or run an output folder of cslc with"
        " SdkRuntime of cerebras.sdk.runtime.sdkruntimepybind",
    )


def _unpack(archive: Path, folder: Path) -> Path:
    """Extract an archive and return the one folder in it."""
    with tarfile.open(archive) as file:
        for member in file:
            _check(member, archive, folder)
        # What is left to a filter is modes and owners; Python has none before 3.11.4.
        file.extraction_filter = getattr(tarfile, "data_filter", None)
        file.extractall(folder)
    folders: Sequence[Path] = [path for path in folder.iterdir() if path.is_dir()]
    if len(folders) != 1:
        raise error("client-archive", f"{archive} holds {len(folders)} folders, not one")
    return folders[0]


def _check(member: tarfile.TarInfo, archive: Path, folder: Path) -> None:
    is_inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
    if not (is_inside and (member.isfile() or member.isdir())):
        raise error(
            "client-archive",
            f"{archive} holds {member.name!r}, which is no file or folder inside of it",
            help="compile the program again: an archive holds the output folder and nothing else",
        )
