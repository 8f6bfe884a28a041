"""An image that is no file of its own on this machine: at a URL, or inside a tar."""

import os
from dataclasses import dataclass

from dafuse.data.remote import is_url, read_part, read_whole

MOST_BYTES = 2**28  # of one image: it is held in memory


@dataclass(frozen=True, slots=True)
class StoredImage:
    """Place of an image that is read each time it is needed."""

    place: str  # the URL of the image or of its tar; or the path of a tar
    member: str = ""  # its name in the tar
    start: int = 0  # of its bytes in the tar
    size: int = 0

    def __str__(self) -> str:
        return f"{self.place}: {self.member}" if self.member else self.place

    @property
    def is_remote(self) -> bool:
        return is_url(self.place)

    @property
    def state(self) -> str:
        """Return what tells whether it is still the same, as far as that is known without it."""
        at = f"{self.start} {self.size}"
        if self.is_remote:
            return at
        state = os.stat(self.place)
        return f"{at} {state.st_size} {state.st_mtime_ns}"

    def content(self) -> bytes:
        """Return the bytes of its file; raise OSError or ValueError if there are none to be had."""
        if self.size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes; save it smaller")
        if not self.member:
            return read_whole(self.place, MOST_BYTES)
        if self.is_remote:
            return read_part(self.place, self.start, self.size)
        with open(self.place, "rb") as tar:
            tar.seek(self.start)
            return tar.read(self.size)
