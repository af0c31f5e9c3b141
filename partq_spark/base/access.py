"""Who may look, over HTTP: a program on this machine, or one that has the token. Pure.

A browser on this machine can be led here by a page of somebody else's, under a name that he made point here. So without
a token the name that was asked for must be one of this machine's own.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final, NamedTuple

TOKEN_VARIABLE: Final = "PARTQ_UI_TOKEN"  # noqa: S105 - its name
"""The variable that holds the token; the page and the metrics have the same."""

_SCHEME: Final = "Bearer "


class Refusal(NamedTuple):
    """Why a client gets nothing: the HTTP status, and what to do."""

    status: int
    reason: str


def refused(*, client: str, host: str, authorization: str, token: str) -> Refusal | None:
    """None for who may look. `client` is his address, `host` and `authorization` are the headers of these names (empty:
    he sent none), `token` is the one to have (empty: there is none, and only this machine may look).
    """
    if token:
        given = authorization.removeprefix(_SCHEME) if authorization.startswith(_SCHEME) else ""
        if hmac.compare_digest(given.encode(), token.encode()):  # takes as long wherever they differ
            return None
        return Refusal(401, f"send the header 'Authorization: Bearer TOKEN' with the token of {TOKEN_VARIABLE}")
    if not is_loopback(client):
        return Refusal(403, f"only this machine may look: set {TOKEN_VARIABLE}, and send it as a bearer token")
    if not is_loopback(_name_in(host)):
        return Refusal(403, "the Host header is not this machine's: ask localhost or 127.0.0.1")
    return None


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _name_in(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
