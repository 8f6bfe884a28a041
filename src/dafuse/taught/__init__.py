"""Methods as people teach them."""

import os

# Read when torch is loaded: threads that wait in a loop slow a lesson down on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
