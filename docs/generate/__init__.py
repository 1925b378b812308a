"""Generate the pages that a program can write: the reference, and the tables of results.

`python -m docs.generate` writes them, and `--check` names those that are out of date. Nobody edits them by hand.

Modules:

    configuration  every field of a configuration, from the models that validate it
    commands       every command, from the command line itself
    algorithms     the algorithms that two servers run, from `protos/task/algorithms.py`
    models         the models that have a name, from the models themselves
    names          every name of `import precad`, from its source
    statement      what an export's statement says
    refusals       what a run refuses, from `refusals.toml` and the code that refuses it; last lines of processes
    promises       every promise, from `tests/promises.toml`
    decisions      the list of all decisions, from their records
    results        the tables of results, from `docs/results/data/`
    papers         every figure and table of the papers beside ours, from `docs/results/papers/`
    record         runs the command of a row of `papers` and records what came out
    markdown       what pages of Markdown are made of
"""
