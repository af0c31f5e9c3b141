"""A Redis that cannot be used as it is says so at once, with the next step, and no password ever shows; over TLS with
certificates that are wrong in the usual ways. The package cryptography, which comes with Azure's SDK, makes them.
"""

from __future__ import annotations

import datetime
import errno
import ipaddress
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis import Redis

from partq_spark.base.errors import Conflict, Invalid, PartqError, Unavailable
from partq_spark.group.documents import redis_client
from partq_spark.group.documents.redis import RedisDocuments
from partq_spark.group.documents.redis_script import RIGHTS
from partq_spark.group.ownership import Ownership, Reincarnated, open_ownership
from tests.group.ownership.conftest import KEY, begin, verbs
from tests.group.ownership.redis_servers import SpecialRedis, open_redis
from tests.objects.conftest import memory_store
from tools.servers import RedisServer, free_port, running

pytestmark = pytest.mark.redis

SECRET = "hunter2-is-not-shown"
WRONG = "swordfish-is-not-shown"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server that asks for a password, with users that may do less than all."""
    with running(SpecialRedis("--requirepass", SECRET)) as server:
        users = {
            "billing": RIGHTS,
            "nothing": "~* &* -@all",
            "elsewhere": "~other:* &other:* +@all",
            "deaf": "~partq:* resetchannels +@all",
        }
        with Redis(port=server.port, password=SECRET) as raw:
            for name, rights in users.items():
                raw.execute_command("ACL", "SETUSER", name, "on", f">{SECRET}", *rights.split())
        yield server


def refused(store: Ownership, caplog: pytest.LogCaptureFixture) -> str:
    """What is said; no secret anywhere in it, nor in what is logged or shown of the store."""
    with caplog.at_level(logging.DEBUG), pytest.raises((Invalid, Unavailable)) as caught:
        store.read_state(KEY)
    assert isinstance(store.documents, RedisDocuments)
    client = store.documents._client
    texts = [str(caught.value), repr(caught.value), repr(store), repr(client), caplog.text]
    texts += [repr(caught.value.__context__), repr(vars(client))]
    assert not [text for text in texts if SECRET in text or WRONG in text]
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, Invalid)
    assert store.documents.url in str(caught.value)
    store.close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("opened", "says"),
    [
        ({"password": WRONG}, "refuses user or password .*PARTQ_REDIS_PASSWORD"),
        ({"username": "billing", "password": WRONG}, "refuses user or password .*PARTQ_REDIS_PASSWORD"),
        ({"username": "nobody", "password": WRONG}, "refuses user or password .*PARTQ_REDIS_PASSWORD"),
        ({}, "PARTQ_REDIS_PASSWORD"),
        ({"username": "nothing", "password": SECRET}, r"partq:\*"),
        ({"username": "elsewhere", "password": SECRET}, r"partq:\*"),
        ({"password": SECRET, "database": 99}, "/99: there is no such database"),
    ],
)
def test_who_may_not_is_told_what_he_needs(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture, opened: dict[str, Any], says: str
) -> None:
    assert re.search(says, refused(open_redis(guarded, **opened), caplog))


def test_too_old(redis_server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "MINIMUM_VERSION", (99, 1))
    says = r"says that it is Redis 7\..*use 99\.1 or newer"
    assert re.search(says, refused(open_redis(redis_server), caplog))


def test_a_password_that_nobody_asked_for_is_named(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    assert "without any password configured" in refused(open_redis(redis_server, password=SECRET), caplog)


def test_the_rights_that_are_named_are_enough(guarded: RedisServer) -> None:
    assert RIGHTS in (Path(__file__).parents[3] / "docs/operate.md").read_text(encoding="utf-8")
    deaf = open_redis(guarded, username="deaf", password=SECRET)
    with pytest.raises(Invalid, match=r"&partq:\*:news"):
        deaf.wait_news(1)
    objects, environ = memory_store(), {"PARTQ_REDIS_USERNAME": "billing", "PARTQ_REDIS_PASSWORD": SECRET}
    store = open_ownership(guarded.url, store=objects, environ=environ)
    flow = open_ownership(guarded.url, store=objects, environ={"PARTQ_REDIS_PASSWORD": SECRET}, group=KEY)
    assert SECRET not in repr(store) + store.documents.url
    assert store.wait_news(5) is flow.wait_news(5) is None
    begin(store)
    for verb in verbs(store).values():
        with suppress(Conflict):  # each alone, whatever those before it did
            verb()
    assert store.wait_news(5) == flow.wait_news(5) == frozenset({KEY})
    for opened in (deaf, store, flow):
        opened.close()


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[RedisServer]:
    """Something that answers the first thing it hears."""

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer(connection.recv(1000)))
                while connection.recv(1000):  # however many commands come at once
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        made = RedisServer()
        made.port = listener.getsockname()[1]
        yield made


def repeat(heard: bytes) -> bytes:
    """Old servers and proxies do, where they do not know AUTH."""
    words = ", ".join(f"`{word}`" for word in heard.decode().split("\r\n")[4::2])
    return f"-ERR unknown command `AUTH`, with args beginning with: {words}\r\n".encode()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "does not answer as Redis does"),
        (lambda _: b"220 mail.example.com ESMTP\r\n", "does not answer as Redis does"),
        (repeat, "lacks a command"),
    ],
)
def test_what_is_not_redis_is_told_and_gives_no_password_away(
    caplog: pytest.LogCaptureFixture, answer: Callable[[bytes], bytes], says: str
) -> None:
    with answering(answer) as server:
        assert says in refused(open_redis(server, username="billing", password=SECRET), caplog)


# --- over TLS ---------------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str, host: str) -> None:
    """One for an address, signed by itself: whoever trusts it names it as its authority. `<name>.pem`, `<name>.key`."""
    key = ec.generate_private_key(ec.SECP256R1())
    itself = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(itself, itself, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


class TlsRedis(SpecialRedis):
    """A redis-server with a plain port and one for TLS. `clients`: whether it asks for that of a client."""

    def __init__(self, certificates: Path, certificate: str = "server", *, clients: str = "no") -> None:
        self.tls_port, own = free_port(), certificates / certificate
        files = ("--tls-cert-file", f"{own}.pem", "--tls-key-file", f"{own}.key")
        asks = ("--tls-auth-clients", clients, "--tls-ca-cert-file", str(certificates / "client.pem"))
        super().__init__("--tls-port", str(self.tls_port), *files, *asks)

    def tls_url(self, certificates: Path, **files: str) -> str:
        """With `ssl_ca_certs=…` and the like."""
        query = "&".join(f"{name}={certificates / file}" for name, file in files.items())
        return f"rediss://127.0.0.1:{self.tls_port}/0" + (f"?{query}" if query else "")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For this machine, one that nobody has, for another address, and for a client."""
    folder = tmp_path_factory.mktemp("tls")
    for name, host in (("server", "127.0.0.1"), ("other", "127.0.0.1"), ("away", "10.1.2.3"), ("client", "127.0.0.1")):
        certificate(folder, name, host)
    return folder


