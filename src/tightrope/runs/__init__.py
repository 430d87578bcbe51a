"""Runs: the stepper, the compiled loop, recording, the answer, checkpoints and results."""
