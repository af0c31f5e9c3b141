"""Who may look over HTTP: this machine without a token, anybody with it, nobody else."""

from __future__ import annotations

import pytest

from partq_spark.base.access import is_loopback, refused

HERE = {"client": "127.0.0.1", "host": "127.0.0.1:8095", "authorization": "", "token": ""}


def status(**given: str) -> int:
    found = refused(**{**HERE, **given})
    return 200 if found is None else found.status


@pytest.mark.parametrize("client", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["127.0.0.1:8095", "localhost:8095", "LOCALHOST", "[::1]:8095", "[::1]"])
def test_this_machine_may_look_without_a_token(client: str, host: str) -> None:
    assert status(client=client, host=host) == 200


@pytest.mark.parametrize("client", ["10.0.0.7", "192.168.1.2", "::ffff:10.0.0.7", "fe80::1%eth0", "", "nonsense"])
def test_another_machine_may_not(client: str) -> None:
    assert status(client=client) == 403
    assert status(client=client, host="localhost", authorization="Bearer ") == 403


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example:80", "10.0.0.7:8095", "[", "[::2]:1"])
def test_a_browser_here_that_was_led_astray_may_not(host: str) -> None:
    assert status(host=host) == 403


@pytest.mark.parametrize("client", ["127.0.0.1", "10.0.0.7"])
def test_where_there_is_a_token_everybody_needs_it(client: str) -> None:
    for authorization in ("", "Bearer ", "Bearer wrong", "secret", "Basic secret", "bearer secret", "Bearer secret2"):
        assert status(client=client, token="secret", authorization=authorization) == 401
    assert status(client=client, token="secret", authorization="Bearer secret", host="coordinator.prod") == 200
    assert status(client=client, token="schlüssel", authorization="Bearer schlüssel") == 200


def test_a_refusal_says_what_to_do_and_no_secret() -> None:
    found = refused(**{**HERE, "token": "secret", "authorization": "Bearer guess"})
    assert found is not None
    assert "PARTQ_UI_TOKEN" in found.reason
    assert "secret" not in found.reason
    assert "guess" not in found.reason


def test_names_are_not_resolved() -> None:
    assert not is_loopback("ip6-localhost")
