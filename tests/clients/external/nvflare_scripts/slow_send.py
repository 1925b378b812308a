"""Train round after round; `send()` takes long to end after the model has left."""

import time
from typing import Any

import nvflare.client as flare


class Slow(flare.FLModel):
    """Lingers when NVFLARE lets go of what was sent."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "params" and value is None:
            time.sleep(0.3)
        super().__setattr__(name, value)


flare.init()
while flare.is_running():
    model = flare.receive()
    trained = {name: values + 1 for name, values in model.params.items()}
    flare.send(Slow(params=trained, params_type="FULL"))
