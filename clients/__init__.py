"""The client of PRECAD: trains on its own records and uploads one clipped, secret-shared update per round.

encoding      line 8: the update as integers
submission    line 8: what each server receives of them
upload_limit  how often it uploads for one model
process       several clients in a process
config        what an operator configures
errors        what may go wrong, as one tree
attacks/      Malicious clients for experiments
gradients/    gradients of single records, clipped and summed
models/       the models that clients train, and the flat vector that stands for one
records/      Labelled records, where they come from, and how an experiment spreads them over clients
training/     Algorithm 2 up to the clipped update
upload/       one client's session with both servers
"""
