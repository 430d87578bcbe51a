"""Values and derivatives of a problem on one flat vector."""
