"""Addresses of servers.

Where a host begins with ``/``, it is the path of a Unix socket. In a URL that path stands in place
of the host, percent-encoded, as requests-unixsocket, HTTPie and Docker's clients write it:
``http+unix://%2Frun%2Fagl.sock``.
"""

import ipaddress
import socket
from urllib.parse import quote, unquote, urlsplit

UNIX_SCHEME = "http+unix"
ELSEWHERE = "192.0.2.1"
"""An address of no machine, which is reached as others are."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost" or host.endswith(".localhost") or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address(there: str = ELSEWHERE) -> str:
    """The address at which ``there`` reaches this machine; loopback when there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((there, 9))  # sends nothing: it only picks the outgoing interface
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def url_of(host: str, port: int) -> str:
    """The URL of a server."""
    if host.startswith("/"):
        return f"{UNIX_SCHEME}://{quote(host, safe='')}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def socket_path(url: str) -> str | None:
    """The path of the Unix socket in a URL; None where it has none."""
    parts = urlsplit(url)
    if parts.scheme != UNIX_SCHEME:
        return None
    path = unquote(parts.netloc.rpartition("@")[2])
    return path if path.startswith("/") else None
