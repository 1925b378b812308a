"""ward: the same training by a client function, as Flower apps before 1.20 have it."""

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from ward.task import load_data, tested, train_epochs


class WardClient(NumPyClient):
    """Train on local data."""

    def __init__(self, features, labels, context):
        self.features, self.labels, self.context = features, labels, context

    def fit(self, parameters, config):
        """Train the model, given as a list of arrays."""
        arrays = {"weight": parameters[0].copy(), "bias": parameters[1].copy()}
        run = self.context.run_config
        loss = train_epochs(arrays, self.features, self.labels, run["learning-rate"], run["local-epochs"])
        return [arrays["weight"].astype(np.float32), arrays["bias"]], len(self.labels), {"loss": loss}

    def evaluate(self, parameters, config):
        """Evaluate the model, given as a list of arrays."""
        loss, accuracy = tested({"weight": parameters[0], "bias": parameters[1]}, self.features, self.labels)
        return loss, len(self.labels), {"accuracy": accuracy}


def client_fn(context: Context):
    """Make a client of one partition."""
    data = load_data(context.run_config["data.folder"], context.node_config["partition-id"])
    return WardClient(*data, context).to_client()


app = ClientApp(client_fn=client_fn)
