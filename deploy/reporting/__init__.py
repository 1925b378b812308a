"""`precad report`: what run folders say, as one page that works without a network, and as PNG figures.

Reading order: `runs` (what a folder is read into), `deployed` and `simulated` (the two kinds of folders), `charts`
(what is drawn), `page` (HTML) and `figures` (PNG), `write`.
"""
