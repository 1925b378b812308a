"""A whole deployment on one machine, as processes.

deployment  dealer, aggregators and clients as processes
processes   that cannot outlive their parent
watch       what the runner shows while they work
summary     its summary, for people
"""
