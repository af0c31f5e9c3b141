"""The five kinds of error that partq raises, and four that say more of why.

Every message names the thing, the value that was found and the next step. No message carries a secret. Callers decide
by the class alone: `Conflict` and `Unavailable` may be tried again, the others may not.
"""

from __future__ import annotations


class PartqError(Exception):
    """Base of everything that partq raises on purpose; catch it to catch all of partq."""


class Invalid(PartqError):
    """What the user asked for cannot be done as asked: correct the option, name, row or command and call again."""


class WrongUse(Invalid):
    """An argument that no queue could take, whatever is stored: the command line ends with exit code 2."""


class BadRow(Invalid):
    """A message that cannot be published. `row` is its index in the batch that was handed over; whoever handed it over
    knows it by a number of its own (`moved`), or by a place in a file (`at`).
    """

    row = 0
    _said = _before = ""

    @classmethod
    def of(cls, row: int, said: str, before: str = "") -> BadRow:
        """`said` goes on behind the row's number or place, `before` stands in front of it."""
        made = cls(f"{before}row {row}{said}")
        made.row, made._said, made._before = row, said, before
        return made

    def moved(self, row: int) -> BadRow:
        """The same, of a row with another number."""
        return self.of(row, self._said, self._before)

    def at(self, place: str) -> Invalid:
        """The same, of what stands at `place`."""
        return Invalid(f"{self._before}{place}{self._said}")


class Conflict(PartqError):
    """Somebody else changed the object first: read it again, then decide whether the change still makes sense."""


class Fenced(PartqError):
    """This process lost what it held to another one: stop writing, nothing that it writes from here on counts."""


class Unavailable(PartqError):
    """A store did not answer, or its answer was lost: the outcome of a write is unknown until the object is read
    again.

    `tried_s`: seconds for which it was tried before this was raised, so that a caller that goes on trying counts them
    too.
    """

    tried_s: float = 0.0


class Corrupt(PartqError):
    """What is stored is not what was written, or is gone: the message names the object; nothing was guessed in its
    place.
    """


class ObjectMissing(Corrupt):
    """An object that something stored refers to is not there: restore it, or accept the loss with
    `failOnDataLoss=false`.
    """
