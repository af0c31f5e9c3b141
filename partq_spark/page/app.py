"""The page's requests and answers. Each names what it shows; looking, deciding and drawing are done elsewhere.

Nothing here changes anything: what does is in `actions`, and is not there at all unless it was allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from partq_spark import client
from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.page.access import Access
from partq_spark.page.actions import Actions, form_of, number_of, offsets_of
from partq_spark.page.looks import MOST_WAITING, Look, Looks, Opened, etag_of
from partq_spark.page.render import html, statics
from partq_spark.page.sections import Place, Watched

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer browsers send `Origin: null` with our own forms
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer: no script but ours runs, whatever a message holds, and nothing stays in a cache."""

MOST_MESSAGES: Final = 100
MESSAGES: Final = 20
MOST_VALUE_BYTES: Final = 256 * 1024 * 1024  # of the messages of one page
STATIC_S: Final = 31_536_000  # a name says what the file holds, so a year is not too long
SESSION_S: Final = 12 * 3600
FIRST_LOOK_S: Final = 15.0
NEWS_S: Final = 10.0
"""So long a browser waits for news at most; then it asks again."""

STATUS_OF: Final[dict[type[PartqError], int]] = {Invalid: 404, Unavailable: 503}

Handler = Callable[[Request], Awaitable[Response]]


