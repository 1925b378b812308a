"""Measure committed models on public records, beside a server and outside of its process.

Modules:

    program  how a server starts the program, and with what
    child    the program: reads the records once, then a model at a time
"""
