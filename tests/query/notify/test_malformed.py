"""What is no message, or not of this version, and what cannot bring the mailbox down."""

from __future__ import annotations

import json
import logging
import socket
from typing import Any

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.query.notify import Datagram
from tests.query.notify.mailboxes import asker, echo, line, mailbox


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", None),
        (b"\xff\xfe", "malformed"),
        (b"{", "malformed"),
        (b"[1]", "malformed"),
        (b"[" * 20_000, "malformed"),
        (b'{"v":1,"n":"a"}', "malformed (KeyError('say'))"),
        (b'{"v":2,"n":"a","say":"hello"}', "not of version 1: use one partq"),
        (b'{"n":"a","say":"hello"}', "not of version 1: use one partq"),
        (b"x" * 60_000, "malformed"),
    ],
)
def test_what_is_no_message_is_answered_and_the_mailbox_lives_on(data: bytes, words: str | None) -> None:
    with mailbox(echo) as box, asker() as somebody:
        somebody.sendto(data, box.path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody:  # has no address to answer to
            nobody.sendto(data, box.path)
        if words is not None:
            answer = json.loads(somebody.recv(65536))
            assert answer["error"] == "Invalid"
            assert words in answer["message"]
            assert answer["n"] == ("a" if b'"n"' in data else None)
        assert line().ask({"say": "hello"})["heard"] == "hello"


def test_a_reader_of_another_version_is_named_to_the_application() -> None:
    """Both ways: it says so itself, or it answers in its own way."""
    with mailbox(echo), pytest.raises(Invalid, match="not of version 1: use one partq for reader and application"):
        line().ask({"say": "hello", "v": 2})
    with (
        mailbox(lambda _message: {"v": 2, "heard": "hello"}),
        pytest.raises(Invalid, match="answer is not of version 1"),
    ):
        line().ask({"say": "hello"})


def test_an_unknown_kind_of_error_may_be_tried_again() -> None:
    for kind in ("Strange", "annotations", "getattr"):
        told: dict[str, Any] = {"error": kind, "message": "of a later version"}
        with mailbox(lambda _message, told=told: told), pytest.raises(Unavailable, match="of a later version"):  # type: ignore[misc]
            line().ask({})


def test_a_fault_of_the_reader_is_told_and_the_mailbox_lives_on(caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: Datagram) -> Datagram:
        if message["say"] == "break":
            raise ZeroDivisionError("a fault")
        return echo(message)

    with mailbox(handle):
        with caplog.at_level(logging.ERROR, "partq.flow"), pytest.raises(Unavailable, match="ZeroDivisionError"):
            line().ask({"say": "break"})
        assert line().ask({"say": "hello"})["heard"] == "hello"
    assert "a message to the reader was not dealt with" in caplog.text


def test_a_client_may_be_gone_when_the_answer_comes() -> None:
    with mailbox(echo) as box:
        with asker() as gone:
            gone.sendto(b'{"v":1,"say":"hello"}', box.path)
        assert line().ask({"say": "hello"})["heard"] == "hello"
