"""Whether a server listens, known in seconds: clients of Ray and MLflow would retry for minutes, or for ever."""

from __future__ import annotations

import socket

SECONDS = 2.0


def unreachable(host: str, port: int) -> str | None:
    """Why nothing answers at host:port, or None where something does."""
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    except (OverflowError, UnicodeError) as error:  # of a port or a name that cannot be
        return str(error)
    return None
