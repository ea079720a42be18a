"""Requests as no client sends them, as strategies of hypothesis."""

import base64
import copy
import functools
import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

TOKENS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "-0", "01", "1.", ".5", "0x10"),
    *("9" * 400, "-" + "9" * 5000, "9007199254740993", "18446744073709551616", "-1", "0", "1"),
    *("-9223372036854775809", "1.7976931348623157e308", "2.5", "1e3", "null", "true", "false"),
    *(r'"\ud83d"', r'"\udc00\ud83d"', r'"\u0000"', '"\u202e"', '"\ud83d"', r'"\x"', "'a'", '"'),
    *('""', '"latest"', '"search"', '"odd"', '"1"', '"NaN"', '"running"', '"../.."', '"a' + '"'),
    *("[]", "[null]", "{}", '{"":null}', '{"a":1,"a":2}', '{"__proto__":{}}', '["a",1]', "[[[]]]"),
    *(f'"{"a" * 70_000}"', "[" * 200 + "]" * 200, "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000),
    *("[" + "0," * 50_000 + "0]", "[" + "[]," * 50_000 + "[]]", "undefined", "/**/1", "1 1", ","),
    *("\x00", "\x1f"),
)
"""JSON, and what somebody could take for it."""

KINDS = (
    *("application/x-protobuf", "application/json; charset=utf-8"),
    *("application/json;charset=utf-16", "APPLICATION/JSON", "text/plain", "text/html"),
    *("multipart/form-data; boundary=x", "", ";", "*/*", "application/x-www-form-urlencoded"),
    *("application/xml", "application/json, text/plain", "\xff"),
)
ENCODINGS = ("br", "deflate", "zstd", "gzip, gzip", "GZIP", "gzip;q=0", "identity", "", "\xe9", "x")
EXTRAS = (
    *("Idempotency-Key: k", "Idempotency-Key: \xff", f"Idempotency-Key: {'k' * 9000}"),
    *("Idempotency-Key:", "AGL-Abandoned: 1", "Authorization: Bearer x", "Authorization: \xff"),
    *("Authorization: Basic :::", "Authorization: Bearer", "x-api-key: \xff"),
    *("Accept-Encoding: gzip", "Accept: \xff", "Accept: text/event-stream", "Host: \xff"),
    *("Host: a:b:c", "Host: [", "Host:", "Origin: null", "Origin: http://evil.example"),
    *("Expect: 100-continue", "Expect: x", "Upgrade: websocket"),
    *("Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk", "Connection: upgrade"),
    *("Connection: keep-alive, x", "traceparent: 00-" + "z" * 5000, "X-Forwarded-For: \xff"),
    *("Range: x", "x-stainless-read-timeout: NaN", "x-stainless-read-timeout: -1"),
    *("anthropic-version: \xff", "x-stainless-read-timeout: 1e999", "x-rollout-id: \xff"),
    *("Cookie: " + "a=b; " * 2000, "\r\n", " folded: x", "no colon", ": no name", "bad name: x"),
    *("a\x00b: c", "X: a\x00b", "\r\n".join(f"X-{n}: {n}" for n in range(99))),
    *("X: " + "x" * 70_000, "Content-Length: 3", "Content-Length: -1", "Content-Length: 1e3"),
    *("Content-Length: " + "9" * 30, "Content-Length:", "Transfer-Encoding: gzip, chunked"),
    *("Transfer-Encoding: identity", "Transfer-Encoding: x"),
)
VERBS = (
    *("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI", "get"),
)
STEPS = (
    *("latest", "search", "..", "%2e%2e", "%2F", "%00", "%ff", "%C3%28", "%ED%A0%80", "%", "%zz"),
    *("a%20b", "x" * 5000, "", "{}", "*", "\xff", "'", "a?b", "a#b", "%E2%80%AE", "ro-none", "1"),
)


@dataclass(frozen=True)
class Target:
    """A route."""

    verb: str
    path: str
    """Names of parameters in braces."""
    body: Any = None
    """What it would take: as JSON, with names of parameters as in the path, or bytes of protobuf;
    of a GET, the parameters of its query."""
    may_wait: bool = False
    """Whether an answer may rightly take longer than a test."""


class Attack:
    """What is sent.

    Args:
        target: To which route.
        sent: One piece after the other.
        is_whole: Whether it is HTTP, so that there has to be an answer.
    """

    def __init__(self, target: Target, sent: tuple[bytes, ...], is_whole: bool) -> None:
        self.target, self.sent, self.is_whole = target, sent, is_whole

    def __repr__(self) -> str:
        sent = b"".join(self.sent)
        shown = sent if len(sent) < 3000 else sent[:1500] + b" ... " + sent[-1500:]
        return f"{self.target.verb} {self.target.path}: {shown!r}"


