"""What is solved: problems, constraints, data and parameters."""
