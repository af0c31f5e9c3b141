"""Mailboxes and lines to them under one set of names, and somebody who says whatever a test wants."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from partq_spark.query import notify
from partq_spark.query.notify import Address, Datagram, Mailbox, Requester

NAMES = Address("file:///srv/queues", "default", "orders", "billing", "billing-1")


@contextmanager
def mailbox(handle: Callable[[Datagram], Datagram | None], address: Address = NAMES) -> Iterator[Mailbox]:
    """A mailbox that deals with its messages by `handle`."""
    with closing(Mailbox(address, handle)) as made:
        yield made


def echo(message: Datagram) -> Datagram:
    """Answers with what was said."""
    return {"heard": message["say"]}


def line(timeout_s: float = 5.0, address: Address = NAMES) -> Requester:
    """A line to the readers that are there under the names."""
    return Requester(address, timeout_s=timeout_s)


@contextmanager
def asker() -> Iterator[socket.socket]:
    """Somebody with an address, who says whatever a test wants."""
    path = notify.folder() / "ask-by-hand"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))
        made.settimeout(5.0)
        yield made
    path.unlink()
