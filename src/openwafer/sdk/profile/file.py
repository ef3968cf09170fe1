"""A profile as a file of JSON, as docs/formats/openwafer-profile.md says."""

from typing import Final

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.json_files import SealedFormat
from openwafer.sdk.profile.model import Profile

FORMAT: Final = "openwafer-profile"
VERSION: Final = 1

_FILE: Final = SealedFormat(
    FORMAT,
    VERSION,
    Profile,
    "profile-damaged",
    "take the profile again; it is written whole, so it was changed or cut since",
    "profile-version",
    "take the profile again with this openwafer",
)


def content(profile: Profile) -> str:
    """The text of a profile's file."""
    return _FILE.encode(profile).decode()


def read_profile(path: PathLike) -> Profile:
    """Read a profile of :func:`write_profile`, or of ``openwafer csl profile``.

    Raises OpenwaferError when there is none, when it is damaged, or of another version.
    """
    path = path_of(path, "path")
    if not path.is_file():
        raise error(
            "profile-missing",
            f"there is no profile at {path}",
            help="take one: openwafer csl profile OUT --write FILE.json -- run.py ...",
        )
    return _FILE.decode(path, path.read_bytes())
