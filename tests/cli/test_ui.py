"""`partq ui`: what it refuses, and that it serves until it is told to end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Partq
from tests.support.servers import die_with_parent


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--host", "0.0.0.0"], {}, "set PARTQ_UI_TOKEN"),  # noqa: S104 - what is refused
        (["--allow-actions"], {}, "--allow-actions"),
        (["--port", "70000"], {}, "65535"),
        ([], {"PARTQ_UI_TOKEN": "two words"}, "PARTQ_UI_TOKEN is not allowed"),
        ([], {"PARTQ_UI_TOKEN": "x"}, "PARTQ_UI_TOKEN has fewer than 16 characters and could be guessed"),
    ],
)
def test_what_cannot_be_served_is_refused(
    partq: Partq, arguments: list[str], environ: dict[str, str], said: str
) -> None:
    assert said in partq.misuse("ui", *arguments, **environ)


def test_a_port_that_is_taken_is_named_with_what_to_do(partq: Partq) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        said = partq.error("ui", "--port", port)
    assert said.startswith(f"--port {port} on 127.0.0.1 cannot be used")
    assert said.endswith("end what listens there, or choose another port")


def test_an_address_that_is_not_ours_is_named(partq: Partq) -> None:
    said = partq.error("ui", "--host", "192.0.2.1", PARTQ_UI_TOKEN="a-token-for-tests")
    assert said.startswith("--port 8096 on 192.0.2.1 cannot be used")


@pytest.mark.slow
def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "partq_spark", "ui", "--port", "0", "--store", f"file://{tmp_path}"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from a test's main thread
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        with urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            assert "There is no queue" in answer.read().decode()
        with urlopen(f"http://127.0.0.1:{port}/events", timeout=20) as watching:  # an answer that has no end by itself
            assert watching.readline().startswith(b"data: ")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert process.stderr.read() == ""
