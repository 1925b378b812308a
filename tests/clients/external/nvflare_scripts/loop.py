"""Train round after round, as NVFLARE's own examples do: a model comes in, a trained one goes out."""

import argparse

import numpy as np
import nvflare.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--step", type=float, default=1.0)
step = parser.parse_args().step

flare.init()
while flare.is_running():
    model = flare.receive()
    assert flare.is_train()
    assert not flare.is_evaluate()
    assert flare.get_site_name() == "alice"
    added = np.float32(step + model.current_round)
    for name in model.params:
        model.params[name] += added
    flare.send(flare.FLModel(params=model.params, params_type="FULL", metrics={"accuracy": 0.5}))
