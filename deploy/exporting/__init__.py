"""`precad export` and `precad verify-export`: a trained model as files that both servers sign.

    answers    `precad answer`: what a query that is over found, from one server's folder
    adapters   the files of an adapted model, for `peft`
    audits     the audit of an exported training, signed with it
    evidence   the trainings that an export's certificate against poisoning is computed from
    export     `precad export`: the model of a finished task, and what is stated of it, signed by the server
               whose folder it is
    finished   what an aggregator's folder proves of a task that is over
    formats    the files of a model: a state_dict, and on request a program that runs without our code
    signing    a server's signature on an export
    statement  the statement about an exported model
    verify     `precad verify-export`: what whoever got a model can check of it, with nothing but the
               authority's certificate

Reading order: `finished`, `statement`, `evidence`, `formats`, `signing`, `export`, `verify`. docs/guides/export.md has
the format.
"""
