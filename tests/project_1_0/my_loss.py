# project/my_loss.py
from torch.nn import functional


def poly(outputs, targets, epsilon=1.0):
    right = outputs.softmax(1).gather(1, targets[:, None])
    return functional.cross_entropy(outputs, targets) + epsilon * (1 - right).mean()
