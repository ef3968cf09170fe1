"""The vendor's modules in tests, notebooks and programs of one's own."""

from openwafer.sdk.compat.finder import install


def vendor_modules() -> None:
    """Provide the vendor's modules in this process, as ``cs_python`` does for its scripts.

    From then on ``from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime`` finds ours. In
    pytest, call it in ``conftest.py``. Code that imports them so keeps the rules of the installed
    numpy; only scripts under ``cs_python`` compute as numpy 1 did.
    """
    install()
