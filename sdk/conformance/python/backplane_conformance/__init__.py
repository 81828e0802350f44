"""The conformance kit's runner: `backplane certify`. Needs Python alone, no torch."""

KIT_VERSION = "0.1.0"
