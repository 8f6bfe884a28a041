"""Small pieces of messages to people."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts: "1 image", "2,000 images"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
