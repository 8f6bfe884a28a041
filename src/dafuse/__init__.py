"""dafuse: an image classifier that keeps learning new classes and keeps no old images."""

__version__ = "0.1.0"
