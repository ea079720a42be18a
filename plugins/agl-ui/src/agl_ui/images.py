"""Images in messages: only what stands in the message itself, is a raster, and is not too large.

An SVG is a program, and an image of another site tells that site who looks; neither is shown.
"""

import base64
import binascii
from dataclasses import dataclass

KINDS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""What is shown -> how its bytes begin."""
MOST_INLINE = 1_000_000
"""Characters of an address that stands in a page; what is larger is a click away."""
MOST_BYTES = 32 * 1024 * 1024
"""Of an image at all."""


@dataclass(frozen=True)
class Image:
    """An image as it is shown."""

    source: str
    """What a page loads; empty where it loads nothing."""
    link: str
    """Where it is by itself; empty where it is nowhere."""
    problem: str
    """Why it is not shown; empty where it is."""


def image_of(url: str, link: str) -> Image:
    """What a page shows of an image.

    Args:
        url: As the message has it.
        link: Where the page would have it by itself.
    """
    if not url.startswith("data:"):
        return Image("", "", f"An image of elsewhere is not loaded: {url[:200]}")
    if len(url) > MOST_INLINE:
        return Image("", link, f"An image of {len(url) * 3 // 4:,} bytes")
    try:
        kind, data = decoded(url)
    except ValueError as error:
        return Image("", "", str(error))
    return Image(f"data:{kind};base64,{base64.b64encode(data).decode()}", link, "")


def decoded(url: str) -> tuple[str, bytes]:
    """The kind and the bytes of a data URL.

    Raises:
        ValueError: It is none of ``KINDS``, is no base64, too large, or holds something else.
    """
    head, comma, body = url[: MOST_BYTES * 4 // 3 + 200].partition(",")
    kind, _, coding = head.removeprefix("data:").lower().partition(";")
    if kind not in KINDS or coding.strip() != "base64" or not comma:
        raise ValueError(f"An image of kind {kind[:40]!r} is not shown; rasters in base64 are")
    if len(url) > MOST_BYTES * 4 // 3 + 200:
        raise ValueError(f"An image of more than {MOST_BYTES:,} bytes is not shown")
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("An image that is no base64 is not shown") from None
    if not data.startswith(KINDS[kind]):
        raise ValueError(f"What calls itself {kind} is another thing, and is not shown")
    return kind, data
