"""Small optimization problems that are solved inside larger ones: mathematics that knows no problem of the user."""
