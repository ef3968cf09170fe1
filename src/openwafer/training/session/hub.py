"""Exports go to a hub of models, by the client of its library."""

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import HFValidationError

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
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
        OpenwaferError: ``hub-name``, ``hub-no-export``, ``hub-refused``.
    """
    require_name(repository)
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
    # The client raises what its parts do: of HTTP, of a socket, of an answer that is no JSON.
    except Exception as cause:
        raise error(
            "hub-refused",
            f"{hub.endpoint} does not take {folder} as {repository!r}: {str(cause).strip()}",
            help="log in as who may write there (hf auth login), and see that HF_ENDPOINT is right",
        ) from cause
    return str(commit.commit_url)


def require_name(repository: str) -> None:
    """Raise ``hub-name`` for a name that no hub takes."""
    try:
        hf_hub_url(repository, CONFIG_FILE)
    except HFValidationError as cause:
        raise error(
            "hub-name", f"{repository!r}: {cause}", help="name a repository as owner/name"
        ) from cause
