"""The web page beside health and metrics, on their port: where the extra `ui` is installed and the page may be seen.

Who may see metrics may see the page (`health.access_beside_health`); where nobody may, health alone is served. The page
is loaded when somebody asks for it: until then it costs a coordinator nothing but the decisions it remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from coordinator.health import Answers, HealthServer, not_to_be_had
from coordinator.logs import FieldValue, Listener
from coordinator.settings import Settings
from partq_spark.page.access import Access
from partq_spark.page.timeline import Timeline

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from partq_spark.page.app import Page

OWN_PATHS: Final = ("/healthz", "/readyz", "/metrics")
_NEEDED: Final = ("jinja2", "starlette", "uvicorn")


class Decisions(Listener):
    """Gives the page's timeline what a coordinator says of groups."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def hear(self, event: str, facts: Mapping[str, FieldValue]) -> None:
        self._timeline.add(event, facts)


def serve(settings: Settings, answers: Answers, timeline: Timeline, access: Access | None) -> HealthServer | PageServer:
    """Health and metrics, with the page where somebody may see it. Raises `Invalid` if the address cannot be had."""
    if access is None or any(find_spec(name) is None for name in _NEEDED):
        return HealthServer(settings.health_host, settings.health_port, answers)
    return PageServer(settings, answers, timeline, access)


class PageServer:
    """Serves in a thread of its own that ends with the process."""

    def __init__(self, settings: Settings, answers: Answers, timeline: Timeline, access: Access) -> None:
        """Raises `Invalid` if the address cannot be had."""
        from partq_spark.page.server import Server, listening

        self._settings = settings
        self._answers = answers
        self._timeline = timeline
        self._access = access
        self._page: Page | None = None
        self._loading = asyncio.Lock()
        try:
            listener = listening(settings.health_host, settings.health_port)
        except (OSError, OverflowError) as error:
            raise not_to_be_had(settings.health_host, settings.health_port, error) from error
        self._server = Server(self._app, listener, ending=self._end)
        self.port: int = self._server.port
        self._server.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in OWN_PATHS:
            await self._answer(scope, send)
            return
        async with self._loading:
            if self._page is None:
                self._page = await asyncio.to_thread(self._loaded)
        await self._page.app(scope, receive, send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        asked = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = await asyncio.to_thread(self._answers.answer, scope["path"], asked)
        headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), **answer.headers}
        sent: list[Any] = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": answer.body})

    def _loaded(self) -> Page:
        from partq_spark.page.app import Page
        from partq_spark.page.sections import Place

        settings = self._settings
        place = Place(
            store=settings.store,
            namespace=settings.namespace,
            ownership=settings.ownership,
            server=settings.name,
            timeline=self._timeline,
        )
        return Page(place, self._access)

    def _end(self) -> None:
        if self._page is not None:
            self._page.end()
