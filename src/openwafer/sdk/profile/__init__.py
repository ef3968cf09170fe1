"""The profile of a run: where its cycles went, by PEs, tasks, functions and lines."""

from openwafer.sdk.profile.critical_path import critical_path
from openwafer.sdk.profile.difference import difference_text
from openwafer.sdk.profile.file import read_profile
from openwafer.sdk.profile.forms import write_profile, write_timeline
from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.recorded import profile_of_journal
from openwafer.sdk.profile.segments import Cost, CriticalPath, Reason, Segment
from openwafer.sdk.profile.taking import Grouping, profile_of
from openwafer.sdk.profile.text import path_text, profile_text
from openwafer.sdk.profile.wavelets import End, Wavelets, wavelets

__all__ = [
    "Cost",
    "CriticalPath",
    "End",
    "Grouping",
    "Profile",
    "Reason",
    "Segment",
    "Wavelets",
    "critical_path",
    "difference_text",
    "path_text",
    "profile_of",
    "profile_of_journal",
    "profile_text",
    "read_profile",
    "wavelets",
    "write_profile",
    "write_timeline",
]
