"""How figures, tables and durations are written for people.

Contents:

    figures    an epsilon: rounded up, with its sign, or as no useful bound
    error_bars an estimate and its error bar, whose ends go outwards
    tables     tables: the title above, words to the left, numbers to the right
    found      what an error repeats of a configuration, and what it does not
    consoles   the console of a training's progress
    durations  how long something takes, in words
    drawing    loads matplotlib
"""
