"""Connections that keep the server waiting are closed; uvicorn itself waits for the rest of a request for ever."""

from __future__ import annotations

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: A request must arrive within so many seconds, or twice as many if the connection was used before.
PATIENCE = 5.0
#: The states of h11 in which a client still has to send something.
AWAITED = ("IDLE", "SEND_BODY")


class Patient(H11Protocol):
    """A connection that is closed if a request does not arrive in time. An answer may last: events have no end."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        super().connection_made(transport)
        self.loop.call_later(PATIENCE, self._look, None)

    def _look(self, before: Any) -> None:
        """Close the connection if it still has to send the request that it had to send at the last look."""
        if self.transport.is_closing():
            return
        if self.cycle is before and str(self.conn.their_state) in AWAITED:
            self.transport.close()
        else:
            self.loop.call_later(PATIENCE, self._look, self.cycle)
