"""PRECAD: federated learning that is private and robust, over two servers that need not be trusted alone."""
