"""Who may see the page, and who may act on it: the Host header, the token, the session and what guards its forms.
Pure: no request is answered here.

On loopback without a token everybody on this machine may look. Anywhere else, and for every action, the token is
needed: as `Authorization: Bearer`, or typed once, after which a cookie says so that is made from it and does not tell
it. Host names are checked, because a name that somebody else controls may lead a browser here (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

from partq_spark.base.errors import WrongUse

TOKEN_VARIABLE: Final = "PARTQ_UI_TOKEN"  # noqa: S105 - its name
HOSTS_VARIABLE: Final = "PARTQ_UI_HOSTS"
LEAST_TOKEN: Final = 16
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who may come in. `hosts`: the names by which the page may be asked for; `any_address`: or by any address in
    digits, which nobody can point elsewhere. `token` None: everybody who reaches it may look.
    """

    hosts: frozenset[str]
    any_address: bool
    token: str | None
    actions: bool

    def knows_host(self, header: str | None) -> bool:
        """Whether a Host header is one of ours."""
        name = _host_of(header)
        return name is not None and (name in self.hosts or (self.any_address and _is_address(name)))

    def may_look(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers (lower-case names) comes from one who may look."""
        return self.token is None or self._has_bearer(headers) or self._has_session(headers)

    def may_act(self, headers: Mapping[str, str], proof: str) -> bool:
        """Whether it may change something. A browser sends its cookie with whatever any site makes it send, so a form
        of ours brings a proof; and where it says whose page sent it, that must be this one.
        """
        if not self.actions or self.token is None or not self.is_from_here(headers):
            return False
        return self._has_bearer(headers) or (self._has_session(headers) and _same(proof, self.form_proof))

    def is_from_here(self, headers: Mapping[str, str]) -> bool:
        """Whether no other site made the browser send it. A browser says so itself where it can (on this machine and
        over TLS), whatever name a proxy asks by; else the form's origin must be the name that it asked for.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none")
        return origin is None or origin.partition("://")[2] == headers.get("host")

    def is_over_tls(self, headers: Mapping[str, str]) -> bool:
        """Whether the browser asked over TLS, which ends before the page: the proxy says so, or the form's origin.
        Who makes that up has a cookie that is of no use without TLS, and nothing else.
        """
        proxy = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return proxy == "https" or headers.get("origin", "").startswith("https://")

    def is_token(self, given: str) -> bool:
        """Compared in the same time, whatever is wrong with it."""
        return self.token is not None and _same(given, self.token)

    @property
    def cookie(self) -> str:
        """The name of the session's cookie: another token's, on another port, has another name."""
        return f"partq_{self._made('name')[:12]}"

    @property
    def session(self) -> str:
        """What the cookie holds for one who typed the token."""
        return self._made("session")

    @property
    def form_proof(self) -> str:
        """What every form brings that changes something."""
        return self._made("form")

    def _made(self, purpose: str) -> str:
        return hmac.new((self.token or "").encode(), f"partq page {purpose}".encode(), hashlib.sha256).hexdigest()

    def _has_bearer(self, headers: Mapping[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(given.strip())

    def _has_session(self, headers: Mapping[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self.session)


def access(host: str, environ: Mapping[str, str], *, actions: bool = False) -> Access:
    """Who may see a page that listens on `host`, by the environment's token. Raises `WrongUse` where none is there and
    one is needed, and for one that no header could carry or that could be guessed.
    """
    token = environ.get(TOKEN_VARIABLE, "").strip() or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise WrongUse(f"{TOKEN_VARIABLE} is not allowed as it is: give printable ASCII without spaces")
    if token is not None and len(token) < LEAST_TOKEN:
        raise WrongUse(
            f"{TOKEN_VARIABLE} has fewer than {LEAST_TOKEN} characters and could be guessed: make one at random "
            "(openssl rand -hex 24)"
        )
    loopback = is_loopback(host)
    if token is None and not loopback:
        raise WrongUse(
            f"--host {host!r} can be reached from other machines, and no token is set: set {TOKEN_VARIABLE}, or listen "
            "on 127.0.0.1"
        )
    if token is None and actions:
        raise WrongUse(
            f"--allow-actions lets the page change queues and groups, and no token is set: set {TOKEN_VARIABLE}"
        )
    more = {name.strip().lower() for name in environ.get(HOSTS_VARIABLE, "").split(",")} - {""}
    own = set() if loopback else {socket.gethostname().lower(), socket.getfqdn().lower()}
    return Access(
        hosts=frozenset({*LOOPBACK_NAMES, host.lower().strip("[]"), *own, *more}),
        any_address=not loopback,
        token=token,
        actions=actions,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host.strip("[]")).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _host_of(header: str | None) -> str | None:
    """The name in a Host header, without its port; None if there is none."""
    if not header or any(each in header for each in "/@\\ ,"):
        return None
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
