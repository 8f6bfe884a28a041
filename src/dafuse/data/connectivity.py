"""A test of whether an address answers, which takes seconds."""

import threading
from contextlib import suppress

PROBE_SECONDS = 4.0


def reachable(url: str) -> bool:
    """Tell whether the address answers, in seconds: a name lookup alone may hang for a minute."""
    import urllib.request  # slow to import, and most commands ask nobody
    from http.client import HTTPException
    from urllib.error import HTTPError

    answers: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(url, method="HEAD")
        with suppress(OSError, HTTPException):
            with suppress(HTTPError):  # an answer, too
                urllib.request.urlopen(request, timeout=3.0).close()
            answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PROBE_SECONDS)
    return bool(answers)
