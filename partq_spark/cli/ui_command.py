"""`partq ui`: serves the web page, read only unless told otherwise, on any store and without a coordinator."""

from __future__ import annotations

import os

import click

from partq_spark.base.errors import Invalid
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, checked, where_options

PORT = 8096


@click.command("ui")
@click.option(
    "--host",
    metavar="H",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; other than this machine only with $PARTQ_UI_TOKEN.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="P",
    default=PORT,
    show_default=True,
    help="On which port; 0: any that is free.",
)
@click.option(
    "--allow-actions", is_flag=True, help="Let the page rewind groups and alter queues; needs $PARTQ_UI_TOKEN."
)
@where_options
def ui(where: Where, host: str, port: int, allow_actions: bool) -> None:
    """Show queues, groups and messages in a browser, live.

    The page looks at the store once a second while somebody watches, and not at all when nobody does. With
    $PARTQ_UI_TOKEN everybody who opens it is asked for the token. Names other than localhost by which the page is
    asked for are given in $PARTQ_UI_HOSTS, with commas. Ends with Ctrl-C.
    """
    try:
        from partq_spark.page.access import access
        from partq_spark.page.app import Page
        from partq_spark.page.sections import Place
        from partq_spark.page.server import Server, listening
    except ModuleNotFoundError as error:
        raise Invalid(f"the page needs {error.name}, which is not installed: pip install 'partq[ui]'") from error
    allowed = checked(lambda: access(host, os.environ, actions=allow_actions))
    place = Place(
        store=where.store,
        namespace=where.namespace,
        ownership=where.ownership,
        retry_timeout_s=min(where.retry_timeout_s, 30.0),
    )
    page = Page(place, allowed)
    try:
        listener = listening(host, port)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise Invalid(
            f"--port {port} on {host} cannot be used ({said}): end what listens there, or choose another port"
        ) from error
    server = Server(page.app, listener, ending=page.end)
    shown = f"[{host}]" if ":" in host else host
    output.say(f"Open http://{shown}:{server.port}/ in a browser; Ctrl-C ends it.")
    try:
        server.run()
    except KeyboardInterrupt:
        pass  # it was told to end, and has
