"""Holds the library of the plugin @NAME@; torch.compile finds it by the entry point of this package."""
