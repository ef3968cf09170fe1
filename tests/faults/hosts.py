"""Hosts of one network on this machine: namespaces with a link and a host name of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from openwafer.training.collectives.joining import MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE

ROOT = Path(__file__).parents[2]
COMMAND = "from openwafer.cli import main; main()"
SWITCH = f"ow-{os.getpid()}-switch"
PORT = 29555


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def may_make_hosts() -> bool:
    """Whether this process may make namespaces, links and host names."""
    try:
        ip("netns", "add", SWITCH)
        ip("netns", "delete", SWITCH)
        subprocess.run(["unshare", "--uts", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


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

    def start(self, arguments: Sequence[str], size: int, out: Path) -> subprocess.Popen[bytes]:
        """Start a system of so many; the first host has the first one."""
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
        named = f'hostname host-{self.index}; exec "$@"'
        command = [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            named,
            "-",
        ]
        command += [sys.executable, "-c", COMMAND, *arguments]
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
    made: Sequence[Host], arguments: Sequence[str], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Context in which each host runs a system of one run; what they say is in the folder."""
    started = [host.start(arguments, len(made), folder / f"said-{host.index}.txt") for host in made]
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()
