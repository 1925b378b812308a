"""A whole deployment on one machine, as processes.

deployment  dealer, aggregators and clients as processes
processes   that cannot outlive their parent
whole       from a configuration to the summary, below a running event loop too
watch       what the runner shows while they work
summary     its summary, for people
"""
