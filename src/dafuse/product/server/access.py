"""Who may do what: the token, compared in constant time, and addresses that need one."""

import hmac
import ipaddress
from dataclasses import dataclass

from dafuse.errors import DafuseError
from dafuse.product.server.limits import Refusal

LEAST = 8  # characters of a token


@dataclass(frozen=True)
class Access:
    token: str | None = None
    everywhere: bool = False  # predicting needs the token, too; else only teaching does

    def __post_init__(self) -> None:
        token = self.token
        if token is None and self.everywhere:
            raise DafuseError("what needs a token everywhere must have one")
        if token is not None and (
            len(token) < LEAST or not token.isascii() or not token.isprintable() or " " in token
        ):
            raise DafuseError(
                f"a token has {LEAST} characters or more: letters, digits and signs, no spaces"
            )

    def require(self, given: str | None) -> None:
        """Refuse whoever does not bear the token."""
        if self.token is None or not given:
            raise Refusal(401, "a token is needed: send it as Authorization: Bearer TOKEN")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refusal(401, "this is not the server's token")


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
