"""A cable between flows and Redis that can be pulled: a relay, which is frozen meanwhile. Nothing else.

As with a real cable nothing is refused and nothing is lost: what was sent arrives late, once it is plugged in again.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

from tools.servers import Server

_RELAY: Final = """
import asyncio, sys

async def relay(source, target):
    while data := await source.read(65536):
        target.write(data)
    target.close()

async def accept(*client):
    server = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(relay(client[0], server[1]), relay(server[0], client[1]), return_exceptions=True)

async def serve():
    await (await asyncio.start_server(accept, "127.0.0.1", int(sys.argv[1]))).serve_forever()

asyncio.run(serve())
"""


class Cable(Server):
    """Relays its port to the server's: `freeze` pulls it, `thaw` plugs it in."""

    def __init__(self, server_port: int) -> None:
        super().__init__()
        self._server_port = server_port

    def command(self) -> list[str]:
        """In a process, which a signal stops."""
        return [sys.executable, "-c", _RELAY, str(self.port), str(self._server_port)]

    def answers(self) -> bool:
        """It lets in."""
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        return True
