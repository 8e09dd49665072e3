# project/my_model.py
from torch import nn


def net(num_classes, width=16):
    pool = nn.AdaptiveAvgPool2d(1)
    first = nn.Conv2d(3, width, kernel_size=3, stride=2)
    return nn.Sequential(first, nn.ReLU(), pool, nn.Flatten(), nn.Linear(width, num_classes))
