"""ward: a Flower app with NumPy, whose records lie on disk."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ward.task import load_data, tested, train_epochs

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    arrays = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    features, labels = load_data(context.run_config["data.folder"], context.node_config["partition-id"])
    rate, epochs = context.run_config["learning-rate"], context.run_config["local-epochs"]
    loss = train_epochs(arrays, features, labels, rate, epochs)
    record = ArrayRecord({name: Array(values.astype(np.float32)) for name, values in arrays.items()})
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    arrays = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    features, labels = load_data(context.run_config["data.folder"], context.node_config["partition-id"])
    loss, accuracy = tested(arrays, features, labels)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(labels)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
