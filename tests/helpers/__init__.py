"""Shared by the tests; each file says what is in it."""
