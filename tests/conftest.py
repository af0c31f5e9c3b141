"""The servers that every suite may ask for by name. Nothing else lives here."""

from tests.support.servers import azurite, redis_server

__all__ = ["azurite", "redis_server"]
