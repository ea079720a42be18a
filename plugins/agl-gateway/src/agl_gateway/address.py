"""Where a server listens, known before it does."""

import socket
import weakref

from agl_http.addresses import own_address, url_of
from agl_http.server import bind


class Address:
    """Host and port of a server that may start later; port 0 becomes a free one when needed."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._reserved: socket.socket | None = None

    def url(self) -> str:
        """How others reach it; a free port is chosen now, and kept from others until ``bind``."""
        if not self.port:
            self._reserved = bind(self.host, 0, listen=False)
            self.port = self._reserved.getsockname()[1]
            weakref.finalize(self, self._reserved.close)
        host = own_address() if self.host in ("0.0.0.0", "::", "") else self.host
        return url_of(host, self.port)

    def bind(self) -> socket.socket:
        """A socket that listens there.

        Raises:
            ConfigError: The port is in use.
        """
        sock = bind(self.host, self.port)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        return sock
