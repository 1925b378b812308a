"""Fail in a way that the round names: raise, send nothing, send numbers of no model, or answer once more, late."""

import numpy as np
import nvflare.client as flare

flare.init()
late = None
while flare.is_running():
    if late is not None:  # the next round's model is there, and was not received
        flare.send(late, clear_cache=False)
        late = None
    model = flare.receive()
    ways = flare.get_config()["ways"].split(",")
    way = ways[model.current_round]
    if way == "raise":
        raise ValueError("record of patient 4711")
    if way == "end":
        break
    if way == "shutdown":
        flare.shutdown()
        break
    if way == "metrics":
        flare.send(flare.FLModel(metrics={"accuracy": 0.5}))
        continue
    if way == "other":
        flare.send(flare.FLModel(params={"other": np.zeros(3, np.float32)}))
        continue
    answer = {name: values + np.float32(1) for name, values in model.params.items()}
    flare.send(flare.FLModel(params=dict(answer)))
    if way == "late":
        flare.api.default_context.api.receive_called = True
        late = flare.FLModel(params={name: values * np.nan for name, values in answer.items()})
