"""Train one task, and end."""

import numpy as np
import nvflare.client as flare

flare.init()
model = flare.receive()
changes = {name: np.full_like(values, 2.0) for name, values in model.params.items()}
flare.send(flare.FLModel(params=changes, params_type=flare.ParamsType.DIFF))
