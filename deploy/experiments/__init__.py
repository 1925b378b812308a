"""What the papers report, repeated: a module for each experiment."""
