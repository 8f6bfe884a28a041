"""A web server of a folder, on this machine: whole files or parts, and a list of them as S3 has."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse
from xml.sax.saxutils import escape


class FileServer(ThreadingHTTPServer):
    """Serves what is below `root`; counts requests; can refuse parts, and break off."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.gives_parts = True
        self.broken_after = 1_000_000  # requests, from which on none is answered
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        asked = urlparse(self.path)
        self.server.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        if len(self.server.requests) > self.server.broken_after:
            self.close_connection = True
            return
        if "list-type" in asked.query:
            self._send(200, self._listed(asked.path, parse_qs(asked.query)), {}, with_body)
            return
        file = self.server.root / unquote(asked.path).lstrip("/")
        if not file.is_file():
            self._send(404, b"", {}, with_body)
            return
        content, headers = file.read_bytes(), {"Last-Modified": "Thu, 19 Nov 2026 00:00:00 GMT"}
        wanted = self.headers.get("Range", "")
        if not self.server.gives_parts or not wanted.startswith("bytes="):
            accepts = {"Accept-Ranges": "bytes"} if self.server.gives_parts else {}
            self._send(200, content, headers | accepts, with_body)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content)), len(content) - 1)
        place = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        self._send(206, content[start : end + 1], headers | place, with_body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _listed(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """Return the answer of S3 to ListObjectsV2."""
        top = self.server.root / bucket.strip("/")
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        keys = [one.relative_to(top).as_posix() for one in sorted(top.rglob("*")) if one.is_file()]
        found, folders = "", set()
        for key in keys:
            rest = key.removeprefix(prefix)
            if key.startswith(prefix) and delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            elif key.startswith(prefix):
                size = (top / key).stat().st_size
                found += (
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>&quot;0&quot;"
                    "</ETag><LastModified>2026-11-19T00:00:00.000Z</LastModified></Contents>"
                )
        found += "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket.strip('/')}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>{found}"
            "</ListBucketResult>"
        ).encode()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(root: Path) -> Iterator[FileServer]:
    with FileServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
