"""`precad report`: what run folders say, as one page that works without a network, and as PNG figures.

Reading order: `runs` (what a folder is read into), `deployed` (the folder of a deployment), `charts` (what is drawn),
`page` (HTML) and `figures` (PNG), `write`. `simulated` and `replay` read the folder of a simulation; they belong to the
laboratory and join by an entry point (`deploy.joined`).
"""
