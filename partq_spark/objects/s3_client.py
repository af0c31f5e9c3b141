"""Requests to an S3 server: where it is and who we are, by the environment; signed, sent once, bounded in time; and
what its answers mean. No other module imports botocore.

botocore finds the credentials, signs and sends; its client, with its 0.3 s of models and its own retries, is left out:
a swap that is sent again meets its own success and reports a conflict. Errors are raised without their cause, whose
texts and requests may hold credentials.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, MetadataRetrievalError
from botocore.exceptions import ConnectionError as NoConnection
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

from partq_spark.base.errors import Conflict, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects.service import CONNECT_TIMEOUT_S, ServiceClock, is_passing, without_secrets
from partq_spark.objects.urls import ServiceUrl

ENDPOINTS: Final = ("PARTQ_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")

_ADDRESS: Final = re.compile(r"(https?://)((?:[A-Za-z0-9-]+\.)*[A-Za-z0-9-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?/?")
_AWS: Final = re.compile(r"(.+\.)?amazonaws\.com(\.cn)?")
_PASSING: Final = frozenset({"RequestTimeout", "SlowDown", "InternalError", "OperationAborted"})
_CREDENTIALS: Final = {
    "InvalidAccessKeyId": "the server does not know this access key",
    "SignatureDoesNotMatch": "the secret key is not the access key's",
    "ExpiredToken": "the token has expired: sign in again",
    "InvalidToken": "the session token is not the access key's",
    "RequestTimeTooSkewed": "this machine's clock is off: set it right",
    "AccessDenied": "the policy must allow GetObject, PutObject, DeleteObject, AbortMultipartUpload, ListBucket and"
    " ListBucketMultipartUploads; without ListBucket also what is merely not there answers so",
}
_ERROR: Final = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<Error[\s>]")  # white space is sent while one waits
_NOTHING: Final[Mapping[str, str]] = {}
_CONNECTIONS: Final = 32  # kept open

if logging.getLogger("botocore").level == logging.NOTSET:  # at DEBUG it logs what it signs, with the session's token
    logging.getLogger("botocore").setLevel(logging.WARNING)


class Answer(NamedTuple):
    """An HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_fine(self) -> bool:
        """Done as asked. An error may come with 200, where the server has begun to answer before it was done."""
        return 200 <= self.status < 300 and not self.code

    @property
    def code(self) -> str:
        """S3's error code; empty where there is none, as in a proxy's answer."""
        is_error = self.status >= 300 or _ERROR.match(self.body) is not None
        return self.element("Code") if is_error else ""

    def element(self, name: str) -> str:
        """The text of the first such element in an XML body of few elements."""
        found = re.search(rb"<%b>([^<]*)</%b>" % (name.encode(), name.encode()), self.body[:10_000])
        return found[1].decode("utf-8", "replace").strip() if found else ""


