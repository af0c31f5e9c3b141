"""The mailboxes of simulated reader processes, in place of sockets: who listens under which name, who asks, and what
comes of it if the process that should answer dies or freezes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import partq
from partq_spark.query import notify
from partq_spark.query.notify import Address
from tests.world.machine import Host, Machine
from tests.world.scheduler import SECOND_US, Strand
from tests.world.threads import Thread

Message = Mapping[str, Any]
_Answer = Mapping[str, Any] | partq.PartqError
_WAY_US: Final = 1000
_LOOK_S: Final = 0.1


class Mailboxes:
    """Of one machine. All of its processes find each other here."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.trouble = ""  # why none can be made on this machine
        self._open: dict[Address, _Mailbox] = {}  # who has the flow's path

    def put_in_place(self) -> None:
        """Whoever makes a mailbox, or looks for one, gets these."""
        found: Mapping[object, Any] = {
            notify.Mailbox: lambda address, handle: _Mailbox(self, address, handle),
            notify.Requester: lambda address, *, timeout_s: _Requester(self, address, timeout_s),
            notify.send: self.send,
            notify.is_taken: lambda address: self.at(address) is not None,
        }
        self.machine.stand_ins |= {id(each): own for each, own in found.items()}

    def send(self, path: str, message: Message) -> bool:
        """Nobody waits for an answer."""
        box = next((each for each in self._open.values() if each.path == path), None)
        if box is None or not box.host.process.alive:
            return False
        box.begin(message, lambda _: None)
        return True

    def at(self, address: Address) -> _Mailbox | None:
        """Who answers there."""
        box = self._open.get(address)
        return box if box is not None and box.host.process.alive else None

    def ask(self, flow: str, message: Message) -> Message:
        """Words that no application says."""
        (address,) = {address for address in self._open if address.flow == flow}
        return _Requester(self, address, 30.0).ask(message)

    def opened(self, box: _Mailbox) -> None:
        if self.trouble:
            raise partq.Invalid(self.trouble)
        self._open[box.address] = box

    def closed(self, box: _Mailbox) -> None:
        if box.is_found:
            del self._open[box.address]


class _Mailbox:
    """The receiving end, in the process that made it."""

    def __init__(self, of: Mailboxes, address: Address, handle: Callable[[Message], Message | None]) -> None:
        self._of, self._handle = of, handle
        self.address = address
        self.host: Host = of.machine.host
        self.path = f"mailbox-{self.host.pid}"
        of.opened(self)

    @property
    def is_found(self) -> bool:
        return self._of.at(self.address) is self

    def close(self) -> None:
        self._of.closed(self)

    def begin(self, message: Message, answered: Callable[[_Answer | None], None]) -> None:
        """Deal with it, in a thread of this process."""

        def serve() -> None:
            try:
                answered(self._handle(message))
            except partq.PartqError as error:
                answered(error)

        Thread(target=serve, name="mailbox", machine=self._of.machine).start_in(self.host)


class _Requester:
    """The asking end."""

    def __init__(self, of: Mailboxes, address: Address, timeout_s: float) -> None:
        self._of, self._address, self._timeout_s = of, address, timeout_s

    def ask(self, message: Message) -> Message:
        """As the real one, which asks the next process under the name as soon as there is one."""
        scheduler, asker = self._of.machine.scheduler, self._of.machine.strand
        until_us = scheduler.now_us + round(self._timeout_s * SECOND_US)
        while scheduler.now_us < until_us:
            box = self._of.at(self._address)
            answer = self._asked(box, message, asker, until_us) if box is not None else None
            if isinstance(answer, partq.PartqError):
                raise answer
            if answer is not None:
                return answer
            self._of.machine.sleep(_LOOK_S)
        raise partq.Unavailable(f"{self._address} has no reader process that answers (simulated)")

    def _asked(self, box: _Mailbox, message: Message, asker: Strand, until_us: int) -> _Answer | None:
        scheduler = self._of.machine.scheduler
        answers: list[_Answer | None] = []

        def answered(answer: _Answer | None) -> None:
            answers.append(answer)
            scheduler.wake(asker, _WAY_US)

        box.begin(message, answered)
        while not answers and box.is_found and scheduler.now_us < until_us:
            scheduler.sleep_us(min(until_us - scheduler.now_us, SECOND_US // 4))
        return answers[0] if answers else None
