"""Take the model into a module of PyTorch, and send its state dict."""

import nvflare.client as flare
import torch

net = torch.nn.Linear(64, 10)
flare.init()
while flare.is_running():
    net.load_state_dict(flare.receive().params)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    flare.send(flare.FLModel(params=net.state_dict()))
