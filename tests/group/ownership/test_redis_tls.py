"""Redis over TLS, with a real server, an authority of our own and certificates that are wrong in the usual ways.

The certificates are made with the package cryptography, which comes with Azure's SDK.
"""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.group.ownership import open_ownership
from tests.group.ownership.conftest import KEY
from tests.group.ownership.redis_servers import an_object_store
from tests.support.servers import RedisServer, free_port, running

pytestmark = pytest.mark.redis


class Authority:
    """Signs certificates and leaves them in a folder as `<name>.pem` and `<name>.key`; its own is `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        self._write("ca", self._key, self._name, None)

    def sign(self, name: str, *, host: str) -> None:
        """A certificate for one address."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._write(name, ec.generate_private_key(ec.SECP256R1()), subject, host)

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, subject: x509.Name, host: str | None) -> None:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


class TlsRedis(RedisServer):
    """A redis-server with a plain port and one for TLS."""

    def __init__(self, authority: Authority, certificate: str, *, clients: str) -> None:
        super().__init__()
        self.tls_port = free_port()
        self._authority = authority
        self._certificate = certificate
        self._clients = clients

    def tls_url(self, **files: Path) -> str:
        """With `ca="…"` and the like as redis-py calls them."""
        query = "&".join(f"{name}={path}" for name, path in files.items())
        return f"rediss://127.0.0.1:{self.tls_port}/0" + (f"?{query}" if query else "")

    def command(self) -> list[str]:
        folder = self._authority.folder
        return [
            *super().command(),
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", self._clients),
            *("--tls-cert-file", str(folder / f"{self._certificate}.pem")),
            *("--tls-key-file", str(folder / f"{self._certificate}.key")),
            *("--tls-ca-cert-file", str(folder / "ca.pem")),
        ]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """With certificates for this machine, for another address, and for a client."""
    made = Authority(tmp_path_factory.mktemp("tls") / "one")
    made.sign("server", host="127.0.0.1")
    made.sign("elsewhere", host="10.1.2.3")
    made.sign("client", host="127.0.0.1")
    return made


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[TlsRedis]:
    """A server with a good certificate."""
    with running(TlsRedis(authority, "server", clients="no")) as made:
        yield made


def refused(url: str) -> PartqError:
    """What is said."""
    store = open_ownership(url, store=an_object_store(), connect_timeout_s=1, call_timeout_s=1)
    with pytest.raises((Invalid, Unavailable)) as caught:
        store.read_state(KEY)
    store.close()
    return caught.value


def test_a_server_whose_authority_is_named_is_trusted(server: TlsRedis, authority: Authority) -> None:
    url, objects = server.tls_url(ssl_ca_certs=authority.folder / "ca.pem"), an_object_store()
    store = open_ownership(url, store=objects)
    listening = open_ownership(url, store=objects, group=KEY)
    assert listening.wait_news(5) is None
    store.swap_state(KEY, b'{"x":"' + b"y" * 100_000 + b'"}', token="t1", expected=None)
    assert listening.wait_news(5) == frozenset({KEY})
    assert listening.wait_news(0.05) == frozenset()
    assert listening.read_state(KEY, known="t1") is not None
    server.kill()
    server.start()
    assert store.incarnation()
    for opened in (store, listening):
        opened.close()


def test_the_machines_own_authorities_count_too(
    server: TlsRedis, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.folder / "ca.pem"))
    assert ssl.get_default_verify_paths().cafile == str(authority.folder / "ca.pem")
    store = open_ownership(server.tls_url(), store=an_object_store())
    assert store.incarnation()
    store.close()


def test_a_server_of_an_unknown_authority_is_refused(server: TlsRedis, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    for url in (server.tls_url(), server.tls_url(ssl_ca_certs=other.folder / "ca.pem")):
        error = refused(url)
        assert isinstance(error, Invalid)
        assert "certificate is not trusted" in str(error)
        assert "ssl_ca_certs" in str(error)


def test_a_certificate_for_another_address_is_refused(authority: Authority) -> None:
    with running(TlsRedis(authority, "elsewhere", clients="no")) as server:
        error = refused(server.tls_url(ssl_ca_certs=authority.folder / "ca.pem"))
        assert isinstance(error, Invalid)
        assert "127.0.0.1" in str(error)


def test_a_server_may_ask_for_a_clients_certificate(authority: Authority) -> None:
    with running(TlsRedis(authority, "server", clients="yes")) as server:
        folder = authority.folder
        store = open_ownership(
            server.tls_url(
                ssl_ca_certs=folder / "ca.pem", ssl_certfile=folder / "client.pem", ssl_keyfile=folder / "client.key"
            ),
            store=an_object_store(),
        )
        assert store.incarnation()
        store.close()
        error = str(refused(server.tls_url(ssl_ca_certs=folder / "ca.pem")))
        assert "ssl_certfile" in error or "TLS" in error  # the refusal may come during the handshake or after it


def test_a_file_that_is_not_there_is_told(server: TlsRedis, tmp_path: Path) -> None:
    error = refused(server.tls_url(ssl_ca_certs=tmp_path / "no.pem"))
    assert isinstance(error, Invalid)
    assert "file cannot be read" in str(error)


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES])
def test_a_firewall_that_lets_nobody_out_is_no_certificates_fault(
    server: TlsRedis, authority: Authority, monkeypatch: pytest.MonkeyPatch, tls: bool, code: int
) -> None:
    """It may be over in a minute, so that it is worth another try. The rule itself needs an administrator."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(socket.socket, "connect", refuse)
    error = refused(server.tls_url(ssl_ca_certs=authority.folder / "ca.pem") if tls else server.url)
    assert isinstance(error, Unavailable)
    assert os.strerror(code) in str(error)
    assert "certificate" not in str(error)


def test_the_wrong_kind_of_port_is_told(server: TlsRedis) -> None:
    assert "it speaks no TLS" in str(refused(f"rediss://127.0.0.1:{server.port}/0"))
    assert f":{server.tls_port}" in str(refused(f"redis://127.0.0.1:{server.tls_port}/0"))
