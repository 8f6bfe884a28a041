"""Methods as people teach them."""
