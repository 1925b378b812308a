"""The client of PRECAD: trains on its own records and uploads one clipped, secret-shared update per round.

Reading order: `local_update` (Algorithm 2), `per_record` (its lines 2 to 5), `models`, `datasets`; `evaluation`,
`attacks`, `aggregation` and `simulation` serve experiments.
"""
