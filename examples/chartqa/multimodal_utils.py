"""Images as parts of a message: the image itself in a data URL, or the address of a local file."""

import base64
import mimetypes
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

ImageUrls = Literal["data", "file"]
"""``data`` is taken by every server. ``file`` is shorter, and for a server that reads files of this
machine: vLLM with ``--allowed-local-media-path``."""


def image_url(path: Path, urls: ImageUrls = "data") -> str:
    """The address under which a model gets an image."""
    if urls == "file":
        return path.resolve().as_uri()
    kind = mimetypes.guess_type(path)[0]
    if kind is None or not kind.startswith("image/"):
        raise ValueError(f"{path}: expected the name of an image, with an ending like .png")
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def message(text: str, path: Path | None = None, urls: ImageUrls = "data") -> Any:
    """The content of a user's message: the text, with an image after it if there is one."""
    if path is None:
        return text
    url = image_url(path, urls)
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]


def read_image(url: str) -> bytes:
    """The image at a data URL or at the address of a local file."""
    address = urlsplit(url)
    if address.scheme == "file":
        return Path(unquote(address.path)).read_bytes()
    head, comma, data = url.partition(",")
    if address.scheme != "data" or not comma or not head.endswith(";base64"):
        raise ValueError(f"expected data:...;base64,... or file:///..., got {url[:60]!r}")
    return base64.b64decode(data, validate=True)
