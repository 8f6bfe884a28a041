"""Small parts of messages."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 image", "2,000 images"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
