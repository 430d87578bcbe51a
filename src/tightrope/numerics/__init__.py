"""Small numerical problems solved inside larger ones; nothing here knows the user's problem."""
