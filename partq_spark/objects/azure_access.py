"""Who may enter an Azure storage account, and what its refusals mean: environment, status codes, texts without
secrets.

No SDK is imported here; `azure.py` and `azure_identity.py` alone do that. A text of the SDK may quote a URL with a
shared access signature in it, so every such text goes through `without_secrets` before it gets into a message.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from partq_spark.base.errors import Conflict, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects.service import is_passing, without_secrets

CONNECTION_STRING: Final = "AZURE_STORAGE_CONNECTION_STRING"
ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT"
ACCOUNT_URL: Final = "AZURE_STORAGE_ACCOUNT_URL"

_CONFLICTS: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})
_PASSING: Final = frozenset({"ContainerBeingDeleted", "AccountBeingCreated"})
_ACCOUNT_NAME: Final = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureAccess:
    """How this process gets into the account: with a connection string, or by the identity that Azure's chain finds.

    The connection string is a secret and is kept out of the representation. `account` is the name for messages.
    """

    account: str
    connection_string: str = field(default="", repr=False)
    account_url: str = ""


def find_access(url: str, environment: Mapping[str, str]) -> AzureAccess:
    """What the environment says. Raises `Invalid`, which names the variables, if it says nothing or nonsense."""
    connection_string = environment.get(CONNECTION_STRING, "").strip()
    if connection_string:
        parts = dict(part.partition("=")[::2] for part in connection_string.split(";"))
        if "SharedAccessSignature" in parts:
            _hush_signatures()
        host = urlsplit(parts.get("BlobEndpoint", "")).hostname
        return AzureAccess(account=parts.get("AccountName") or host or "(unnamed)", connection_string=connection_string)
    account_url = environment.get(ACCOUNT_URL, "").strip().rstrip("/")
    if account_url:
        split = urlsplit(account_url)
        if split.scheme != "https" or not split.hostname or split.query or split.fragment or "@" in split.netloc:
            raise Invalid(
                f"{ACCOUNT_URL} (not shown) is not an account's address: use https://<account>.blob.core.windows.net"
                f" without user, query or signature; keys and signatures belong into {CONNECTION_STRING}"
            )
        return AzureAccess(account=split.hostname, account_url=account_url)
    account = environment.get(ACCOUNT, "").strip()
    if account:
        if _ACCOUNT_NAME.fullmatch(account) is None:
            raise Invalid(f"{ACCOUNT} (not shown) is not an account's name: use 3 to 24 lower-case letters and digits")
        return AzureAccess(account=account, account_url=f"https://{account}.blob.core.windows.net")
    raise Invalid(
        f"store {url} has no credentials in this process's environment: set {CONNECTION_STRING}, or {ACCOUNT} (a name)"
        f" or {ACCOUNT_URL} to sign in with the identity that azure-identity finds (for example after `az login`)"
    )


def explain(*, what: str, account: str, status: int | None, code: str, text: str, refused: bool) -> PartqError:
    """What a failed request means. `what` says which request; `refused` is the SDK's own word that it was a sign-in."""
    answer = f"{status or 'no answer'} {code}".strip()
    if refused or status in (401, 403):
        return Invalid(
            f"{what}: this process has no credentials that account {account!r} accepts ({answer}): set or correct"
            f" {CONNECTION_STRING} in its environment, or sign in (`az login`) with an identity that may use the"
            f" container, and check this machine's clock; {without_secrets(text)}"
        )
    if code in _CONFLICTS or (status == 412 and not code):
        return Conflict(f"{what}: it is there already, or was changed ({answer}): load it before changing it")
    if status == 404:
        return ObjectMissing(f"{what}: it is not there ({answer}): restore it from a copy")
    if status is None or status < 400 or is_passing(status) or code in _PASSING:
        return Unavailable(f"{what}: account {account!r} gave no usable answer ({answer}): {without_secrets(text)}")
    return Invalid(f"{what}: account {account!r} does not allow it ({answer}): {without_secrets(text)}")


class _WithoutSignatures(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "sig=" not in record.getMessage()


_FILTER: Final = _WithoutSignatures()


def _hush_signatures() -> None:
    """urllib3 logs whole URLs, at debug level; with a shared access signature the URL is the credential."""
    logging.getLogger("urllib3.connectionpool").addFilter(_FILTER)  # once, however often it is added
