"""What the page can change, where it was allowed (`--allow-actions` and a token): taking a group back and altering a
queue, each shown first (preview, dry run) and done only from there. The words are those of the command line. At the
end, what forms and addresses ask for, as values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partq_spark import client
from partq_spark.base.errors import Invalid
from partq_spark.client import words
from partq_spark.page.access import Access
from partq_spark.page.sections import Place

MOST_BYTES: Final = 64 * 1024
MOST_FIELDS: Final = 40
MOST_SHOWN: Final = 200  # partitions of a preview
MOST_UNASKED: Final = 10_000  # messages of a rewind that asks for no name
REALLY: Final = "do"

AnswerMaker = Callable[..., Response]


class Actions:
    """The requests that change something. `answer` makes a page from a template."""

    def __init__(self, place: Place, access: Access, answer: AnswerMaker) -> None:
        self._place = place
        self._access = access
        self._answer = answer
        self._rewinding = asyncio.Lock()  # a double click is one request after the other
        self.routes = [
            Route("/queues/{queue}/alter", self._alter, methods=["GET", "POST"]),
            Route("/queues/{queue}/groups/{group}/rewind", self._rewind, methods=["GET", "POST"]),
        ]

    async def _alter(self, request: Request) -> Response:
        queue = self._place.queue(request.path_params["queue"])
        if request.method == "GET":
            found = await asyncio.to_thread(queue.describe)
            return self._answer(request, "alter.html", queue=queue.name, found=found, form={}, lines=None, done=False)
        form = await form_of(request)
        if (refused := self._refused(request, form)) is not None:
            return refused
        given, really = altered(form), form.get("step") == REALLY
        done = await asyncio.to_thread(
            lambda: queue.alter(**given, dry_run=not really, ownership=self._place.ownership)
        )
        lines = [*words.settings(done), *words.moves(done)]
        for plan in done.groups or () if done.partitions is not None else ():
            lines += [words.first(plan, done=really), *words.waits_in_words(plan, done=really)]
        return self._answer(
            request, "alter.html", queue=queue.name, found=done.description, form=form, lines=lines, done=really
        )

    async def _rewind(self, request: Request) -> Response:
        queue, group = self._place.queue(request.path_params["queue"]), request.path_params["group"]
        shown = {"queue": queue.name, "group": group}
        if request.method == "GET":
            await asyncio.to_thread(lambda: queue.checkpoints(group))  # says that there is no such group
            return self._answer(
                request, "rewind.html", **shown, form={}, steps=None, told="", notes=(), ask=False, done=False
            )
        form = await form_of(request)
        if (refused := self._refused(request, form)) is not None:
            return refused
        given, really, named = goal(form), form.get("step") == REALLY, form.get("name", "").strip() == group
        ownership = await asyncio.to_thread(self._place.ownership_of, queue, group)
        rewind = partial(queue.rewind, group, **given, ownership=ownership)
        async with self._rewinding:
            there = (await asyncio.to_thread(queue.checkpoints, group)).partitions
            # Of each rewind and handoff: what was applied once is not applied again, however far the group is by then.
            seen = str(sum(each.epoch for each in there if isinstance(each, client.PartitionCheckpoint)))
            unfinished, made = "", await asyncio.to_thread(rewind, dry_run=True)
            ask = sum(each.messages for each in made.partitions) > MOST_UNASKED
            if really and "by" in given and form.get("seen") != seen:
                really, unfinished = False, "The group was rewound or handed over since this was shown: look again."
            if really and ask and not named:
                really, unfinished = False, f"Type the group's name, {group}: more than {MOST_UNASKED:,} come again."
            if really:
                try:
                    made = await asyncio.to_thread(rewind, dry_run=False)
                except client.RewindUnfinished as error:
                    made, unfinished = error.rewind, str(error)
        told = words.rewound(made, queue, finished=not unfinished) if really else ""
        if not really:
            told = f"Would deliver {words.comes_again(made, queue)}. Nothing was changed."
        return self._answer(
            request,
            "rewind.html",
            **shown,
            form=form | {"seen": seen},
            steps=made.partitions[:MOST_SHOWN],
            told=told,
            notes=[each for each in (unfinished, *made.notes) if each],
            ask=ask,
            done=really,
        )

    def _refused(self, request: Request, form: Mapping[str, str]) -> Response | None:
        if self._access.may_act(request.headers, form.get("proof", "")):
            return None
        text = "The form did not come from this page: load the page again and send it from there."
        return self._answer(request, "message.html", status=403, title="Refused", text=text)


def altered(form: Mapping[str, str]) -> dict[str, Any]:
    """What `alter` is asked for; a field that is left empty stays as it is. Raises `Invalid`."""
    given: dict[str, Any] = {"partitions": number_of("partitions", form.get("partitions", ""))}
    for name, setting in client.QueueConfig.settings().items():
        if text := form.get(name, "").strip():
            given[name] = setting.parse(text)
    return given


def goal(form: Mapping[str, str]) -> dict[str, Any]:
    """Where a group is to go back to, and which partitions; what is left empty the client refuses. Raises `Invalid`."""
    value = form.get("value", "").strip()
    partitions = [number_of("partitions", each) for each in form.get("partitions", "").replace(",", " ").split()]
    given: dict[str, Any] = {"partitions": tuple(each for each in partitions if each is not None)}
    match form.get("to", ""):
        case "earliest":
            return {**given, "to": "earliest"}
        case "offset":
            return {**given, "to": number_of("offset", value)}
        case "by":
            return {**given, "by": number_of("messages", value)}
        case "time":
            return {**given, "to_timestamp": value}
        case other:
            raise Invalid(f"to={other[:40]!r} is not allowed: choose earliest, offset, by or time")


# --- what a form or an address asks for -------------------------------------------------------------------------------

# As values; others are refused, with those that are allowed.


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Raises `Invalid` for one that is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Invalid(f"the form has more than {MOST_BYTES} bytes: send less")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise Invalid(f"the form cannot be read ({error}): send it as the page does") from None


def number_of(name: str, text: str) -> int | None:
    """A whole number from 0, None for nothing. Raises `Invalid`."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Invalid(f"{name}={text[:40]!r} is not allowed: give a whole number from 0")
    return int(text)


def offsets_of(text: str) -> dict[int, int]:
    """`0:12,3:40` as offsets by partition. Raises `Invalid`."""
    pairs = (each.partition(":") for each in text.split(",") if each)
    found = {number_of("partition", number): number_of("before", offset) for number, _, offset in pairs}
    return {number: offset for number, offset in found.items() if number is not None and offset is not None}
