"""Tests of, and with, torch_backplane.opinfo."""
