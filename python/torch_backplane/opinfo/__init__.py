"""PyTorch's operator database as a conformance suite for plugins; `backplane opinfo` is its command."""