class S3Client:
    """A bucket below a prefix, with this process's connections and credentials. Names are relative to the prefix; "" is
    the bucket itself. `server` is the server's address, for messages. Raises `Invalid` where the environment has no
    credentials, or no address of a server that will do.
    """

    def __init__(self, url: ServiceUrl, clock: ServiceClock, *, read_timeout_s: float) -> None:
        self._url = url
        self._clock = clock
        self._endpoint = find_endpoint(os.environ)
        self.server = self._endpoint or "AWS"
        host = _ADDRESS.fullmatch(self._endpoint)
        self.is_aws = host is None or _AWS.fullmatch(host[2]) is not None
        variables = os.environ
        region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
        ca_bundle = variables.get("AWS_CA_BUNDLE") or variables.get("REQUESTS_CA_BUNDLE")
        keys = [variables.get(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")]
        if keys[0] and keys[1] and (region or not self.is_aws):  # what the chain below would find, without its 0.3 s
            frozen = SimpleNamespace(access_key=keys[0], secret_key=keys[1], token=keys[2])
            self._credentials: Any = SimpleNamespace(get_frozen_credentials=lambda: frozen)
        else:
            with self._finding():
                from botocore.session import get_session

                session = get_session()
                region = region or session.get_config_variable("region")
                ca_bundle = ca_bundle or session.get_config_variable("ca_bundle")
                self._credentials = session.get_credentials()
        if self._credentials is None:
            raise Invalid(
                f"store {url} has no credentials in this process's environment: set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run it where a role is given"
            )
        self._region = region or "us-east-1"
        self._http = URLLib3Session(
            verify=ca_bundle or True,
            proxies=get_environ_proxies(self._address()),
            timeout=(CONNECT_TIMEOUT_S, read_timeout_s),
            max_pool_connections=_CONNECTIONS,
        )

    def close(self) -> None:
        """Give back connections."""
        self._http.close()

    def ask(self, doing: str, method: str, name: str, **request: Any) -> Answer:
        """The answer, whatever it says; the rest is as `_send` has it. A bucket elsewhere is followed there, once.

        Raises `Unavailable` where no whole answer came, `Invalid` where no credentials can be had.
        """
        what, key = f"{doing} {self._url}/{name}", self._url.base + name if name else ""
        answer = self._send(what, method, key, **request)
        region = answer.headers.get("x-amz-bucket-region") or answer.element("Region")
        if answer.status in (301, 307, 400) and region and region != self._region:
            self._region = region
            answer = self._send(what, method, key, **request)
        return answer

    def fine(self, doing: str, method: str, name: str, **request: Any) -> Answer:
        """The answer, which says that it was done."""
        answer = self.ask(doing, method, name, **request)
        if not answer.is_fine:
            raise self.explain(doing, name, answer)
        return answer

    def etag(self, doing: str, name: str, answer: Answer) -> str:
        """The ETag of what was put or got. Without one it was no S3 server that answered."""
        etag = answer.headers.get("etag", "")
        if not answer.is_fine or not etag:
            raise self.explain(doing, name, answer)
        return etag

    def pages(self, doing: str, query: Mapping[str, str]) -> Iterator[ElementTree.Element]:
        """Those of a listing, each by one request; of uploads the first alone."""
        asked = dict(query)
        while True:
            answer = self.fine(doing, "GET", "", query=asked)
            try:
                page = ElementTree.fromstring(answer.body)  # noqa: S314 - of the server that keeps all of this
            except ElementTree.ParseError:
                raise self.explain(doing, "", answer) from None
            for element in page.iter():
                element.tag = element.tag.rpartition("}")[2]
            if not page.tag.startswith("List"):
                raise self.explain(doing, "", answer)
            yield page
            asked["continuation-token"] = page.findtext("NextContinuationToken", "")
            if not asked["continuation-token"]:
                return

    def explain(self, doing: str, name: str, answer: Answer) -> PartqError:
        """What an answer means that is not the one that was wanted."""
        what, status, code = f"{doing} {self._url}/{name}", answer.status, answer.code
        said = f"{status} {code}".strip()
        text = without_secrets(answer.element("Message")) if code else "its answer is not S3's"
        if code == "NoSuchKey":
            return ObjectMissing(f"{what}: it is not there ({said}): restore it from a copy")
        if code == "NoSuchBucket":
            return Invalid(f"{what}: {self.server} has no such bucket ({said}): create it, partq makes none")
        if code in _CREDENTIALS or status in (401, 403):
            reason = f"{text.rstrip('.')}; {_CREDENTIALS[code]}" if code in _CREDENTIALS else text
            return Invalid(f"{what}: {self.server} does not allow it ({said}): {reason}")
        if status == 412 or code == "ConditionalRequestConflict":
            return Conflict(f"{what}: it is there already, or was changed ({said}): load it before changing it")
        if status < 300 or (is_passing(status) and status != 501) or code in _PASSING:
            return Unavailable(f"{what}: {self.server} gave no usable answer ({said}): {text}")
        if status < 400 or code == "AuthorizationHeaderMalformed":
            return Invalid(
                f"{what}: {self.server} has this bucket elsewhere ({said}): set AWS_REGION to the bucket's region, and"
                f" the endpoint, if one is set, to that region's; {text}"
            )
        return Invalid(f"{what}: {self.server} refuses it ({said}): {text}; check {' or '.join(ENDPOINTS)}")

    def _address(self) -> str:
        """Where the bucket is. AWS has a host for each; a name with dots would not fit the host's certificate."""
        bucket, endpoint = self._url.container, self._endpoint
        if not endpoint:
            suffix = ".cn" if self._region.startswith("cn-") else ""
            endpoint = f"https://s3.{self._region}.amazonaws.com{suffix}"
        if not self.is_aws or "." in bucket:
            return f"{endpoint}/{bucket}"
        return endpoint.replace("://", f"://{bucket}.", 1)

    def _send(
        self,
        what: str,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
    ) -> Answer:
        target = f"{self._address()}/{quote(key, safe='/')}"
        if query:
            target += "?" + urlencode(query, quote_via=quote, safe="")
        request = AWSRequest(method=method, url=target, headers=dict(headers), data=body)
        with self._finding():
            frozen = self._credentials.get_frozen_credentials()
        S3SigV4Auth(frozen, "s3", self._region).add_auth(request)
        try:
            found = self._http.send(request.prepare())
        except BotoCoreError as error:
            reason = f"{type(error).__name__}, {without_secrets(str(error))}"
            raise Unavailable(f"{what}: {self.server} could not be reached: {reason}") from None
        answer = Answer(
            status=found.status_code,
            headers={key.lower(): value for key, value in found.headers.items()},
            body=found.content,
        )
        if len(answer.body) < int(answer.headers.get("content-length", "0")):
            raise Unavailable(f"{what}: the answer of {self.server} was cut short: {len(answer.body)} bytes came")
        self._clock.hear(answer.headers.get("date"))
        return answer

    @contextmanager
    def _finding(self) -> Iterator[None]:
        """Credentials are looked for or renewed: botocore's errors become partq's."""
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            is_unanswered = isinstance(error, (HTTPClientError, NoConnection, MetadataRetrievalError))
            reason = f"store {self._url} got no credentials: {type(error).__name__}, {without_secrets(str(error))}"
            raise (Unavailable if is_unanswered else Invalid)(reason) from None


def find_endpoint(environment: Mapping[str, str]) -> str:
    """Scheme and host of a server, as the environment says; empty: AWS itself, in whatever region. Raises `Invalid`,
    which names the variable, if it is no address or will not do.
    """
    for variable in ENDPOINTS:
        endpoint = environment.get(variable, "").strip()
        if not endpoint:
            continue
        if "storage.googleapis.com" in endpoint:
            raise Invalid(
                f"{variable} names Google Cloud Storage, whose S3 interface has no writes that are conditional on an"
                " ETag: use AWS S3, or a server that has them"
            )
        if _ADDRESS.fullmatch(endpoint) is None:
            raise Invalid(
                f"{variable} (not shown) is not a server's address: use https://host or https://host:port without path,"
                " user or query; keys belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return endpoint.rstrip("/")
    return ""
