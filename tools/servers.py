"""Real servers: Azurite (Azure Blob's emulator), redis-server and Prometheus, on free ports of 127.0.0.1.

Only starting, stopping, freezing and addressing lives here.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tools import ROOT
from tools.processes import Program

VERSITY: Final = ROOT / ".venv/go/versitygw"
_START_WAIT_S: Final = 30.0
_STOP_WAIT_S: Final = 10.0


_MOTO: Final = """
import sys, moto.server, werkzeug.serving
app = moto.server.DomainDispatcherApplication(moto.server.create_backend_app)
werkzeug.serving.run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=False)  # it compares and writes in two steps
"""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at the moment. Below those that the system gives to connections,
    or one of them may take it before the server does. Drawn at random, by what no test seeds: workers run side by side.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


class Server(Program, ABC):
    """One server with a folder of its own. It can be killed and started again on the same port and data."""

    def __init__(self) -> None:
        super().__init__([], name="server", folder=Path(tempfile.mkdtemp(prefix="partq-test-server-")), environment={})
        self.port = free_port()

    @abstractmethod
    def command(self) -> list[str]:
        """What is run."""

    def answers(self) -> bool:
        """Whether it serves: any HTTP answer will do, also a refusal. May raise `OSError` while it does not."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return connection.recv(5) == b"HTTP/"

    def environment(self) -> dict[str, str]:
        """The server's whole environment."""
        return dict(os.environ)

    def start(self) -> Self:
        """Start and wait until it answers, 30 s at most."""
        self._command, self._environment = self.command(), self.environment()
        super().start()
        try:
            self.wait_until(self._answers, f"an answer on port {self.port}", _START_WAIT_S)
        except BaseException:
            self.kill()
            raise
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.answers()
        return False

    def freeze(self) -> None:
        """Keep connections open and answer nothing, until `thaw`."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self.send(signal.SIGCONT)

    def stop(self) -> None:
        """End in good order and remove the data."""
        if self._process is not None and self.code is None:
            self.thaw()
            self.send(signal.SIGTERM)
            with contextlib.suppress(AssertionError):
                self.wait_end(_STOP_WAIT_S)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


S = TypeVar("S", bound=Server)


class Azurite(Server):
    """Azure Blob's emulator with an account and key of its own, so that a wrong key is really wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.account = "partq" + secrets.token_hex(4)
        self.key = base64.b64encode(secrets.token_bytes(48)).decode()

    @property
    def endpoint(self) -> str:
        """The account's blob endpoint."""
        return f"http://127.0.0.1:{self.port}/{self.account}"

    @property
    def connection_string(self) -> str:
        """For AZURE_STORAGE_CONNECTION_STRING."""
        return self.connection_string_with(self.key)

    def connection_string_with(self, key: str) -> str:
        """The same with another key, for tests of what goes wrong."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};AccountKey={key};BlobEndpoint={self.endpoint};"
        )

    def variables(self, port: int | None = None) -> dict[str, str]:
        """What a process needs to get in; by a proxy, whose port it is."""
        by_proxy = self.connection_string.replace(f":{self.port}/", f":{port or self.port}/")
        return {"AZURE_STORAGE_CONNECTION_STRING": by_proxy}

    def fresh_url(self) -> str:
        """A store URL in a container that nobody used; the store makes it at its first write."""
        return f"azure://test-{secrets.token_hex(8)}/store"

    def command(self) -> list[str]:
        """Azurite's blob service only; the versions' check is off because the SDK is newer than the emulator."""
        binary = ROOT / ".venv/node/node_modules/.bin/azurite-blob"
        if not binary.exists():
            raise RuntimeError(f"{binary} is not there: run scripts/test, which installs it")
        return [
            *(str(binary), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder)),
            # A connection that the server closes while it is idle looks to a client like a lost answer.
            *("--blobKeepAliveTimeout", "3600"),
            *("--skipApiVersionCheck", "--disableTelemetry", "--disableProductStyleUrl", "--silent", "--loose"),
        ]

    def environment(self) -> dict[str, str]:
        """The account goes in by the environment, so that no other user of the machine sees it in the process list."""
        return {**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}


class S3Server(Server):
    """The Versity gateway, whose buckets are folders; it keeps its data when it is killed. Where there is no Go, Moto's
    server, which keeps nothing and takes every key.
    """

    is_strict: Final = VERSITY.exists()

    def __init__(self) -> None:
        super().__init__()
        self.key = "partq" + secrets.token_hex(8)
        self.secret = secrets.token_hex(20)
        self.somebody = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20)}
        """Of whom a bucket's policy says what they may; the owner of the keys above may do everything."""

    def variables(self, port: int | None = None) -> dict[str, str]:
        """As Azurite's."""
        keys = {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1"}
        return {"PARTQ_S3_ENDPOINT": f"http://127.0.0.1:{port or self.port}", **keys}

    def fresh_url(self) -> str:
        """A store URL in a bucket that nobody used."""
        bucket = f"test-{secrets.token_hex(8)}"
        if self.is_strict:
            (self.folder / bucket).mkdir()
        else:
            urlopen(Request(f"http://127.0.0.1:{self.port}/{bucket}", method="PUT"), timeout=10).close()
        return f"s3://{bucket}/store"

    def command(self) -> list[str]:
        """On its folder. Not with `--sidecar`: of many swaps side by side some are lost there."""
        if not self.is_strict:
            return [sys.executable, "-c", _MOTO, str(self.port)]
        access, secret = self.somebody.values()
        people = self.folder / ".people"  # no bucket's name
        people.mkdir(exist_ok=True)
        account = {"access": access, "secret": secret, "role": "user"}
        (people / "users.json").write_text(json.dumps({"accessAccounts": {access: account}}))
        address = ("--port", f"127.0.0.1:{self.port}", "--region", "us-east-1", "--quiet", "--iam-dir", str(people))
        return [str(VERSITY), *address, "posix", str(self.folder)]

    def environment(self) -> dict[str, str]:
        """The keys go in by the environment, as with Azurite."""
        return {**os.environ, "ROOT_ACCESS_KEY": self.key, "ROOT_SECRET_KEY": self.secret}


class RedisServer(Server):
    """A redis-server that keeps nothing on disk: `kill` and `start` give an empty one."""

    @property
    def url(self) -> str:
        """For the option `ownership`, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """No snapshots, no append-only file."""
        binary = shutil.which("redis-server")
        if binary is None:
            raise RuntimeError("redis-server is not on PATH: run scripts/test, which installs it")
        return [
            *(binary, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no"),
        ]

    def answers(self) -> bool:
        """PING, PONG."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"


def prometheus_program(name: str) -> str:
    """Where `prometheus` or `promtool` is."""
    binary = Path(sys.prefix) / "prometheus" / name
    if not binary.exists():
        raise RuntimeError(f"{binary} is not there: run scripts/test, which gets it")
    return str(binary)


class Prometheus(Server):
    """A Prometheus with the rules that are shipped, which scrapes these targets every second."""

    def __init__(self, jobs: Mapping[str, Sequence[str]], *, token: str = "") -> None:
        super().__init__()
        authorization = {"authorization": {"credentials": token}} if token else {}
        self._config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "conf/prometheus/alerts.yml")],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [*targets]}], **authorization}
                for name, targets in jobs.items()
            ],
        }

    def command(self) -> list[str]:
        """On this machine alone; what it keeps is below its folder."""
        config = self.folder / "prometheus.json"
        config.write_text(json.dumps(self._config))  # YAML, too
        return [
            *(prometheus_program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self.folder}/data"),
            *(f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"),
        ]

    def answers(self) -> bool:
        """Ready to be asked."""
        with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)

    def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers."""
        where = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(where, timeout=10) as answer:
            found = json.loads(answer.read())
        assert found["status"] == "success"
        return found["data"]


@contextlib.contextmanager
def running(server: S) -> Iterator[S]:
    """A server for the length of a `with` block: `with running(Azurite()) as azurite:`."""
    try:
        yield server.start()
    finally:
        server.stop()
