"""What goes wrong with a Redis, in partq's errors and in words: what it means, and what to do next."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from redis import exceptions

from partq_spark.base.errors import Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group.documents.redis_script import RIGHTS
from partq_spark.group.documents.urls import PASSWORD, USERNAME


def explained(
    error: Exception,
    *,
    url: str,
    call_timeout_s: float,
    logged_in: bool,
    changes: bool,
    hidden: Callable[[str], str],
    tls: bool,
    tls_files: Sequence[str],
) -> PartqError:
    """The error to be raised. `logged_in`: user and password were good before; `changes`: something was to be changed.
    `hidden` takes out of a text what nobody may see; `tls_files` are paths.
    """
    text = hidden(str(error)).splitlines()
    said = text[0][:300] if text else type(error).__name__
    next_step = "whether a change took place is known when it is read again" if changes else "look whether it runs"
    secure = _tls_problem(error, tls_files)
    if secure is not None:
        return Invalid(f"ownership {url}: {secure} ({said})")
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        plain = ", or it speaks no TLS" if tls else ""
        return Unavailable(f"ownership {url} did not answer within {call_timeout_s:g} s{plain}: {next_step}")
    if isinstance(error, exceptions.InvalidResponse):
        return Invalid(f"ownership {url} does not answer as Redis does: check host and port")
    if isinstance(error, exceptions.AuthenticationError) and logged_in:
        return Unavailable(
            f"ownership {url} refuses user or password ({said}), which were good before: a Redis that has no aclfile "
            "forgets its users when it is restarted; make the user again, and all goes on by itself"
        )
    if isinstance(error, exceptions.AuthenticationError):
        return Invalid(f"ownership {url} refuses user or password ({said}): set {USERNAME} and {PASSWORD}")
    for kind, mark, raised, sentence in _MEANINGS:
        if isinstance(error, kind) and re.search(mark, said):
            return raised(f"ownership {url}: {sentence} ({said})")
    if isinstance(error, exceptions.ResponseError):
        return Unavailable(f"ownership {url} refuses at the moment: {said}")
    if tls and "EOF" in said:
        said += "; so does one that asks for a client's certificate, ssl_certfile and ssl_keyfile"
    return Unavailable(f"ownership {url} cannot be reached or the connection broke ({said}): {next_step}")


# The kind of redis-py's error, what its text contains (the code itself is cut off where redis-py has a class for it,
# and repeated inside by older servers), and what we say.
_REPLICA: Final = "this Redis is a read-only replica: wait for the failover to end, or give its master's address"
_FULL: Final = "maxmemory reached, Redis takes no more writes: raise maxmemory or free memory"
_LOST_MASTER: Final = "this Redis is a replica that has lost its master: give its master's address"
_FORBIDDEN: Final = f"the user may not do this: let an administrator give it ACL SETUSER … {RIGHTS}"
_ELSEWHERE: Final = "the group's keys are on another node of a cluster: give an address that serves all keys"
_FOREIGN: Final = (
    "a key of the group holds what partq did not write, or is damaged: remove the keys that begin with partq:"
)
_MEANINGS: Final[tuple[tuple[type[Exception], str, type[PartqError], str], ...]] = (
    (exceptions.ConnectionError, "No connection available", Unavailable, "all connections are in use: try again"),
    (exceptions.ReadOnlyError, "", Unavailable, _REPLICA),
    (exceptions.OutOfMemoryError, "", Unavailable, _FULL),
    (exceptions.MasterDownError, "", Unavailable, _LOST_MASTER),
    (exceptions.BusyLoadingError, "", Unavailable, "this Redis is still loading its data: it answers when it has"),
    (exceptions.NoPermissionError, "", Invalid, _FORBIDDEN),
    (exceptions.MovedError, "", Invalid, _ELSEWHERE),
    (exceptions.ResponseError, "READONLY", Unavailable, _REPLICA),
    (exceptions.ResponseError, "OOM command", Unavailable, _FULL),
    (exceptions.ResponseError, "DENIED", Invalid, "this Redis is in protected mode: give it a password, or bind it"),
    (exceptions.ResponseError, "DB index", Invalid, "there is no such database: use another number"),
    (exceptions.ResponseError, "unknown command", Invalid, "this server lacks a command that partq needs: use Redis"),
    (exceptions.ResponseError, "WRONGTYPE", Corrupt, _FOREIGN),
    (exceptions.ResponseError, r"^user_script:|: user_script:", Corrupt, _FOREIGN),
)


def _tls_problem(error: BaseException | None, files: Sequence[str]) -> str | None:
    """What is wrong with certificates or keys, looking at the causes too; None for any other error."""
    for _ in range(5):
        if isinstance(error, ssl.SSLCertVerificationError):
            return "its certificate is not trusted: name the authority's certificate, ?ssl_ca_certs=/path/ca.pem"
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return "TLS failed: use redis:// if the server speaks no TLS, and check the certificate's files"
        denied = isinstance(error, FileNotFoundError | PermissionError)  # by a firewall, too
        if denied and not all(os.access(file, os.R_OK) for file in files):
            return "a certificate's file cannot be read: check the paths in the URL"
        error = error and (error.__cause__ or error.__context__)
    return None
