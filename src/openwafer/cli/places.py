"""The places that commands are to write to, before they begin to work."""

from pathlib import Path

from openwafer.diagnostics import error


def require_places(**paths: Path | None) -> None:
    """Refuse a file in a folder that is not there, and one that is a folder.

    Args:
        paths: by the names of their options; ``None`` for an option that was not given.

    Raises:
        OpenwaferError: ``option-value``.
    """
    for option, path in paths.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise error(
                "option-value",
                f"--{option} {path}: there is no folder {path.absolute().parent}",
                help="make the folder first, or give another path",
            )
        if path is not None and path.is_dir():
            raise error(
                "option-value",
                f"--{option} {path}: that is a folder, and a file is to be written",
                help=f"give the path of a file, such as {path / 'out'}",
            )


def free_name(folder: Path, first: str) -> str:
    """The name `first`, with a number where it is taken in a folder."""
    name, number = first, 1
    while (folder / name).exists():
        number += 1
        name = f"{first}-{number}"
    return name
