"""Messages to values and back.

convert    messages to values of `mpc` and back; chunking
undecoded  calls of which we decode the replies ourselves
"""
