"""Which requests the live view answers: those with its token, to its own address, from its own page.

A page of another site can make a browser send requests to this machine. Such a request has neither the token nor the
cookie, and its `Origin` differs. If the other site's name resolves to this machine (DNS rebinding), `Host` differs.
"""

from __future__ import annotations

import socket
from secrets import compare_digest, token_urlsafe
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The page may load only what this server sends.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
#: A page that makes the browser load the list.
ONWARD = "<!doctype html><html lang='en'><title>Arno</title><meta http-equiv='refresh' content='0;url=/'></html>"


def own_names(host: str, port: int) -> set[str]:
    """The values of the header `Host` that mean this server.

    >>> sorted(own_names("127.0.0.1", 8000))
    ['127.0.0.1:8000', '[::1]:8000', 'localhost:8000']
    """
    names = {"127.0.0.1", "localhost", "[::1]"}
    if host not in ("127.0.0.1", "localhost", "::1"):
        names |= {host if ":" not in host else f"[{host}]", socket.gethostname(), socket.getfqdn()}
        found = socket.getaddrinfo(socket.gethostname(), None) if host in ("0.0.0.0", "::") else ()
        names |= {str(at[4][0]) if ":" not in str(at[4][0]) else f"[{at[4][0]}]" for at in found}
    return {f"{name}:{port}" for name in names}


class Guard:
    """Lets a request pass, or answers 403. The first request has the token and gets a cookie for the next ones."""

    def __init__(self, app: ASGIApp, token: str, hosts: set[str], cookie: str) -> None:
        self.app, self.token, self.hosts, self.cookie = app, token, hosts, cookie
        self._ticket = ""

    def ticket(self) -> str:
        """A token that opens the page once: all users of the machine can read it in the command line of the browser."""
        self._ticket = token_urlsafe(24)
        return self._ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {"content-security-policy": POLICY, **HEADERS}.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self.answer(scope)
        return await (self.app if answer is None else answer)(scope, receive, guarded)

    def answer(self, scope: Scope) -> Response | None:
        """None if the request may pass."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return PlainTextResponse("this server has another name", 403)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        linked = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if (
            scope["path"] == "/"
            and scope["method"] == "GET"
            and not origins
            and (self._same(given) or self._spent(given))
        ):
            return self._first(linked)
        if linked or any(origin != f"http://{hosts[0]}" for origin in origins):
            return PlainTextResponse("another site may not ask", 403)
        if scope["method"] not in ("GET", "HEAD") and not origins:
            return PlainTextResponse("only the page itself may ask", 403)
        if self._same(cookie_parser(headers.get("cookie", "")).get(self.cookie, "")):
            return None
        return PlainTextResponse("open the address that arno ui printed: it has a token", 403)

    def _first(self, linked: bool) -> Response:
        """The answer to the address with the token: the cookie, and a redirection to the page.

        linked: whether the user followed a link on another page, for example in a notebook. Then a browser would not
        send the new cookie with the redirected request. It sends the cookie if this server's own page loads the list.
        """
        answer = HTMLResponse(ONWARD) if linked else RedirectResponse("/", 303)
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return answer

    def _spent(self, given: str) -> bool:
        """Whether this is the ticket, which is then no longer valid."""
        if not self._ticket or not compare_digest(given.encode(), self._ticket.encode()):
            return False
        self._ticket = ""
        return True

    def _same(self, given: str) -> bool:
        return compare_digest(given.encode(), self.token.encode())
