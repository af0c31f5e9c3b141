"""How a store is opened: which URLs are taken and how they are written, that no message repeats what could be a secret,
and signing in to Azure by an identity, where the service gives no token for now, or none to this identity.
"""

from __future__ import annotations

import io
import json
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import urllib3
from azure.core.pipeline.policies import RetryPolicy

import partq
from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.objects import canonical_url, open_store
from partq_spark.objects.azure_access import ACCOUNT, ACCOUNT_URL, CONNECTION_STRING, AzureAccess, find_access
from partq_spark.objects.urls import default_store
from tests.objects.conftest import FOUR_CALLS


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("file:///data/partq", "file:///data/partq"),
        ("file:/data/partq/", "file:///data/partq"),
        ("FILE://localhost/data//partq/./x/..", "file:///data/partq"),
        ("file:///my data/größe", "file:///my%20data/gr%C3%B6%C3%9Fe"),
        ("file:///my%20data/100%25", "file:///my%20data/100%25"),
        ("file:///what%3F", "file:///what%3F"),
        ("file:///%EF%BF%BD", "file:///%EF%BF%BD"),
        ("azure://queues", "azure://queues"),
        ("azure://my-queues-1/team/a_b=c/", "azure://my-queues-1/team/a_b=c"),
        ("azure://a-b", "azure://a-b"),
        ("S3://my.queues--1/team/", "s3://my.queues--1/team"),
    ],
)
def test_a_store_has_one_url(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", "file:///absolute/dir"),
        ("gs://bucket/x", "azure://container/prefix"),
        ("file:relative/dir", f"file://{Path.cwd()}/relative/dir"),
        ("/data/partq", "file:///data/partq"),
        ("some/dir", f"file://{Path.cwd()}/some/dir"),
        ("file://data/partq", "file:///data/partq"),
        ("file:///", "file:///absolute/dir"),
        ("file:///a%00b", "zero"),
        ("file:///x/%FF", "file:///x/%FF names a directory that is not UTF-8"),
        ("file:///x/%ED%B3%BF", "not UTF-8"),
        ("file:///x/\udcff", "not UTF-8"),
        ("azure:queues", "azure://container/prefix"),
        ("azure://", "azure://container/prefix"),
        ("azure://ab", "3 to 63"),
        ("azure://Upper", "lower-case"),
        ("azure://double--hyphen", "single hyphens"),
        ("azure://account.blob.core.windows.net/c", "come from the environment"),
        ("azure://queues/a//b", "single slashes"),
        ("azure://queues/.hidden", "dot"),
        ("azure://queues/" + "x" * 201, "200"),
        *((f"s3:{rest}", "s3://bucket/prefix") for rest in ("", "//", "//ab", "//Queues", "//a..b", "//a_b", "//-ab")),
        *((f"s3://{rest}", "also dots") for rest in ("1.2.3.4", "xn--ab", "a" * 64)),
        ("s3://queues--use1-az4--x-s3", "directory bucket"),
        ("s3://queues/.hidden", "dot"),
        # What could be a secret is not repeated.
        (f"azure://user:{SECRET}@queues/x", "azure://"),
        (f"azure://queues/x?sv=2024&sig={SECRET}", "azure://"),
        (f"azure://queues/x#{SECRET}", "azure://"),
        (f"s3://user:{SECRET}@queues/x", "AWS_SECRET_ACCESS_KEY"),
        (f"file://user:{SECRET}@host/x", "file:///"),
        (f"file:///x?key={SECRET}", "file:///"),
        (f"https://a.blob.core.windows.net/c?sig={SECRET}", "azure://"),
        (f"DefaultEndpointsProtocol=https;AccountKey={SECRET}==;EndpointSuffix=core.windows.net", "azure://"),
        (f"azure://{SECRET}+{SECRET}==/x", "azure://"),
        (f"azure://queues/{SECRET}+{SECRET}==", "azure://"),
    ],
)
def test_another_url_is_refused_with_what_is_allowed_and_no_secret(url: str, shown: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_store(url)
    assert shown in str(caught.value)
    assert SECRET not in str(caught.value)


BY_KEY = f"DefaultEndpointsProtocol=https;AccountName=acc;AccountKey={SECRET}=="
BY_NAME = AzureAccess(account="acc", account_url="https://acc.blob.core.windows.net")


@pytest.mark.parametrize(
    ("environment", "access"),
    [
        ({CONNECTION_STRING: BY_KEY, ACCOUNT: "other"}, AzureAccess(account="acc", connection_string=BY_KEY)),
        ({ACCOUNT: "acc"}, BY_NAME),
        (
            {ACCOUNT_URL: "https://acc.blob.core.windows.net/", ACCOUNT: "x"},
            replace(BY_NAME, account="acc.blob.core.windows.net"),
        ),
        ({ACCOUNT_URL: f"https://acc.blob.core.windows.net/?sig={SECRET}"}, None),
        ({ACCOUNT_URL: f"https://user:{SECRET}@acc.blob.core.windows.net"}, None),
        ({ACCOUNT_URL: "http://acc.blob.core.windows.net"}, None),
        ({ACCOUNT_URL: SECRET}, None),
        ({ACCOUNT: SECRET}, None),
        ({ACCOUNT: "https://acc"}, None),
    ],
)
def test_credentials_come_from_the_environment_if_sane(environment: dict[str, str], access: AzureAccess | None) -> None:
    if access is not None:
        assert find_access("u", environment) == access
        assert SECRET not in repr(access)
        return
    with pytest.raises(Invalid, match=rf"\b{next(iter(environment))}\b") as caught:
        find_access("azure://queues", environment)
    assert SECRET not in str(caught.value)


def test_azure_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.core", None)
    monkeypatch.delitem(sys.modules, "partq_spark.objects.azure", raising=False)
    with pytest.raises(Invalid, match=r"azure://queues.*pip install partq\[azure\]"):
        open_store("azure://queues")


# --- the default store ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"HOME": "/home/ann"}, "file:///home/ann/.partq"),
        ({"HOME": "/home/ann/", "PARTQ_STORE": " "}, "file:///home/ann/.partq"),
        ({"HOME": "/home/a b#?%"}, "file:///home/a%20b%23%3F%25/.partq"),
        ({"PARTQ_STORE": " file:///data/../queues/ "}, "file:///queues"),
        ({"PARTQ_STORE": "azure://box/prefix/", "HOME": ""}, "azure://box/prefix"),
        ({}, None),
        ({"HOME": ""}, None),
        ({"HOME": "relative"}, None),
        ({"PARTQ_STORE": f"azure://box?sig={SECRET}", "HOME": "/home/ann"}, None),
    ],
)
def test_the_default_store_is_in_the_home_directory_unless_another_is(environ: dict[str, str], url: str | None) -> None:
    if url is not None:
        assert default_store(environ) == url
        return
    with pytest.raises(Invalid, match="PARTQ_STORE") as refused:
        default_store(environ)
    assert SECRET not in str(refused.value)


