"""A system that a launcher has started and that kills itself in mid-step; run as a script.

Its words are what it is about to send, how often it has before, and the config of a run that begins
or the settings of one that goes on. It follows a run as any other, until it is about to send a
message of some kind once more.
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from openwafer.config import settings_of
from openwafer.training.collectives.group import Group, Pending
from openwafer.training.collectives.joining import Meeting, meet_launched
from openwafer.training.session import load_config
from openwafer.training.session.following import follow
from openwafer.training.session.systems import Systems, require_same_settings

TIMEOUT_SECONDS = 120.0


@dataclass
class Moment:
    """When a system dies.

    Attributes:
        what: how the text of its last message begins, which is never sent.
        num_left: messages of that kind that it sends before.
    """

    what: str
    num_left: int

    def come_to(self, what: str) -> None:
        """Die, if this is the moment."""
        if what.startswith(self.what):
            self.num_left -= 1
            if self.num_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class DyingGroup(Group):
    """A group in which this system dies before it sends a message.

    Args:
        group: the ranks.
        moment: when.
    """

    def __init__(self, group: Group, moment: Moment) -> None:
        vars(self).update(vars(group))
        self._moment = moment

    def send(self, tensor: Tensor, to: int, tag: int, what: str) -> Pending:
        """See :meth:`Group.send`."""
        self._moment.come_to(what)
        return super().send(tensor, to, tag, what)

    def gather(self, tensor: Tensor, what: str) -> list[Tensor]:
        """See :meth:`Group.gather`."""
        self._moment.come_to(what)
        return super().gather(tensor, what)


@dataclass(frozen=True)
class DyingMeeting(Meeting):
    """A meeting of systems, of which this one dies.

    Attributes:
        moment: when.
    """

    moment: Moment = field(kw_only=True)

    def groups(self, names: Sequence[str], members: Sequence[int] | None = None) -> list[Group]:
        """See :meth:`Meeting.groups`."""
        return [DyingGroup(group, self.moment) for group in super().groups(names, members)]


def settings_in(words: Sequence[str]) -> dict[str, str]:
    """What all systems compare: those of a config, or key=value each."""
    if words[0].endswith(".yaml"):
        return dict(settings_of(load_config(words[0])))
    return {key: value for key, _, value in (word.partition("=") for word in words)}


if __name__ == "__main__":
    what, num_before, *words = sys.argv[1:]
    met = vars(meet_launched(TIMEOUT_SECONDS).timed_by_first())
    systems = Systems(DyingMeeting(**met, moment=Moment(what, int(num_before))))
    require_same_settings(systems, settings_in(words))
    follow(systems)
