"""The profile of a run: where its cycles went, by PEs, tasks, functions and lines."""

from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.taking import Grouping, profile_of
from openwafer.sdk.profile.text import profile_text

__all__ = ["Grouping", "Profile", "profile_of", "profile_text"]
