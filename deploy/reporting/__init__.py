"""`precad report`: what run folders say, as one page that works without a network, and as PNG figures.

    answers       The answer of a query
    audits        Read the audit beside a run
    certificates  What a run's predictions are certified to withstand
    charts        What is drawn, as data
    run_folder    The folder of `precad demo` and `precad run`
    figures       The charts as PNG files, for papers and slides. matplotlib is an extra (`bench`), loaded to
                  draw only
    files         Reading what runs wrote: every file may be missing, cut off, or somebody else's
    folders       The runs that a report is about
    guarantees    What is guaranteed against whom, in a sentence, and row by row with what it rests on
    key_figures   The figures that a reader looks for first, each with its exact value beside what is shown
    numbers       How the page writes numbers
    page          The report as one HTML page
    runs          What a report knows of a run, whichever command made its folder
    settings      The configuration of a run, for people
    write         A report from run folders to files

Reading order: `runs` (what a folder is read into), `run_folder` (the folder of a deployment), `charts` (what is drawn),
`page` (HTML) and `figures` (PNG), `write`. The reader of a simulation's folder, `precad.lab.simulation.reported`,
belongs to the laboratory and joins by an entry point (`precad.deploy.joined`).
"""
