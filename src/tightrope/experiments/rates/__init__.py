"""How fast the methods of papers 1, 2 and 5 converge, measured: `python -m tightrope.experiments.rates`."""
