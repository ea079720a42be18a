"""Addresses of servers.

Where a host begins with ``/``, it is the path of a Unix socket. In a URL that path stands in place
of the host, percent-encoded, as requests-unixsocket, HTTPie and Docker's clients write it:
``http+unix://%2Frun%2Fagl.sock``.
"""

import ipaddress
from urllib.parse import quote, unquote, urlsplit

UNIX_SCHEME = "http+unix"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost" or host.endswith(".localhost") or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
