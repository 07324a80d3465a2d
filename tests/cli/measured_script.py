"""A small script that trains with swell.Job, for commands that measure one: epochs and run folder are arguments."""

SCRIPT = """
import sys
import torch
import swell

torch.manual_seed(0)
x = torch.randn(512, 6)
y = x.sum(1) + torch.randn(512)
model = torch.nn.Linear(6, 1)
job = swell.Job(sys.argv[2], batch=16)
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.02))
loader = job.loader(torch.utils.data.TensorDataset(x, y), shuffle=True)
for epoch in job.epochs(int(sys.argv[1])):
    for features, target in loader:
        job.backward(torch.nn.functional.mse_loss(model(features).squeeze(-1), target))
        job.step()
print("this is not for the findings")
"""