@functools.cache
def bomb(size: int) -> bytes:
    """So many spaces, packed."""
    return gzip.compress(b" " * size, 9)


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what it is in, and its key or index there."""
    pairs = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    for key, inner in pairs:
        yield value, key
        yield from _nodes(inner)


def _token(draw: Draw) -> str:
    return draw(
        st.sampled_from(TOKENS)
        | st.integers().map(str)
        | st.floats().map(repr)
        | st.text(max_size=20).map(json.dumps)
        | st.integers(100, 1100).map(lambda depth: "[" * depth + "]" * depth)
    )


def _json(draw: Draw, valid: Any, ids: Mapping[str, str]) -> bytes:
    """A valid value, of which some places say something else."""
    value: Any = [copy.deepcopy(valid)]
    tokens: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        places = list(_nodes(value))
        if not places:
            break
        where, key = places[draw(st.integers(0, len(places) - 1))]
        hole = f"@{len(tokens)}@"
        how = draw(st.sampled_from(("put", "put", "put", "drop", "add", "wrap")))
        tokens.append(_token(draw))
        if how == "drop" and where is not value:
            del where[key]
        elif how == "add" and isinstance(where, dict):
            where[draw(st.sampled_from(("odd", "", "key", "limit", "\0", "__class__")))] = hole
        elif how == "wrap":
            where[key] = [where[key]]
        else:
            where[key] = hole
    text = json.dumps(value[0] if value else None)
    for name, known in ids.items():
        text = text.replace(f"{{{name}}}", known)
    for number, token in enumerate(tokens):
        text = text.replace(f'"@{number}@"', token)
    return text.encode("utf-8", "surrogatepass")


def _damaged(draw: Draw, data: bytes, times: int) -> bytes:
    """The same with bytes changed, inserted, removed and repeated."""
    for _ in range(times):
        at, junk = draw(st.integers(0, len(data))), draw(st.binary(min_size=1, max_size=9))
        how = draw(st.sampled_from(("set", "insert", "cut", "end", "twice")))
        kept = {"set": len(junk), "insert": 0, "cut": len(junk), "end": len(data), "twice": -at}
        rest = b"" if how == "end" else data[max(at + kept[how], 0) :]
        data = data[:at] + (junk if how in ("set", "insert") else b"") + rest
    return data[: 2**20]


def _body(draw: Draw, target: Target, ids: Mapping[str, str]) -> bytes:
    if isinstance(target.body, bytes):
        return _damaged(draw, target.body, draw(st.integers(0, 6)))
    data = _json(draw, target.body, ids)
    how = draw(st.sampled_from((*["plain"] * 12, "damaged", "random", "padded", "utf-16", "bom")))
    return {
        "plain": lambda: data,
        "damaged": lambda: _damaged(draw, data, 2),
        "random": lambda: draw(st.binary(max_size=300)),
        "padded": lambda: b" " * 2**20 + data,
        "utf-16": lambda: data.decode("utf-8", "replace").encode("utf-16"),
        "bom": lambda: b"\xef\xbb\xbf" + data,
    }[how]()


def _packed(draw: Draw, data: bytes) -> tuple[bytes, str | None]:
    """The body, and how it says that it is packed."""
    how = draw(
        st.sampled_from((*["not"] * 12, "gzip", "cut", "two", "more", "bomb", "zlib", "other"))
    )
    whole = gzip.compress(data, 1)
    if how == "not":
        return data, None
    if how == "other":
        return data, draw(st.sampled_from(ENCODINGS))
    return {
        "gzip": whole,
        "cut": whole[: draw(st.integers(0, len(whole)))],
        "two": whole * draw(st.integers(2, 500)),
        "more": whole + draw(st.binary(min_size=1, max_size=50)),
        "bomb": bomb(draw(st.sampled_from((2**20, 2**24, 2**26, 2**27)))),
        "zlib": zlib.compress(data),
    }[how], "gzip"


def _framed(draw: Draw, data: bytes) -> tuple[list[str], bytes, bool]:
    """Headers, what follows them, and whether the two belong together."""
    how = draw(
        st.sampled_from((*["length"] * 14, "chunked", "odd chunks", "short", "long", "both"))
    )
    if how == "length":
        return [f"Content-Length: {len(data)}"], data, True
    if how in ("short", "long"):
        size = len(data) + (9 if how == "short" else -min(len(data), 5))
        return [f"Content-Length: {size}"], data, False
    at = draw(st.integers(0, len(data)))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (data[:at], data[at:]) if one)
    end = b"0\r\n\r\n"
    if how == "odd chunks":
        odd = (b"0\r\nTrailer: x\r\n\r\n", b"-1\r\n\r\n", b"f" * 17 + b"\r\n", b"5;a=b\r\nabc", b"")
        end = draw(st.sampled_from(odd))
    lengths = ["Content-Length: 5"] if how == "both" else []
    return ["Transfer-Encoding: chunked", *lengths], chunks + end, how == "chunked"


def _query(draw: Draw, names: Mapping[str, Any]) -> str:
    pairs: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from((*names, "odd", "limit", "")))
        value = draw(
            st.sampled_from((*STEPS, "-1", "NaN", "1e999", "9" * 400, "null", "[]", "asc"))
        )
        pairs.append(f"{name}={value}")
    return f"?{'&'.join(pairs)}" if pairs else ""


@dataclass(frozen=True)
class Attempt:
    """What a request may be about."""

    ids: Mapping[str, str]
    """Name of a parameter -> what stands in its place."""
    tokens: Mapping[str, str]
    """Role -> token; that of ``admin`` opens everything, ``attempt`` and ``model`` are its own."""


def _credentials(draw: Draw, tokens: Mapping[str, str]) -> list[str]:
    """Headers with a token: mostly one that opens, else any, one that somebody made up, or none."""
    how = draw(st.sampled_from((*["admin"] * 12, *tokens, "claims", "Basic", "damaged", "none")))
    if how == "none":
        return []
    if how == "claims":
        shown = [tokens["attempt"], *draw(st.lists(st.sampled_from(STEPS), max_size=2))]
        return [f"Authorization: Bearer {tokens['runner']}", f"AGL-Attempts: {','.join(shown)}"]
    if how == "Basic":
        packed = base64.b64encode(b"agl:" + tokens["admin"].encode())
        return [f"Authorization: Basic {_damaged(draw, packed, 1).decode('latin-1')}"]
    if how == "damaged":
        token = draw(st.sampled_from(sorted(tokens.values()))).encode()
        forged = _damaged(draw, token, 2).decode("latin-1").translate({10: " ", 13: " "})
        return [f"{draw(st.sampled_from(('Authorization: Bearer', 'x-api-key:')))} {forged}"]
    return [f"Authorization: Bearer {tokens[how]}"]


@st.composite
def attacks(draw: Draw, targets: tuple[Target, ...], attempts: tuple[Attempt, ...]) -> Attack:
    """A request to one of these routes."""
    attempt = draw(st.sampled_from(attempts))
    target = draw(st.sampled_from(targets))
    verb, is_whole = target.verb, True
    if draw(st.integers(0, 11)) == 0:
        verb = draw(st.sampled_from(VERBS))
    path = target.path
    for name, known in {**attempt.ids, "token": attempt.tokens["model"]}.items():
        if f"{{{name}}}" in path:
            step = known if draw(st.integers(0, 2)) else draw(st.sampled_from(STEPS))
            path = path.replace(f"{{{name}}}", step)
    body, encoding, headers = b"", None, []
    if target.verb == "GET":
        path += _query(draw, target.body or {})
    else:
        body, encoding = _packed(draw, _body(draw, target, attempt.ids))
        kind = "application/x-protobuf" if isinstance(target.body, bytes) else "application/json"
        kind = draw(st.sampled_from(KINDS)) if draw(st.integers(0, 9)) == 0 else kind
        headers = [f"Content-Type: {kind}"] * draw(st.sampled_from((1, 1, 1, 1, 1, 1, 0, 2)))
        headers += [] if encoding is None else [f"Content-Encoding: {encoding}"]
    if body or draw(st.booleans()):
        framing, body, is_whole = _framed(draw, body)
        headers += framing
    headers += (credentials := _credentials(draw, attempt.tokens))
    is_whole = is_whole and all(line.isprintable() for line in credentials)
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        headers.insert(draw(st.integers(0, len(headers))), draw(st.sampled_from(EXTRAS)))
        is_whole = False
    version = draw(st.sampled_from((*["1.1"] * 20, "1.0", "2.0", "9")))
    is_whole = is_whole and verb == target.verb and version == "1.1" and path.isascii()
    host = ["Host: localhost"] if draw(st.integers(0, 19)) else []
    lines = [f"{verb} {path} HTTP/{version}", *host, *headers]
    sent = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
    cuts = sorted(draw(st.lists(st.integers(1, len(sent)), max_size=3)))
    edges = [0, *cuts, len(sent)]
    pieces = [sent[begin:end] for begin, end in itertools.pairwise(edges)]
    return Attack(target, tuple(piece for piece in pieces if piece), is_whole)
