"""Signing in to Azure by an identity, which tells a refusal from a token service that does not answer.

azure-identity says "authentication failed" to both, and the chain of its credentials forgets why. But every credential
that asks a service goes by the same pipeline, whose hooks see what was sent and whether it was answered.
"""

from __future__ import annotations

import threading
from typing import Any, Final
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.core.pipeline import PipelineRequest, PipelineResponse

from partq_spark.base.errors import Invalid
from partq_spark.objects.azure_access import CONNECTION_STRING
from partq_spark.objects.service import is_passing

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
