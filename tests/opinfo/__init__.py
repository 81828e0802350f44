"""PyTorch's operator database as a conformance suite for plugins; scripts/opinfo.py is its command."""
