"""Waiting in an event loop: asyncio's, uvloop's, or any other with ``add_reader``.

A loop that waits for transfers of a client has one :class:`_Bridge` for it. The bridge announces the loop's sleep to the
engine (arm), the loop sleeps at one file descriptor together with everything else that it waits for, and when that is readable
the bridge takes what there is (awake) and looks who has something to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ._native import Client, Notification, Outcome, Transfer, Wakeup

_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Bridge]] = WeakKeyDictionary()


class _Bridge:
    """What tasks of one loop wait for at one client."""

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def until(self, is_settled: Callable[[], bool]) -> None:
        """Returns when ``is_settled()`` is true, which is asked whenever something was taken from the ring."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._waiting:
            loop.add_reader(self.wakeup.fileno(), self._look, loop)
        self._waiting[future] = is_settled
        self._sleep(loop)
        try:
            await future
        finally:
            self._waiting.pop(future, None)
            if not self._waiting:
                loop.remove_reader(self.wakeup.fileno())
                self.wakeup.rest()

    def _sleep(self, loop: asyncio.AbstractEventLoop) -> None:
        # False: there is something already. The loop does its other work first.
        if not self.wakeup.arm():
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if all(future.done() for future in self._waiting):
            return
        self.wakeup.awake()
        for future, is_settled in self._waiting.items():
            if not future.done() and is_settled():
                future.set_result(None)
        if not all(future.done() for future in self._waiting):
            self._sleep(loop)


def _bridge(owner: Client | Transfer) -> _Bridge:
    bridges = _bridges.setdefault(asyncio.get_running_loop(), {})
    bridge = bridges.get(owner._session)
    if bridge is None:
        for session in [session for session, other in bridges.items() if other.wakeup.over]:
            del bridges[session]
        bridge = bridges[owner._session] = _Bridge(owner._wakeup())
    return bridge


async def wait_for_transfer(transfer: Transfer) -> Outcome:
    while not transfer.done:
        await _bridge(transfer).until(transfer._settled)
    return transfer.result


class Notifications:
    """``async for notification in client.notifications()``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __aiter__(self) -> Notifications:
        return self

    async def __anext__(self) -> Notification:
        while True:
            notification = self._client.wait_notification(0)
            if notification is not None:
                return notification
            await _bridge(self._client).until(self._client._settled)
