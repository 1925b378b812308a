"""A Flower app as `flwr new` lays it out: it knows nothing of precad."""
