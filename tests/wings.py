"""Which tests the import floors keep from seeing a wing of the package."""

from pathlib import Path

TESTS = Path(__file__).parent
FOLDERS = {
    "planning": ("planning",),
    "sdk": ("csl", "properties", "sdk"),
    "training": ("faults", "replica_steps", "training"),
}
"""Folders of tests by the wing that they are of. All others are of the roof and of the ground."""
UNSEEN = {
    "sdk": (*FOLDERS["planning"], *FOLDERS["training"]),
    "training": (*FOLDERS["planning"], *FOLDERS["sdk"]),
}
"""Folders whose tests a change of a wing cannot touch."""