class Page:
    """The page of one place. `app` is to be served on one event loop."""

    def __init__(self, place: Place, access: Access) -> None:
        self._place = place
        self._access = access
        self._watched = Watched(place)
        self._looks = Looks(lambda said, age_s: html("trouble.html", said=said, age_s=age_s))
        self._browsing = asyncio.Semaphore(1)  # a slice of the log may be large
        routes = [
            Route("/", self._showing("queues")),
            Route("/news", self._send_news),
            Route("/queues/{queue}", self._showing("queue")),
            Route("/queues/{queue}/news", self._send_news),
            Route("/queues/{queue}/messages", self._show_messages),
            Route("/queues/{queue}/groups/{group}", self._showing("group")),
            Route("/queues/{queue}/groups/{group}/news", self._send_news),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/static/{name}", self._send_static),
        ]
        if access.actions:
            routes += Actions(place, access, self._html).routes
        own = Starlette(
            routes=routes,
            exception_handlers={PartqError: self._refuse, 404: self._miss, 405: self._miss},
        )
        self.app: ASGIApp = Guard(own, access, self._ask_for_token)

    @property
    def watched(self) -> int:
        """How many things are looked at just now."""
        return len(self._looks)

    def end(self) -> None:
        """Stop looking, and answer the browsers that wait. To be called on the event loop."""
        self._looks.close()

    # --- what is kept up to date --------------------------------------------------------------------------------------

    def _look_of(self, request: Request) -> Look:
        """The look that a path is about."""
        names = request.path_params
        opened: Callable[[], Opened] = self._watched.queues
        if "group" in names:
            opened = partial(self._watched.group, names["queue"], names["group"])
        elif "queue" in names:
            opened = partial(self._watched.queue, names["queue"])
        return self._looks.get("/".join(names.values()), opened)

    def _showing(self, page: str) -> Handler:
        """A page as it is now; its script then asks for news."""

        async def show(request: Request) -> Response:
            look = self._look_of(request)
            if not await look.newer("", FIRST_LOOK_S, request.is_disconnected):
                raise Unavailable(f"the store did not answer within {FIRST_LOOK_S:.0f} s: load the page again")
            missing = "facts" not in look.sections and page != "queues"
            return self._html(
                request,
                f"{page}.html",
                status=503 if missing else 200,
                sections=look.sections,
                news=f"{request.url.path.rstrip('/')}/news",
                **request.path_params,
            )

        return show

    async def _send_news(self, request: Request) -> Response:
        """The sections that differ from those that a browser has by its ETag, as soon as there are some."""
        if self._looks.waiting >= MOST_WAITING:
            raise Unavailable(f"{MOST_WAITING} pages are being watched at once: close some first")
        look = self._look_of(request)
        etag = request.headers.get("if-none-match", "")
        sections = await look.newer(etag, NEWS_S, request.is_disconnected)
        headers = {**HEADERS, "etag": etag_of(look.sections)}
        return JSONResponse(sections, headers=headers) if sections else Response(status_code=304, headers=headers)

    # --- what is looked at once ---------------------------------------------------------------------------------------

    async def _show_messages(self, request: Request) -> Response:
        name = request.path_params["queue"]
        asked = request.query_params
        partition, start = (number_of(each, asked.get(each, "")) for each in ("partition", "from"))
        limit = min(number_of("limit", asked.get("limit", "")) or MESSAGES, MOST_MESSAGES)
        key, until = asked.get("key", ""), asked.get("until", "").strip()
        before = offsets_of(asked.get("before", "")) or until or None
        queue = self._place.queue(name)
        if start is not None and (key or before):
            raise Invalid("an offset to begin at goes with neither a key nor a time: leave one out")

        def look() -> client.Found:
            most = min(limit, max(MOST_VALUE_BYTES // queue.publication().max_message_bytes, 1))
            if start is None:
                return client.search_messages(queue, key=key or None, partition=partition, before=before, limit=most)
            found = tuple(queue.browse(partition=partition, start=start, limit=most))
            return client.Found(messages=found, before=None, looked_at=len(found))

        async with self._browsing:
            found = await asyncio.to_thread(look)
        filled = {"partition": asked.get("partition", ""), "key": key, "until": until, "limit": str(limit)}
        more = {}
        if found.before is not None:
            more = {"before": ",".join(f"{number}:{offset}" for number, offset in found.before.items())}
        elif start is not None and partition is not None and found.messages:
            more = {"from": str(found.messages[-1].offset + 1)}
        return self._html(
            request,
            "messages.html",
            queue=name,
            rows=found.messages,
            looked_at=found.looked_at,
            start=asked.get("from", ""),
            form=filled,
            next=urlencode({name: text for name, text in (filled | more).items() if text}) if more else "",
        )

    async def _send_static(self, request: Request) -> Response:
        for each in statics().values():
            if each.name == request.path_params["name"]:
                headers = {**HEADERS, "cache-control": f"public, max-age={STATIC_S}, immutable"}
                return Response(each.content, media_type=each.type, headers=headers)
        return await self._miss(request, Exception())

    # --- coming in ----------------------------------------------------------------------------------------------------

    async def _log_in(self, request: Request) -> Response:
        access = self._access
        if request.method == "GET" or access.token is None:
            return RedirectResponse("/", status_code=303, headers=HEADERS)
        form = await form_of(request)
        if not access.is_from_here(request.headers):
            return self._said(request, 403, "Refused", "The form came from elsewhere.")
        if not access.is_token(form.get("token", "")):
            return self._ask_for_token(request, wrong=True, to=form.get("to", "/"))
        to = form.get("to", "/")
        done = RedirectResponse(to if _is_path(to) else "/", status_code=303, headers=HEADERS)
        done.set_cookie(
            access.cookie,
            access.session,
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=access.is_over_tls(request.headers),
        )
        return done

    def _ask_for_token(self, request: Request, *, wrong: bool = False, to: str = "/") -> Response:
        if request.method == "GET":
            to = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = self._html(request, "token.html", status=401, wrong=wrong, to=to)
        answer.headers["www-authenticate"] = "Bearer"
        return answer

    # --- answers ------------------------------------------------------------------------------------------------------

    def _html(self, request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
        known: dict[str, object] = {"news": "", "place": None, "actions": self._access.actions, "proof": ""}
        if self._access.may_look(request.headers):
            known |= {"place": self._place, "proof": self._access.form_proof}
        return HTMLResponse(html(template, **{**known, **values}), status_code=status, headers=HEADERS)

    def _said(self, request: Request, status: int, title: str, text: str, **more: object) -> HTMLResponse:
        """A page that has a sentence and nothing else."""
        return self._html(request, "message.html", status=status, title=title, text=text, **more)

    async def _refuse(self, request: Request, error: Exception) -> Response:
        status = next((code for kind, code in STATUS_OF.items() if isinstance(error, kind)), 500)
        if request.method == "POST" and status == 404:
            return self._said(request, 400, "Refused", str(error), back=request.url.path)
        return self._said(request, status, "Not shown", str(error))

    async def _miss(self, request: Request, error: Exception) -> Response:
        return self._said(request, 404, "Not here", "There is no such page: go to the queues.")


class Guard:
    """Lets in those who may look, under a name that is ours; everybody may ask for the style sheet and the way in."""

    def __init__(self, app: ASGIApp, access: Access, ask: Callable[[Request], Response]) -> None:
        self._app = app
        self._access = access
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer: ASGIApp = self._app
        if scope["type"] != "http" or not self._access.knows_host(request.headers.get("host")):
            text = "This name is not one of the page's: ask for localhost, or name it in PARTQ_UI_HOSTS.\n"
            answer = Response(text, status_code=421, media_type="text/plain", headers=HEADERS)
        elif not (request.url.path.startswith(("/static/", "/login")) or self._access.may_look(request.headers)):
            answer = self._ask(request)
        await answer(scope, receive, send)


def _is_path(text: str) -> bool:
    """Whether it leads to this page and nowhere else."""
    return text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
