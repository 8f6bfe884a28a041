"""A grammar of requests that nobody should send: every part is now right and now wrong.

A request has the token only where it must be refused for another reason. No request may change the
model or be answered by a 500.
"""

import io
import struct
import zlib
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image

from faults.asking import BOUNDARY, form, request

PATHS = {  # and how each may be asked
    "/predict": "POST",
    "/classes": "GET",
    "/history": "GET",
    "/healthz": "GET",
    "/metrics": "GET",
    "/": "GET",
    "/docs": "GET",
    "/openapi.json": "GET",
    "/page/page.js": "GET HEAD",
    "/page/../../app.py": "GET",
    "/page/%2e%2e%2fapp.py": "GET",
    "/learn": "GET POST",
    "/undo": "POST",
    "/export": "GET",
    "/classes/NAME": "DELETE",
    "/classes/NAME/images": "POST DELETE",
    "/classes/NAME/rename": "POST",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
NAMES = (
    "cat", "a%00b", "%2e%2e", "..%2f..%2fetc", "%ff%fe", "%E2%80%AE", "unknown", "%20", "%0d%0aX:1",
    "%1b[31m", "c" * 300, "%F0%9F%90%88", "a/b", "%25", "-y", "{name}", "'%20OR%201=1--", "$(id)",
)  # fmt: skip
QUERIES = (
    "top=-1", "top=1e9", "top=" + "9" * 500, "top=1&top=x", "flip=maybe", "for_good=2", "to=",
    "to=" + "x" * 5000, "to=a%00", "version=%ff", "version=" + "1" * 400, "int8=", "&&&=", "%", "?",
    "a[]=1&a[]=2", "top=٣", "token=x",
)  # fmt: skip
HOSTS = (
    "evil.example", "evil.example:80", "localhost.evil.example", "", "localhost:80:80", "0.0.0.0",
    "[::2]", "[::1", "localhost, evil.example", "x" * 3000, "127.0.0.1.evil.example", "\x80",
)  # fmt: skip
TOKENS = (
    "Bearer", "Bearer ", "Bearer x", "Bearer " + "a" * 7000, "Basic eDp5", "bearer \xff\xfe",
    "Bearer null", "Bearer undefined", "Bearer {token}x", "Bearer {half}", "token {token}",
    "{token}",
)  # fmt: skip
KINDS = (
    f"multipart/form-data; boundary={BOUNDARY}", "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=" + "x" * 5000, "multipart/form-data; boundary=\xff",
    'multipart/form-data; boundary="a', "multipart/mixed; boundary=storm", "application/json",
    "application/x-www-form-urlencoded", "image/png", "text/plain; charset=utf-99", ";;;", "",
)  # fmt: skip
OTHERS = (
    "Expect: 100-continue", "Connection: close", "Connection: upgrade\r\nUpgrade: websocket",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA",
    "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked", "Range: bytes=0-0,5-,-1",
    "Range: bytes=99999999999-", "If-None-Match: *", "If-Modified-Since: never",
    "Cookie: " + "a=b;" * 900,
    "X-Forwarded-For: 127.0.0.1", "X-HTTP-Method-Override: DELETE", "Origin: null", "Te: trailers",
    "Content-Encoding: gzip", "Accept: " + "*/*," * 999, " folded: x", "no colon", ": no name",
    "X\0: y", "X: \0y", "X: \x0by", "Content-Length : 3", "A" * 70_000 + ": b",
)  # fmt: skip
LENGTHS = ("-1", "+5", "0x10", "5, 5", "5, 6", "1e3", "9" * 40, "", " ", "5 5", "٣")


@dataclass(frozen=True)
class Hostile:
    """Bytes to send."""

    sent: bytes
    is_whole: bool = True  # else the server may wait for the rest
    must_be_refused: bool = False  # by a status of 400 or more


def hostile(random: Random, token: str) -> Hostile:
    """The next request of this generator."""
    kind = random.choices(
        (_mixed, _with_token, _noise, _chunked, _picture, _cut, _pipelined, _giant),
        (50, 12, 8, 8, 12, 5, 4, 0.5),
    )[0]
    return kind(random, token)


def _mixed(random: Random, token: str) -> Hostile:
    """A line and headers of which each may be anything, and some body."""
    path, methods = random.choice(list(PATHS.items()))
    method = random.choice(methods.split() if random.random() < 0.7 else METHODS)
    path = path.replace("NAME", random.choice(NAMES))
    if random.random() < 0.15:
        path = random.choice(
            (
                path * 50, "//" + path, "http://evil.example" + path, "*", path + "/.",
                path.upper(), "\\" + path, path + "\t", path + ";x", "/" * 9000,
            )
        )  # fmt: skip
    if random.random() < 0.4:
        path += "?" + "&".join(random.choices(QUERIES, k=random.randint(1, 3)))
    if random.random() < 0.06:
        method = random.choice((method.lower(), "", "GET GET", "\x00", "M" * 2000, "G\tT", "PRI"))
    version = "HTTP/1.1" if random.random() < 0.9 else random.choice(
        ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "http/1.1", "HTTP/1.1.1", "", "HTTP/9" * 99)
    )  # fmt: skip
    lines = [f"{method} {path} {version}"]
    lines += _hosts(random)
    if random.random() < 0.5:
        given = random.choice(TOKENS).format(token=token, half=token[:-1])
        lines.append(f"Authorization: {given}")
    if random.random() < 0.6:
        lines.append(f"Content-Type: {random.choice(KINDS)}")
    lines += random.choices(OTHERS, k=random.choice((0, 0, 0, 0, 1, 2)))
    body = _body(random)
    is_whole = True
    if body or random.random() < 0.1:
        stated = len(body)
        if random.random() < 0.1:
            stated = random.choice((0, len(body) // 2, len(body) + 7))
            is_whole = stated <= len(body)
        lines.append(f"Content-Length: {stated}")
        if random.random() < 0.07:
            lines[-1] = f"Content-Length: {random.choice(LENGTHS)}"
            is_whole = False
    random.shuffle(shuffled := lines[1:])
    head = "\r\n".join([lines[0], *shuffled, "", ""]).encode("utf-8", "replace")
    return Hostile(head + body, is_whole)


def _hosts(random: Random) -> list[str]:
    chance = random.random()
    if chance < 0.75:
        return ["Host: localhost"]
    if chance < 0.8:
        return []
    if chance < 0.85:
        return ["Host: localhost", f"Host: {random.choice(HOSTS)}"]
    return [f"Host: {random.choice(HOSTS)}"]


def _body(random: Random) -> bytes:
    chance = random.random()
    if chance < 0.3:
        return b""
    if chance < 0.4:
        return random.randbytes(random.randint(1, 3000))
    if chance < 0.5:
        depth = random.choice((3, 5000))
        return b'{"a":' * depth + b"1" + b"}" * random.choice((depth, 0))
    if chance < 0.55:
        return b"a=b&" * random.randint(1, 2000)
    return _form(random)


def _form(random: Random) -> bytes:
    """A form of files, often damaged."""
    files = [_file(random) for _ in range(random.choice((0, 1, 1, 2, 3, 70)))]
    _, body = form(files)
    harm = random.random()
    if harm < 0.3:
        return body[: random.randint(0, len(body))]
    if harm < 0.5 and body:
        where = random.randrange(len(body))
        return body[:where] + random.randbytes(random.randint(1, 20)) + body[where + 1 :]
    if harm < 0.6:
        return body.replace(b"filename=", random.choice((b"filename*=", b"name=", b"")))
    if harm < 0.65:
        return body.replace(b"\r\n\r\n", b"\r\n" + b"X-A: b\r\n" * 2000 + b"\r\n", 1)
    return body


def _file(random: Random) -> tuple[str, bytes]:
    name = random.choice(("a.png", "../../a", "a\u202eb.png", "n" * 500, "", "\x1b[2J", "con"))
    return name, random.choice((_junk, _bomb, _small, _polyglot, _cut_picture))(random)


def _junk(random: Random) -> bytes:
    starts = (
        b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\0\0\0\0WEBP",
        b"II*\0", b"%!PS-Adobe", b"\0\0\0\x18ftypheic", b"BM", b"P6\n99999 99999\n255\n", b"8BPS",
        b"<svg",
    )  # fmt: skip
    return random.choice(starts) + random.randbytes(random.randint(0, 300))


def _small(random: Random) -> bytes:
    mode = random.choice(("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"))
    size = random.choice(((1, 1), (1, 700), (30, 20)))
    file = io.BytesIO()
    Image.new(mode, size).save(file, "TIFF" if mode in ("CMYK", "F") else "PNG")
    return file.getvalue()


def _cut_picture(random: Random) -> bytes:
    noise = np.random.default_rng(random.randrange(2**32)).integers(0, 256, (24, 24, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, random.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP")))
    whole = bytearray(file.getvalue())
    for _ in range(random.randint(0, 4)):
        whole[random.randrange(len(whole))] ^= 1 << random.randrange(8)
    return bytes(whole[: random.randint(1, len(whole))])


def _bomb(random: Random) -> bytes:
    """A PNG of a few bytes that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    side = random.choice((0, 20_000, 60_000, 2**31 - 1))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def _polyglot(random: Random) -> bytes:
    return _small(random) + b"PK\x03\x04<script>alert(1)</script>" + random.randbytes(50)


def _picture(random: Random, token: str) -> Hostile:
    """A form as it should be, of files that are not."""
    kind, body = form([_file(random) for _ in range(random.choice((1, 2, 4)))])
    return Hostile(request("POST", "/predict", kind, body))


def _with_token(random: Random, token: str) -> Hostile:
    """Return a request that has the token and is to be refused all the same."""
    bearing = {"Authorization": f"Bearer {token}"}
    kind, junk = form([("x.png", b"no picture" + random.randbytes(60))])
    asked = random.choice(
        (
            ("POST", "/learn", {}, b""),  # nothing is staged
            ("POST", "/learn?flip=true", {}, b""),
            ("POST", "/undo?version=99-nothing", {}, b""),
            ("POST", "/classes/cat/images", kind, junk),
            ("POST", "/classes/cat/images", {"Content-Type": "text/plain"}, b"a" * 100),
            ("POST", "/classes/unknown/images", *form([("1.png", _small(random))])),
            ("POST", "/classes/%1b%5b31m/images", *form([("1.png", _small(random))])),
            ("DELETE", "/classes/nothing", {}, b""),
            ("DELETE", "/classes/nothing?for_good=true", {}, b""),
            ("DELETE", "/classes/%00/images", {}, b""),
            ("POST", "/classes/nothing/rename?to=other", {}, b""),
            ("POST", "/classes/nothing/rename", {}, b""),
            ("POST", "/classes/" + "n" * 3000 + "/rename?to=a%0ab", {}, b""),
        )
    )
    method, path, headers, body = asked
    return Hostile(request(method, path, {**bearing, **headers}, body), must_be_refused=True)


def _noise(random: Random, token: str) -> Hostile:
    """No HTTP at all."""
    sent = random.choice(
        (
            random.randbytes(random.randint(1, 500)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),  # TLS
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\r\n" * random.randint(1, 3000),
            b"GET /" + b"a" * 100_000,
            b"EHLO x\r\nMAIL FROM:<a@b>\r\n\r\n",
        )
    )
    return Hostile(sent, is_whole=False)


def _chunked(random: Random, token: str) -> Hostile:
    """A body in chunks, whose lengths are right or not."""
    path = random.choice(("/predict", "/learn", "/classes/cat/images", "/healthz"))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: {KINDS[0]}\r\n"
    )
    if random.random() < 0.2:
        head += "Content-Length: 5\r\n"
    body, pieces, is_whole = _form(random), [], True
    while body:
        size = random.randint(1, 400)
        pieces.append(b"%x\r\n%b\r\n" % (len(body[:size]), body[:size]))
        body = body[size:]
    pieces.append(b"0\r\n\r\n")
    if random.random() < 0.4:
        wrong = random.choice(
            (b"zz\r\n", b"-5\r\n", b"f" * 30 + b"\r\n", b"5;" + b"x" * 30_000, b"")
        )
        pieces[random.randrange(len(pieces))] = wrong
        is_whole = False
    return Hostile(head.encode() + b"\r\n" + b"".join(pieces), is_whole)


def _cut(random: Random, token: str) -> Hostile:
    whole = _mixed(random, token).sent
    return Hostile(whole[: random.randint(1, len(whole))], is_whole=False)


def _pipelined(random: Random, token: str) -> Hostile:
    """Several requests at once; the answers to all but the first are not looked at."""
    return Hostile(b"".join(_mixed(random, token).sent for _ in range(random.randint(2, 9))), False)


def _giant(random: Random, token: str) -> Hostile:
    """Return a request of more than it may have, said beforehand or not."""
    if random.random() < 0.5:
        lines = ["POST /predict HTTP/1.1", "Host: localhost", f"Content-Type: {KINDS[0]}"]
        lines.append(f"Content-Length: {2**50}")
        return Hostile("\r\n".join([*lines, "", ""]).encode(), is_whole=False)
    return Hostile(request("POST", "/predict", {"Content-Type": KINDS[0]}, bytes(34 * 2**20)))
