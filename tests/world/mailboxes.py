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

Datagram = Mapping[str, Any]
_Answer = Mapping[str, Any] | partq.PartqError
_WAY_US: Final = 1000
_LOOK_S: Final = 0.1
_SILENCE_US: Final = SECOND_US  # after which the next process under the name is asked, too


class Mailboxes:
    """Of one machine. All of its processes find each other here."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.trouble = ""  # why none can be made on this machine
        self._open: list[_Mailbox] = []

    def put_in_place(self) -> None:
        """Whoever makes a mailbox, or looks for one, gets these."""
        found: Mapping[object, Any] = {
            notify.Mailbox: lambda address, handle: _Mailbox(self, address, handle),
            notify.Requester: lambda address, *, timeout_s: _Requester(self, address, timeout_s),
            notify.send: self.send,
        }
        self.machine.stand_ins |= {id(each): own for each, own in found.items()}

    def send(self, path: str, message: Datagram) -> bool:
        """Nobody waits for an answer."""
        for box in self.living():
            if box.path == path:
                box.begin(message, lambda _: None)
                return True
        return False

    def living(self, address: Address | None = None) -> list[_Mailbox]:
        """The newest first."""
        self._open = [box for box in self._open if box.host.process.alive]
        return [box for box in reversed(self._open) if address in (None, box.address)]

    def ask(self, flow: str, message: Datagram) -> Datagram:
        """Words that no application says."""
        (address,) = {box.address for box in self.living() if box.address.flow == flow}
        return _Requester(self, address, 30.0).ask(message)

    def opened(self, box: _Mailbox) -> None:
        if self.trouble:
            raise partq.Invalid(self.trouble)
        self._open.append(box)

    def closed(self, box: _Mailbox) -> None:
        if box in self._open:
            self._open.remove(box)


class _Mailbox:
    """The receiving end, in the process that made it."""

    def __init__(self, of: Mailboxes, address: Address, handle: Callable[[Datagram], Datagram | None]) -> None:
        self._of, self._handle = of, handle
        self.address = address
        self.host: Host = of.machine.host
        self.path = f"mailbox-{self.host.pid}"
        of.opened(self)

    def close(self) -> None:
        self._of.closed(self)

    def begin(self, message: Datagram, answered: Callable[[_Answer | None], None]) -> None:
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

    def ask(self, message: Datagram) -> Datagram:
        """As the real one: of several processes under the name the one that is bound counts."""
        scheduler, asker = self._of.machine.scheduler, self._of.machine.strand
        until_us = scheduler.now_us + round(self._timeout_s * SECOND_US)
        while scheduler.now_us < until_us:
            others: list[_Answer] = []
            boxes = self._of.living(self._address)
            for box in boxes:
                silent_us = scheduler.now_us + _SILENCE_US if len(boxes) > 1 else until_us
                answer = self._asked(box, message, asker, min(until_us, silent_us))
                if isinstance(answer, partq.PartqError):
                    if not isinstance(answer, partq.Unavailable):
                        raise answer
                    others.append(answer)
                elif answer is not None:
                    if answer["bound"]:
                        return answer
                    others.append(answer)
            if others:
                if isinstance(others[0], partq.PartqError):
                    raise others[0]
                return others[0]
            self._of.machine.sleep(_LOOK_S)
        raise partq.Unavailable(f"{self._address} has no reader process that answers (simulated)")

    def _asked(self, box: _Mailbox, message: Datagram, asker: Strand, until_us: int) -> _Answer | None:
        scheduler = self._of.machine.scheduler
        answers: list[_Answer | None] = []

        def answered(answer: _Answer | None) -> None:
            answers.append(answer)
            scheduler.wake(asker, _WAY_US)

        box.begin(message, answered)
        while not answers and box.host.process.alive and scheduler.now_us < until_us:
            scheduler.sleep_us(min(until_us - scheduler.now_us, SECOND_US // 4))
        return answers[0] if answers else None
