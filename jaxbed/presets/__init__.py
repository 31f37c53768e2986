"""Settings that runs start with: those of a data set, and those published for a method on it."""
