"""Store URLs: what `--store` and the option `store` may say, and the one way in which partq writes them.

Only parsing lives here; nothing is opened, and the caller hands in the environment. A URL that could carry a secret
(user, password, query, fragment) is refused and never repeated in the message, because plans and logs show URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote, unquote_to_bytes

from partq_spark.base.errors import Invalid, WrongUse
from partq_spark.objects.contents import check_prefix

ALLOWED: Final = "file:///absolute/dir, azure://container/prefix or s3://bucket/prefix"

_CONTAINERS: Final = {  # what a service lets one be called
    "azure": re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII),
    "s3": re.compile(r"(?=.{3,63}\Z)(?!xn--|[0-9.]+\Z)[a-z0-9]+(?:(?:-+|\.)[a-z0-9]+)*", re.ASCII),
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_MAX_PREFIX_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalUrl:
    """A directory on this machine. `folder` is absolute and has no `.`, `..` or double slashes."""

    folder: str

    def __str__(self) -> str:
        # A name that is not UTF-8 is written byte by byte, so that messages can show it; `parse_url` refuses it.
        return "file://" + quote(os.fsencode(self.folder), safe="/~!$'()*,:@=+&")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceUrl:
    """A container of Azure Blob Storage or a bucket of S3, and the prefix of all names in it: empty, or parts joined by
    `/` with no slash at either end.
    """

    scheme: str
    container: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.container}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def base(self) -> str:
        """What every name in the container begins with."""
        return self.prefix + "/" if self.prefix else ""


def parse_url(url: str) -> LocalUrl | ServiceUrl:
    """The parts of a store URL. Raises `Invalid`, which shows what is allowed, for anything else."""
    try:
        url.encode()
    except UnicodeEncodeError:
        raise Invalid(f"store is not UTF-8 (not shown here, it may hold a secret): use {ALLOWED}") from None
    match = _SCHEME.fullmatch(url.strip())
    if match is None:
        _refuse_path(url)
    scheme, rest = match[1].lower(), match[2]
    if scheme != "file" and scheme not in _CONTAINERS:
        raise Invalid(f"store with scheme {scheme!r} is not known: use {ALLOWED}")
    authority = rest[2:].partition("/")[0] if rest.startswith("//") else ""
    if "@" in authority or re.search(r"[?#]", rest):
        raise Invalid(
            f"store {scheme}:… has a user, password, query or fragment (not repeated: plans and logs show URLs):"
            f" use {ALLOWED} and leave credentials to the environment, as AZURE_STORAGE_CONNECTION_STRING or"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY;"
            " write a '?' or '#' that belongs to a directory's name as %3F or %23"
        )
    return _local(rest) if scheme == "file" else _service(scheme, rest)


def is_paid(url: str) -> bool:
    """Whether each request to the store costs money, and takes its way over the network; `url` is canonical."""
    return url.partition(":")[0] in _CONTAINERS


def canonical_url(url: str) -> str:
    """The one way to write this store's URL: same store, same text. Raises `Invalid` as `parse_url` does."""
    return str(parse_url(url))


def _local(rest: str) -> LocalUrl:
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        if authority not in ("", "localhost"):
            raise Invalid(
                f"store file:{rest} names a host, {authority!r}: a directory of this machine has three slashes,"
                f" file:///{authority}{slash}{path}"
            )
        rest = slash + path
    try:
        folder = unquote_to_bytes(rest).decode()
    except UnicodeDecodeError:  # two such names would be one to whatever shows them, and Spark could hold neither
        raise Invalid(
            f"store file://{rest} names a directory that is not UTF-8: rename it, or link to it by another name"
        ) from None
    if "\0" in folder:
        raise Invalid(f"store file: with the path {folder!r} is not a directory's name: remove the zero character")
    if not folder.startswith("/"):
        shown = LocalUrl(folder=str(Path(folder).absolute()))
        raise Invalid(f"store 'file:{rest}' is relative, and tasks run in other directories: write {shown}")
    folder = "/" + os.path.normpath(folder).lstrip("/")
    if folder == "/":
        raise Invalid("store file:/// names no directory: use file:///absolute/dir")
    return LocalUrl(folder=folder)


def _service(scheme: str, rest: str) -> ServiceUrl:
    if not rest.startswith("//"):
        raise Invalid(f"store {scheme}:… has no '//': use {ALLOWED}")
    container, _, prefix = rest[2:].partition("/")
    if scheme == "s3" and container.endswith("--x-s3"):
        raise Invalid("store s3://… names a directory bucket, whose listings have no order: use a general purpose one")
    if _CONTAINERS[scheme].fullmatch(container) is None:
        raise Invalid(
            f"store {scheme}://… names a container or bucket that cannot be, {_shown(container)}: use {ALLOWED} with"
            " 3 to 63 lower-case letters, digits and single hyphens (in a bucket's name also dots); account and server"
            " come from the environment"
        )
    return ServiceUrl(scheme=scheme, container=container, prefix=_prefix(f"{scheme}://{container}", prefix))


def _prefix(where: str, prefix: str) -> str:
    prefix = prefix.rstrip("/")
    if len(prefix) > _MAX_PREFIX_CHARS:
        raise Invalid(f"store {where}/… has a prefix of {len(prefix)} characters: at most {_MAX_PREFIX_CHARS}")
    try:
        return check_prefix(prefix)
    except Invalid:
        raise Invalid(
            f"store {where}/… has a prefix that is not allowed, {_shown(prefix)}:"
            " use parts of [A-Za-z0-9._=-] that do not begin with a dot, joined by single slashes"
        ) from None


def _refuse_path(url: str) -> NoReturn:
    text = url.strip()
    if not text:
        raise Invalid(f"store is empty: use {ALLOWED}")
    if re.search(r"[?;=@]|//", text) or "\0" in text:  # a pasted connection string, or a URL cut off
        raise Invalid(f"store is not a URL (not shown here, it may hold a secret): use {ALLOWED}")
    shown = LocalUrl(folder=str(Path(text).expanduser().absolute()))
    raise Invalid(f"store {text!r} is not a URL: for this directory write {shown}")


def _shown(text: str) -> str:
    """The text for a message, unless it could be (part of) a secret."""
    return ascii(text) if len(text) <= 64 and re.fullmatch(r"[\w./-]*", text) else "(not shown)"


def default_store(environ: Mapping[str, str]) -> str:
    """The store's URL where neither an option nor `--store` names one, in canonical form.

    `PARTQ_STORE` if it is set and not empty, else `file://$HOME/.partq`. Raises `WrongUse`, naming the variable.
    """
    given = environ.get("PARTQ_STORE", "").strip()
    if given:
        try:
            return canonical_url(given)
        except Invalid as error:
            raise WrongUse(f"the environment variable PARTQ_STORE is not usable: {error}") from None
    folder = default_folder(environ)
    if folder is None:
        raise WrongUse(
            f"no store was named, and HOME={environ.get('HOME', '')!r} is no directory to keep one in: give the store "
            f"({ALLOWED}), or set PARTQ_STORE"
        )
    return canonical_url(str(LocalUrl(folder=folder)))


def default_folder(environ: Mapping[str, str]) -> str | None:
    """Where the default store is, in this user's home, which is nobody else's business; None without a home."""
    home = environ.get("HOME", "")
    return "/" + os.path.normpath(f"{home}/.partq").lstrip("/") if home.startswith("/") else None
