"""Files at URLs, by fsspec: whole, in part, or as a list. Nothing is imported before it is needed.

http:// and https:// need `dafuse[remote]`, as s3:// does; other stores that fsspec knows need its
package for them. fsspec and the libraries below it connect, and try again where they do.
"""

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import IO, Any

from dafuse.errors import DafuseError

URL = re.compile("([a-zA-Z][a-zA-Z0-9+.-]+)://")
SCHEMES = ("https", "http", "s3", "gs", "gcs", "abfs", "az")
STREAMED = ("https", "http")  # which list no folders
TIMEOUT = 60.0  # seconds in which a server must go on answering
BLOCK = 2**20  # bytes that are asked for together where a file is read through


class ConnectionLost(DafuseError):
    """A server that does not answer, which another attempt may find again."""


def is_url(text: object) -> bool:
    return isinstance(text, str) and URL.match(text) is not None


def lists_folders(url: str) -> bool:
    return url.partition("://")[0].lower() not in STREAMED


def read_whole(url: str, most: int) -> bytes:
    """Return the file at the URL; raise ValueError if it has more bytes than that."""
    with _connected(url) as (files, path), _opened(files, path, {}) as file:
        content = _at_most(file, most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes; save it smaller")
    return content


def read_part(url: str, start: int, size: int) -> bytes:
    """Return so many bytes of the file at the URL, from a place on."""
    content = _part(url, start, size) if size else b""
    if len(content) != size:
        raise DafuseError(f"{url} was changed, or its server sends something else: begin again")
    return content


@contextmanager
def read_through(url: str) -> Iterator[IO[bytes]]:
    """Open a file that is read mostly from its beginning to its end, with places left out."""
    if not lists_folders(url) and len(_part(url, 0, 1)) > 1:
        raise DafuseError(
            f"the server of {url} sends whole files only, and a tar is read in parts: "
            "copy it to a disk first"
        )
    with (
        _connected(url) as (files, path),
        files.open(path, "rb", block_size=BLOCK, cache_type="readahead") as file,
    ):
        yield file


def _part(url: str, start: int, size: int) -> bytes:
    """Return so many bytes, or one more where a server sends too many."""
    with _connected(url) as (files, path):
        if lists_folders(url):
            found: bytes = files.cat_file(path, start=start, end=start + size)
            return found
        header = {"headers": {"Range": f"bytes={start}-{start + size - 1}"}}
        with _opened(files, path, header) as file:
            return _at_most(file, size + 1)


def _opened(files: Any, path: str, how: dict[str, Any]) -> Any:
    """Open a file to be read from its beginning; by the web in one request."""
    streamed = not lists_folders(path)  # its path is its URL
    # a size keeps fsspec from asking for it first; a stream has no use for it
    return files.open(path, "rb", **({"block_size": 0, "size": 1, **how} if streamed else {}))


def _at_most(file: IO[bytes], most: int) -> bytes:
    pieces = []
    while most > 0 and (piece := file.read(min(BLOCK, most))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def files_below(url: str) -> list[str]:
    """Return the URLs of all files below a folder, in ASCII order."""
    _require_lists(url)
    with _connected(url) as (files, path):
        return sorted(files.unstrip_protocol(one) for one in files.find(path))


def matching(pattern: str) -> list[str]:
    """Return the URLs that a pattern with stars matches, in ASCII order."""
    _require_lists(pattern)
    with _connected(pattern) as (files, path):
        return sorted(files.unstrip_protocol(one) for one in files.glob(path))


def _require_lists(url: str) -> None:
    if not lists_folders(url):
        raise DafuseError(
            f"{url}: a web server does not list its files: name tars, such as "
            "https://host/photos-{000..012}.tar, or a .csv of URLs"
        )


@contextmanager
def _connected(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL, and the path there; say what is wrong with either."""
    files, path = file_system(_scheme(url)), url
    try:
        yield files, files._strip_protocol(path)
    except (DafuseError, ValueError, FileNotFoundError, PermissionError, tarfile.TarError):
        raise
    except Exception as error:  # each store has errors of its own
        if getattr(error, "status", 0) in (401, 403):
            raise PermissionError(url) from None
        if "Credential" in type(error).__name__:  # of botocore, google.auth and azure
            raise _no_keys(url) from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConnectionLost(
            f"the connection to {url} was lost, or there is none ({reason}): give the same command "
            "again when it is back"
        ) from None


def _no_keys(url: str) -> DafuseError:
    where = "as its store wants them"
    if _scheme(url) == "s3":
        where = "by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in ~/.aws/credentials"
    return DafuseError(f"no keys were found for {url}: give them {where}")


def _scheme(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES or "::" in url:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise DafuseError(f"{url}: images are read from {known}, or from a disk")
    return scheme


@cache
def file_system(scheme: str) -> Any:
    """Return fsspec's file system of a scheme, made once."""
    try:
        import fsspec
    except ImportError:
        raise _lacks("fsspec", scheme) from None
    how: dict[str, Any] = {}
    try:
        if scheme in STREAMED:
            from aiohttp import ClientTimeout

            how = {"client_kwargs": {"timeout": ClientTimeout(sock_connect=20, sock_read=TIMEOUT)}}
        return fsspec.filesystem(scheme, **how)
    except ImportError as error:
        raise _lacks(error.name or str(error), scheme) from None


def _lacks(package: str, scheme: str) -> DafuseError:
    extra = "'dafuse[remote]'" if scheme in (*STREAMED, "s3") else f"'fsspec[{scheme}]'"
    return DafuseError(f"{scheme}:// needs {package}, which is not installed: pip install {extra}")
