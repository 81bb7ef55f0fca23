"""Which hosts the client may ask: the hub's own and those that an operator names, whatever a redirect says.

Mirrors redirect big files to storage elsewhere; a redirect to a host that nobody chose is refused by name
before any connection is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

# The two public sites, and the storage to which they send the client (its source names aliyuncs.com).
PUBLIC = ("modelscope.cn", "modelscope.ai", "aliyuncs.com")


class AllowedHosts:
    """Host names, each with everything below it.

    Args:
        endpoint: the hub's address; its host is always allowed, and for a public site all of `PUBLIC`.
        more: hosts that an operator adds.
    """

    def __init__(self, endpoint: str, more: Sequence[str] = ()) -> None:
        own = host_of(endpoint)
        public = PUBLIC if _below(own, PUBLIC[:2]) else ()
        self.names = tuple(dict.fromkeys((own, *public, *(name.lower() for name in more))))

    def allows(self, url: str) -> bool:
        return _below(host_of(url), self.names)

    def __str__(self) -> str:
        return ", ".join(self.names)


def host_of(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()


def _below(host: str, names: Sequence[str]) -> bool:
    return any(host == name or host.endswith(f".{name}") for name in names)


def guard(session: Any, allowed: AllowedHosts, refusal: type[Exception]) -> list[str]:
    """Let a `requests` session speak to allowed hosts only; redirects pass here as well.

    Two things are done to each answer: its kind is remembered for messages, and the hash that some storage
    sends along is dropped. The client would believe it over the manifest, and it has been seen to be that of
    the empty file.

    Args:
        refusal: raised, with one sentence, for other hosts.

    Returns:
        a list that always holds what kind of content the last answer was, or nothing.
    """
    from requests.adapters import BaseAdapter

    last: list[str] = []

    class Guarded(BaseAdapter):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            if not allowed.allows(request.url):
                host = host_of(request.url)
                raise refusal(
                    f"the client was sent to {host}, which is none of the allowed hosts ({allowed})"
                )
            response = self.inner.send(request, *args, **kwargs)
            last[:] = [response.headers.get("Content-Type", "")]
            response.headers.pop("X-Linked-ETag", None)
            return response

        def close(self) -> None:
            self.inner.close()

    for scheme in ("https://", "http://"):
        session.mount(scheme, Guarded(session.get_adapter(scheme)))
    return last
