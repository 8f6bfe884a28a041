"""The one error that users see: a sentence that says what is wrong and what to do."""


class DafuseError(Exception):
    """Bad input or a missing thing. The command line prints it as one line and exits with 2."""
