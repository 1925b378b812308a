"""`precad export` and `precad verify-export`: a trained model as files, with a statement that both servers sign.

Reading order: `finished` (what a server's folder proves), `statement` (what is said of it), `evidence` (what its
certificate rests on), `formats` (the model's files), `signing`, `export`, `verify`. docs/export.md has the format.
"""
