"""Whether a server listens."""

import socket

from runner.reach import unreachable


def test_what_listens_is_reached_and_no_other_number_for_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert unreachable("127.0.0.1", port) is None
        assert unreachable("127.0.0.1", port + (1 << 16)) == "a port is a number from 1 to 65535"
    assert unreachable("127.0.0.1", port) == "Connection refused"
    assert unreachable("127.0.0.1", 0) == unreachable("127.0.0.1", -1) == "a port is a number from 1 to 65535"
