"""`precad provision` and `precad join`: a kit for each organisation, which starts it without hand-made files.

    manifest  what all kits hold, by digest, under one signature
    project   the file that kits are made from
    own_code  the digest of the organisations' own model and loss, in the project's task
    kits      `precad provision`: certificates for the requests, and the kits
    joining   `precad join`: a kit beside the key that stays at home

Reading order: `manifest`, `project`, `own_code`, `kits`, `joining`. docs/explanation/decisions/0037-*.md says whom an
organisation need not trust.
"""
