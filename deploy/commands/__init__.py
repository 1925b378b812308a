"""The commands of `precad`, a module for each kind."""
