"""Problems: the objective, constraints, data and parameters."""
