"""Exports go to a hub of models, by the client of its library."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.models.checkpoint_folder import CONFIG_FILE


def push(
    folder: PathLike, repository: str, *, endpoint: str | None = None, is_private: bool = True
) -> str:
    """Upload an export, in a commit of its own; returns the commit's address.

    Who may write is known by the library: from ``hf auth login``, or the variable ``HF_TOKEN``.

    Args:
        folder: as :meth:`Session.export` has written it; all of its files go.
        repository: ``owner/name``; it is made where there is none.
        endpoint: of the hub; ``None`` is the library's, which ``HF_ENDPOINT`` changes.
        is_private: whether a new repository is.

    Raises:
        OpenwaferError: ``hub-no-export``, ``hub-refused``.
    """
    folder = path_of(folder, "folder")
    if not (folder / CONFIG_FILE).is_file():
        raise error(
            "hub-no-export",
            f"{folder} has no {CONFIG_FILE}, so that it is no export",
            help="write one first: openwafer export RUN FOLDER",
        )
    hub = HfApi(endpoint=endpoint)
    try:
        hub.create_repo(repository, private=is_private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload of an export"
        )
    # The second comes before anything is sent; what no server answers is an OSError.
    except (HfHubHTTPError, HFValidationError, OSError) as cause:
        raise _refused(folder, repository, hub, cause) from cause
    return str(commit.commit_url)


def _refused(folder: Path, repository: str, hub: HfApi, cause: Exception) -> OpenwaferError:
    return error(
        "hub-refused",
        f"{hub.endpoint} does not take {folder} as {repository!r}: {str(cause).strip()}",
        help="name a repository as owner/name, and log in as who may write there: hf auth login",
    )
