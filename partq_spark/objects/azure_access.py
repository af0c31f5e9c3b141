"""Who may enter an Azure storage account, and what its refusals mean: environment, signing in by an identity, status
codes, texts without secrets.

A text of the SDK may quote a URL with a shared access signature in it, so every such text goes through
`without_secrets` before it gets into a message.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.core.pipeline import PipelineRequest, PipelineResponse

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
            # urllib3 logs whole URLs, at debug level, and here the URL is the credential.
            logging.getLogger("urllib3.connectionpool").addFilter(_FILTER)  # once, however often it is added
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


# --- signing in by an identity ----------------------------------------------------------------------------------------

# azure-identity says "authentication failed" to a refusal and to a token service that does not answer, and the chain of
# its credentials forgets why. But every credential that asks a service goes by the same pipeline, whose hooks see what
# was sent and whether it was answered.

_METADATA_HOST: Final = "169.254.169.254"
"""Of machines in Azure. Elsewhere nobody answers there, and the chain of identities asks all the same."""


class _Asked(threading.local):
    """What one sign-in, in this thread, has last asked, and was not answered."""

    host: str = ""


class AzureIdentity:
    """The identity that Azure's default chain finds. Use as a credential of the SDK.

    `url` is the store's, for messages. Raises `Invalid` if azure-identity is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            from azure.identity import DefaultAzureCredential  # 0.2 s, and not needed with a connection string
        except ModuleNotFoundError as error:
            raise Invalid(
                f"store {url} signs in by identity, which needs the package {error.name}: install it with"
                f" `pip install partq[azure]`, or set {CONNECTION_STRING}"
            ) from error
        self._asked = _Asked()
        self._found = False  # since then also the metadata service is known to be there
        self._chain = DefaultAzureCredential(raw_request_hook=self._sent, raw_response_hook=self._answered)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """A token. Raises `ServiceRequestError` if a service did not answer, `ClientAuthenticationError` if there is
        no identity, or it was refused.
        """
        self._asked.host = ""
        try:
            token = self._chain.get_token(*scopes, **options)
        except ClientAuthenticationError as error:
            host = self._asked.host
            if not host or (host == _METADATA_HOST and not self._found):
                raise
            raise ServiceRequestError(f"the sign-in service {host} gave no usable answer") from error
        self._found = True
        return token

    def close(self) -> None:
        """Give back connections."""
        self._chain.close()

    def _sent(self, request: PipelineRequest[Any]) -> None:
        self._asked.host = urlsplit(request.http_request.url).hostname or "(unknown)"

    def _answered(self, response: PipelineResponse[Any, Any]) -> None:
        if not is_passing(response.http_response.status_code):
            self._asked.host = ""
