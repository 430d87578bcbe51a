"""The sections of `benchmarks/defaults.py`."""