@pytest.fixture(scope="module")
def server(certificates: Path) -> Iterator[TlsRedis]:
    """A server with a good certificate."""
    with running(TlsRedis(certificates)) as made:
        yield made


def refused_tls(url: str) -> PartqError:
    """What is said."""
    store = open_ownership(url, store=memory_store())
    with pytest.raises((Invalid, Unavailable)) as caught:
        store.read_state(KEY)
    store.close()
    return caught.value


TRUSTED: Final = {"ssl_ca_certs": "server.pem"}
MINE: Final = {"ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}


@pytest.mark.parametrize(
    ("clients", "files", "environ"),
    [
        ("no", TRUSTED, {}),
        ("no", {}, {"SSL_CERT_FILE": "server.pem"}),  # the machine's own authorities count too
        ("yes", TRUSTED | MINE, {}),
    ],
)
def test_a_server_whose_authority_is_named_is_trusted(
    certificates: Path, clients: str, files: dict[str, str], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in environ.items():
        monkeypatch.setenv(name, str(certificates / file))
    with running(TlsRedis(certificates, clients=clients)) as server:
        url, objects = server.tls_url(certificates, **files), memory_store()
        store, listening = (open_ownership(url, store=objects, group=group) for group in (None, KEY))
        assert listening.wait_news(5) is None
        store.swap_state(KEY, b'{"x":"' + b"y" * 100_000 + b'"}', token="t1", expected=None)
        assert listening.wait_news(5) == frozenset({KEY})
        assert listening.wait_news(0.05) == frozenset()
        assert listening.read_state(KEY, known="t1") is not None
        server.kill()
        server.start()
        with pytest.raises(Reincarnated):
            store.read_state(KEY)
        assert store.read_state(KEY) is None
        for opened in (store, listening):
            opened.close()


@pytest.mark.parametrize(
    ("used", "files", "says"),
    [
        ("server", {}, "certificate is not trusted.*ssl_ca_certs"),
        ("server", {"ssl_ca_certs": "other.pem"}, "certificate is not trusted.*ssl_ca_certs"),
        ("away", {"ssl_ca_certs": "away.pem"}, "certificate is not trusted.*127.0.0.1"),  # it is for another address
        ("server", {"ssl_ca_certs": "no.pem"}, "file cannot be read"),
        ("asks", TRUSTED, "ssl_certfile|TLS"),  # the refusal may come during the handshake or after it
    ],
)
def test_a_wrong_certificate_is_refused(certificates: Path, used: str, files: dict[str, str], says: str) -> None:
    asks = used == "asks"
    with running(TlsRedis(certificates, "server" if asks else used, clients="yes" if asks else "no")) as server:
        error = refused_tls(server.tls_url(certificates, **files))
        assert isinstance(error, Invalid) or asks
        assert re.search(says, str(error))


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES])
def test_a_firewall_that_lets_nobody_out_is_no_certificates_fault(
    server: TlsRedis, certificates: Path, monkeypatch: pytest.MonkeyPatch, tls: bool, code: int
) -> None:
    """It may be over in a minute, so that it is worth another try. The rule itself needs an administrator."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(socket.socket, "connect", refuse)
    error = refused_tls(server.tls_url(certificates, **TRUSTED) if tls else server.url)
    assert isinstance(error, Unavailable)
    assert os.strerror(code) in str(error)
    assert "certificate" not in str(error)


def test_the_wrong_kind_of_port_is_told(server: TlsRedis) -> None:
    assert "it speaks no TLS" in str(refused_tls(f"rediss://127.0.0.1:{server.port}/0"))
    assert f":{server.tls_port}" in str(refused_tls(f"redis://127.0.0.1:{server.tls_port}/0"))
