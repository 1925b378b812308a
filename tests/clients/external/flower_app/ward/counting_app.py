"""ward: a Flower app that keeps a part of its own in `context.state`, and answers with how often it has trained."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Count, and fill the model with the count; in the seventh training leave 80 MiB, which is too much."""
    if "own" not in context.state:
        context.state["own"] = ConfigRecord({"n": 0})
        context.state["head"] = ArrayRecord({"head": Array(np.zeros(3, np.float32))})
    own, head = context.state["own"], context.state["head"]["head"].numpy()
    assert np.array_equal(head, np.full(3, own["n"]))
    own["n"] += 1
    context.state["head"] = ArrayRecord({"head": Array(np.full(3, own["n"], np.float32))})
    context.state.pop("ballast", None)
    if own["n"] == 7:
        context.state["ballast"] = ConfigRecord({"zeros": bytes(80 << 20)})
    arrays = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    filled = ArrayRecord({name: Array(np.full_like(values, own["n"])) for name, values in arrays.items()})
    metrics = MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": filled, "metrics": metrics}), reply_to=msg)
