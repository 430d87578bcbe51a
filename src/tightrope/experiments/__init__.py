"""The papers' claims as experiments, one folder each."""
