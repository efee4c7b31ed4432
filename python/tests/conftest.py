"""What the tests share: an engine in this process, and a daemon beside it.

A test that takes `client` runs against both. The daemon is the command that SCATTER_RING_BIN names; without it those tests
say NOT RUN, and with SCATTER_RING_NEEDS_ALL=1 they fail instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import scatter_ring as sr

Attach = Callable[..., sr.Client]


def not_run(why: str) -> None:
    """Says so, and does not count as passed."""
    if os.environ.get("SCATTER_RING_NEEDS_ALL") == "1":
        pytest.fail(f"NOT RUN: {why}")
    print(f"NOT RUN: {why}", file=sys.__stderr__)
    pytest.skip(f"NOT RUN: {why}")


class Daemon:
    """`scatter-ring serve`, stopped with the test."""

    def __init__(self, directory: str) -> None:
        command = os.environ.get("SCATTER_RING_BIN")
        if not command:
            not_run("SCATTER_RING_BIN does not name the scatter-ring command")
        self.socket = Path(directory) / "socket"
        self.process = subprocess.Popen(
            [str(command), "serve", "--socket", str(self.socket)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        # What it says once it listens.
        assert self.process.stdout is not None and b"serving at" in self.process.stdout.readline()

    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> None:
        """Stops every thread of it: the signal alone returns before they have all stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")

        def is_stopped() -> bool:
            states = [(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks.iterdir()]
            return all(state == "T" for state in states)

        within(10, is_stopped)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Waits for a condition; fails if it does not come."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.005)


@pytest.fixture
def directory() -> Iterator[str]:
    """One of this user's alone, with a short name: socket paths end at 107 bytes."""
    path = tempfile.mkdtemp(prefix="sr-", dir="/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def daemon(directory: str) -> Iterator[Daemon]:
    daemon = Daemon(directory)
    yield daemon
    daemon.kill()


@pytest.fixture
def engine() -> Iterator[sr.Engine]:
    with sr.Engine() as engine:
        yield engine


@pytest.fixture(params=["engine", "daemon"])
def attach(request: pytest.FixtureRequest) -> Attach:
    """Makes clients of one engine: of this process, or of a daemon."""
    if request.param == "engine":
        engine: sr.Engine = request.getfixturevalue("engine")
        return engine.client
    daemon: Daemon = request.getfixturevalue("daemon")
    return lambda **settings: sr.attach(daemon.socket, **settings)


@pytest.fixture
def client(attach: Attach) -> Iterator[sr.Client]:
    with attach() as client:
        yield client
