"""Fuzzers: programs and graphs that nobody wrote, compared with what PyTorch and Python say."""
