"""Close connections whose request does not arrive; uvicorn itself waits for the rest of a request without limit."""

from __future__ import annotations

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: A request must arrive within so many seconds, or twice as many if the connection was used before.
PATIENCE = 5.0
#: The states of h11 in which a client still has to send something.
AWAITED = ("IDLE", "SEND_BODY")


class Patient(H11Protocol):
    """A connection that is closed if a request does not arrive in time. An answer has no limit: events never end."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        super().connection_made(transport)
        self.loop.call_later(PATIENCE, self._look, None)

    def _look(self, before: Any) -> None:
        """Close the connection if the request that was awaited at the last call has still not arrived."""
        if self.transport.is_closing():
            return
        if self.cycle is before and str(self.conn.their_state) in AWAITED:
            self.transport.close()
        else:
            self.loop.call_later(PATIENCE, self._look, self.cycle)
