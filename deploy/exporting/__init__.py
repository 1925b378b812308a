"""`precad export` and `precad verify-export`: a trained model as files that both servers sign.

    evidence   What an export's certificate against poisoning is computed from
    export     `precad export`: the model of a finished task, and what is stated of it, signed by the server
               whose folder it is
    finished   What an aggregator's folder proves of a task that is over
    formats    The files of a model: a state_dict, and on request a program that runs without our code
    signing    A server's signature on an export
    statement  What is stated of an exported model
    verify     `precad verify-export`: what whoever got a model can check of it, with nothing but the
               authority's certificate

Reading order: `finished` (what a server's folder proves), `statement` (what is said of it), `evidence` (what its
certificate rests on), `formats` (the model's files), `signing`, `export`, `verify`. docs/export.md has the format.
"""
