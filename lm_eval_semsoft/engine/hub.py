"""Is there a hub to ask? One quick question instead of half a minute of retries."""

from __future__ import annotations

import functools
import ssl
import threading
import urllib.error
import urllib.request

PROBE_SECONDS = 3.0  # how long one process waits, once, to learn that there is no network


@functools.cache
def hub_problem(endpoint: str) -> str | None:
    """Why ``endpoint`` cannot be reached, or None; asked once per process.

    ``datasets`` and ``huggingface_hub`` retry for some 25 s when there is no network. The question
    runs in a daemon thread because a name server that does not answer ignores socket timeouts.
    """
    answer: list[str | None] = []
    thread = threading.Thread(target=lambda: answer.append(_ask(endpoint)), daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answer[0] if answer else f"{endpoint} did not answer within {PROBE_SECONDS:.0f} s"


def _ask(endpoint: str) -> str | None:
    """One HEAD request, through the proxies of the environment; any answer at all is fine."""
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        urllib.request.urlopen(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):  # somebody is there; hub and urllib differ in CAs
            return None
        return f"{endpoint} cannot be reached ({reason})"
    return None
