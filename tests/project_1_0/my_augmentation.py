# project/my_augmentation.py
import torch


class Fade:
    def __init__(self, most=0.3):
        self.most = most

    def __call__(self, images):
        share = self.most * torch.rand(len(images), 1, 1, 1, device=images.device)
        return images * (1 - share)
