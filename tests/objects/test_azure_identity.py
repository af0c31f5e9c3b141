"""Signing in to Azure by an identity: a service that gives no token for now, or none to this identity."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import urllib3
from azure.core.pipeline.policies import RetryPolicy

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.objects import ObjectStore, open_store
from partq_spark.objects.azure_access import ACCOUNT, ACCOUNT_URL, CONNECTION_STRING

TENANT = str(uuid.UUID(int=1))


SIGN_IN = "login.microsoftonline.com"


METADATA = "169.254.169.254"


Answer = tuple[int, Any] | None  # status and JSON; None: nothing comes back


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "load": lambda store: store.load("d"),
    "swap": lambda store: store.swap("d", b"{}", expected=None),
    "create": lambda store: store.create("o", b"x"),
    "list": lambda store: list(store.list("")),
}


class Network:
    """What the SDK's requests meet: an answer for each host, or for the hosts and paths that begin so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(requests.Session, "request", self._request)
        monkeypatch.setattr(RetryPolicy, "sleep", lambda *_: None)  # between the SDK's own tries

    def _request(self, method: str, url: str, **_: object) -> requests.Response:
        parts = urlsplit(url)
        place = f"{parts.hostname}{parts.path}"
        self.asked.append(place)
        answer = next((found for begin, found in self.answers.items() if place.startswith(begin)), None)
        if answer is None:
            raise requests.ConnectionError(f"{parts.hostname} does not answer (test)")
        response = requests.Response()
        response.status_code, body = answer
        response.raw = urllib3.HTTPResponse(io.BytesIO(json.dumps(body).encode()), preload_content=False)
        response.headers["Content-Type"] = "application/json"
        response.url = url
        return response


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store whose process has an identity with a secret in its environment, as a service has it."""
    for variable in (CONNECTION_STRING, ACCOUNT_URL):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(ACCOUNT, "partqtest")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    monkeypatch.setenv("AZURE_TENANT_ID", TENANT)
    monkeypatch.setenv("AZURE_CLIENT_ID", "partq")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "hidden")
    return open_store("azure://queues", retry_timeout_s=0)


def signing_in(token: Answer) -> dict[str, Answer]:
    """A service that says where tokens are, and answers requests for one."""
    base = f"https://{SIGN_IN}/{TENANT}"
    found = {
        "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
        "token_endpoint": f"{base}/oauth2/v2.0/token",
        "issuer": f"{base}/v2.0",
        "tenant_discovery_endpoint": f"{base}/v2.0/.well-known/openid-configuration",
        "metadata": [],
    }
    return {f"{SIGN_IN}/{TENANT}/oauth2/v2.0/token": token, SIGN_IN: (200, found)}


def given() -> Answer:
    """A token that must be fetched anew for the next request."""
    expires = {"expires_in": "1", "expires_on": str(int(time.time()) + 1)}
    return 200, {"token_type": "Bearer", "access_token": "given", "resource": "storage", **expires}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "answers",
    [
        {},
        {SIGN_IN: (503, {})},
        signing_in(None),
        signing_in((500, {"error": "temporarily_unavailable"})),
        signing_in((429, {"error": "too_many_requests"})),
    ],
    ids=["nothing answers", "busy", "no token", "token 500", "token 429"],
)
def test_a_sign_in_service_that_gives_no_answer_is_unavailable(
    store: ObjectStore, network: Network, answers: dict[str, Answer], call: Callable[[ObjectStore], object]
) -> None:
    network.answers = answers
    with pytest.raises(Unavailable, match=f"sign-in service {SIGN_IN}"):
        call(store)
    assert not [place for place in network.asked if place.startswith("partqtest")], "the account was not even asked"


def test_an_identity_that_is_refused_is_invalid(store: ObjectStore, network: Network) -> None:
    refusal = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
    network.answers = signing_in((401, refusal))
    with pytest.raises(Invalid, match=f"partqtest.*{CONNECTION_STRING}.*az login"):
        store.load("d")


def test_a_machine_outside_of_azure_has_no_metadata_service_and_no_identity(
    network: Network, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    """Also where the chain of identities asks for one: nobody answers, and nobody ever will."""
    for variable in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "prod")
    with pytest.raises(Invalid, match="az login"):
        open_store("azure://queues", retry_timeout_s=60).load("d")
    assert [place for place in network.asked if place.startswith(METADATA)]


def test_a_metadata_service_that_has_answered_before_may_be_away(
    network: Network, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    for variable in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "prod")
    machine = open_store("azure://queues", retry_timeout_s=0)
    network.answers = {METADATA: given()}
    with pytest.raises(Unavailable, match=r"partqtest\.blob"):
        machine.load("d")
    network.answers = {}
    network.asked.clear()
    with pytest.raises(Unavailable, match=rf"sign-in service {METADATA}"):
        machine.load("d")
