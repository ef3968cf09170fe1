"""Hosts of one network on this machine: namespaces with a link and a host name of their own.

They share all folders, but for those that each has on a disk of its own.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import pytest

from openwafer.training.collectives.joining import MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE

ROOT = Path(__file__).parents[2]
COMMAND = "from openwafer.cli import main; main()"
SWITCH = f"ow-{os.getpid()}-switch"
PORT = 29555
NOTHING: Mapping[int, Sequence[str]] = {}
# To start Python and torch four times, and to end them.
LIMIT_SECONDS = 120


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def may_make_hosts() -> bool:
    """Whether this process may make namespaces, links, host names and mounts."""
    try:
        ip("netns", "add", SWITCH)
        ip("netns", "delete", SWITCH)
        own = ["unshare", "--uts", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
        subprocess.run(own, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@dataclass(frozen=True)
class Disk:
    """A folder that a host sees in the place of another one.

    Attributes:
        folder: what is on the disk.
        place: an empty folder, where the host has it.
    """

    folder: Path
    place: Path


NEEDS_HOSTS = pytest.mark.skipif(
    not may_make_hosts(), reason="making hosts takes the rights of root"
)


@dataclass(frozen=True)
class Host:
    """A host by its index, from 0, which is also the rank of the system on it."""

    index: int

    @property
    def namespace(self) -> str:
        return f"ow-{os.getpid()}-{self.index}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.index + 1}"

    def run(self, *words: str) -> None:
        """Run a command on it."""
        ip("netns", "exec", self.namespace, *words)

    def cut_off(self) -> None:
        """Take it off the network: nobody is told."""
        ip("-n", SWITCH, "link", "set", f"port{self.index}", "down")

    def slow_down(self, rate: str) -> None:
        """Bound the rate of its link, such as 10mbit, both ways."""
        shaping = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
        self.run("tc", "qdisc", "add", "dev", "eth0", *shaping)
        ip("netns", "exec", SWITCH, "tc", "qdisc", "add", "dev", f"port{self.index}", *shaping)

    def start(
        self, program: Sequence[str], size: int, out: Path, disks: Sequence[Disk]
    ) -> subprocess.Popen[bytes]:
        """Start a system of so many, with its own disks; the first host has the first one.

        Args:
            program: for Python.
            size: number of systems.
            out: for what it says.
            disks: of this host.
        """
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            MASTER_ADDR: Host(0).address,
            MASTER_PORT: str(PORT),
            WORLD_SIZE: str(size),
            RANK: str(self.index),
        }
        mounts = [f"mount --bind {quote(str(d.folder))} {quote(str(d.place))}" for d in disks]
        own = " && ".join([f"hostname host-{self.index}", *mounts, 'exec "$@"'])
        command = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount"]
        command += ["sh", "-c", own, "-", sys.executable, *program]
        with out.open("wb") as words:
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=words, stderr=subprocess.STDOUT
            )


@contextmanager
def hosts(size: int) -> Iterator[list[Host]]:
    """Context in which hosts reach each other over a switch."""
    with ExitStack() as stack:
        _add_namespace(stack, SWITCH)
        ip("-n", SWITCH, "link", "add", "switch", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "switch", "up")
        made = [Host(index) for index in range(size)]
        for host in made:
            _add_namespace(stack, host.namespace)
            port = f"port{host.index}"
            ends = ("type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            ip("-n", SWITCH, "link", "add", port, *ends)
            ip("-n", SWITCH, "link", "set", port, "master", "switch", "up")
            ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "eth0", "up")
            ip("-n", host.namespace, "link", "set", "lo", "up")
        yield made


def _add_namespace(stack: ExitStack, name: str) -> None:
    ip("netns", "add", name)
    stack.callback(ip, "netns", "delete", name)


@contextmanager
def systems_on(
    made: Sequence[Host],
    arguments: Sequence[str],
    folder: Path,
    disks: Sequence[Disk] = (),
    instead: Mapping[int, Sequence[str]] = NOTHING,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Context in which each host runs a system of one run; what they say is in the folder.

    Args:
        made: the hosts.
        arguments: of the command.
        folder: for what they say.
        disks: one of each host, in their order; none where they share all folders.
        instead: what Python runs on some hosts, in the place of the command.
    """
    command = ("-c", COMMAND, *arguments)
    started = [
        host.start(
            instead.get(host.index, command),
            len(made),
            folder / f"said-{host.index}.txt",
            disks[host.index : host.index + 1],
        )
        for host in made
    ]
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()


def said(folder: Path, index: int) -> str:
    """What the system of a host has said."""
    return (folder / f"said-{index}.txt").read_text()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when something is so, which has to be soon."""
    end = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)
