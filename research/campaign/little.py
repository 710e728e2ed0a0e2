"""A task small enough for hundreds of runs on a CPU: 3,000 pieces of clothing at 14 x 14 pixels.

A small ResNet memorises the training set in 30 epochs, as ResNet-18 does that of CIFAR-100 in 200.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from infobatch.lab.tasks.catalogue import make_task
from infobatch.lab.tasks.nets import Basic, resnet
from infobatch.lab.tasks.task import Arrays, Task

SIZE = 3_000
NOISE = 0.2


def crops(data: str) -> Task:
    """The same with random crops and flips: the net no longer memorises it, so steps count."""
    return replace(task(data), name="little_crops", pad=2, flip=True)


def noisy(data: str) -> Task:
    """``crops`` with a fifth of the training labels drawn at random: methods that favour high losses favour those."""
    plain = crops(data)
    assert isinstance(plain.train, Arrays)
    labels, generator = plain.train.labels, torch.Generator().manual_seed(0)
    random_labels = torch.randint(len(plain.classes), labels.shape, generator=generator)
    wrong = torch.rand(len(labels), generator=generator) < NOISE
    return replace(plain, name="little_noisy", train=Arrays(plain.train.inputs, random_labels.where(wrong, labels)))


def task(data: str) -> Task:
    """The first 3,000 of Fashion-MNIST's training set, all of its test set, averaged over 2 x 2 pixels."""
    whole = make_task("fashion_mnist", data)
    assert isinstance(whole.train, Arrays)
    assert isinstance(whole.test, Arrays)
    train = Arrays(halved(whole.train.inputs[:SIZE]), whole.train.labels[:SIZE])
    test = Arrays(halved(whole.test.inputs), whole.test.labels)
    shape, classes = tuple(train.inputs.shape[1:]), whole.classes
    net = partial(resnet, shape, len(classes), block=Basic, depths=(1, 1, 1), width=8)
    return Task("little_fashion", train, test, classes, mean=whole.mean, std=whole.std, make_model=net)


def halved(images: Tensor) -> Tensor:
    return F.avg_pool2d(images.float(), 2).round().to(images.dtype)
