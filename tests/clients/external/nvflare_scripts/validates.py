"""Train and validate, as NVFLARE's cross-site examples do: metrics alone go out for a task of validation."""

import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    total = float(sum(values.sum() for values in model.params.values()))
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": 0.25, "loss": total, "num_examples": 40}))
    else:
        assert flare.is_train()
        flare.send(flare.FLModel(params={name: values + 1 for name, values in model.params.items()}))