# --- who may look into a store --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("given", "there", "mode"),
    [
        (None, None, 0o700),
        ("home/.partq", None, 0o700),  # the same place by its name
        (None, 0o750, 0o750),  # somebody lets others in
        ("home/queues", None, 0o755),
        ("srv/.partq", None, 0o755),
        ("srv/.partq", 0o775, 0o775),
    ],
)
def test_the_default_store_is_for_its_user_alone_and_one_that_was_named_follows_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, there: int | None, mode: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PARTQ_STORE", raising=False)
    folder = tmp_path / (given or "home/.partq")
    if there is not None:
        folder.mkdir(parents=True)
        folder.chmod(there)
    queue = partq.create_queue("orders", partitions=1, store=None if given is None else f"file://{folder}")
    with queue.publisher() as publisher:
        publisher.send("tea")
    assert folder.stat().st_mode & 0o7777 == mode
    assert (folder / "default").stat().st_mode & 0o7777 == 0o755, "what is below is behind that door"


# --- signing in -------------------------------------------------------------------------------------------------------


TENANT = str(uuid.UUID(int=1))


SIGN_IN = "login.microsoftonline.com"


METADATA = "169.254.169.254"


Answer = tuple[int, Any] | None  # status and JSON; None: nothing comes back


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
    """For a process that has an identity with a secret in its environment, as a service has it."""
    for variable in (CONNECTION_STRING, ACCOUNT_URL):
        monkeypatch.delenv(variable, raising=False)
    identity = {"TENANT_ID": TENANT, "CLIENT_ID": "partq", "CLIENT_SECRET": "hidden"}
    for name, value in {
        **identity,
        "STORAGE_ACCOUNT": "partqtest",
        "TOKEN_CREDENTIALS": "EnvironmentCredential",
    }.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    return Network(monkeypatch)


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


REFUSAL = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        ({}, Unavailable, f"sign-in service {SIGN_IN}"),
        ({SIGN_IN: (503, {})}, Unavailable, f"sign-in service {SIGN_IN}"),
        (signing_in(None), Unavailable, f"sign-in service {SIGN_IN}"),
        (signing_in((500, {"error": "temporarily_unavailable"})), Unavailable, f"sign-in service {SIGN_IN}"),
        (signing_in((429, {"error": "too_many_requests"})), Unavailable, f"sign-in service {SIGN_IN}"),
        (signing_in((401, REFUSAL)), Invalid, f"partqtest.*{CONNECTION_STRING}.*az login"),
    ],
    ids=["nothing answers", "busy", "no token", "token 500", "token 429", "refused"],
)
def test_no_answer_of_the_sign_in_service_is_unavailable_and_a_refusal_invalid(
    network: Network, answers: dict[str, Answer], error: type[PartqError], said: str
) -> None:
    network.answers = answers
    store = open_store("azure://queues", retry_timeout_s=0)
    for call in FOUR_CALLS:
        with pytest.raises(error, match=said):
            call(store)
    assert not [place for place in network.asked if place.startswith("partqtest")], "the account was not even asked"


def test_a_machine_outside_of_azure_has_no_metadata_service_but_one_that_has_answered_may_be_away(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the chain of identities asks for one."""
    for variable in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "prod")
    with pytest.raises(Invalid, match="az login"):
        open_store("azure://queues", retry_timeout_s=60).load("d")
    assert [place for place in network.asked if place.startswith(METADATA)]

    machine = open_store("azure://queues", retry_timeout_s=0)
    # A token that must be fetched anew for the next request.
    token = {"expires_in": "1", "expires_on": str(int(time.time()) + 1), "access_token": "given"}
    network.answers = {METADATA: (200, {"token_type": "Bearer", "resource": "storage", **token})}
    with pytest.raises(Unavailable, match=r"partqtest\.blob"):
        machine.load("d")
    network.answers = {}
    with pytest.raises(Unavailable, match=rf"sign-in service {METADATA}"):
        machine.load("d")
