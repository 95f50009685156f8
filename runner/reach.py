"""Whether a server listens, known in seconds: clients of Ray and MLflow would retry for minutes, or for ever."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import urlsplit

SECONDS = 2.0


def unreachable(host: str, port: int) -> str | None:
    """Why nothing answers at host:port, or None where something does."""
    if not 0 < port < 1 << 16:  # the system would take it modulo 65536, where somebody else may listen
        return "a port is a number from 1 to 65535"
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    except (OverflowError, UnicodeError) as error:  # of a port or a name that cannot be
        return str(error)
    return None


def unanswered(url: str, seconds: float) -> str | None:
    """Why no HTTP server answers at `url`, or None where one does, whatever its status. A stopped process takes
    connections and never answers."""
    parts = urlsplit(url)
    try:
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            # Whose certificate it is, is the client's business: nothing is sent here.
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(
                parts.netloc.rpartition("@")[2], timeout=seconds, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.netloc.rpartition("@")[2], timeout=seconds)
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/health")
            connection.getresponse()
        finally:
            connection.close()
    except TimeoutError:
        return f"no answer in {seconds:g} s"
    except (OSError, http.client.HTTPException) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    except (OverflowError, UnicodeError) as error:
        return str(error)
    return None
