"""All differences between the two lerobot generations that the loop must bridge, and nothing else.

| | production (0.4.x) | current (0.6.x) |
|---|---|---|
| checkpoint functions | `lerobot.utils.train_utils` | `lerobot.common.train_utils`, more arguments |
| pictures in a sample | float in [0, 1] | uint8 where asked for, float otherwise |
| Gemma trunk | a patched transformers, or our adapter (`shim`) | lerobot's own |
| prompt | state padded to `max_state_dim` numbers | state as wide as it is |
| pictures that are not square | padded with -3 after scaling | padded with -1 |

The last two make a policy of one line see other inputs on the other; checkpoints therefore carry their line.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import Any, Literal

from stack.errors import NotAble

Line = Literal["production", "current"]
MODELING = "lerobot.policies.pi05.modeling_pi05"
PROCESSOR = "lerobot.policies.pi05.processor_pi05"
PACKAGES = (
    "torch",
    "torchvision",
    "lerobot",
    "transformers",
    "tokenizers",
    "safetensors",
    "peft",
    "torch_npu",
)


def line_of(lerobot_version: str) -> Line:
    """The line that a lerobot version belongs to; only 0.3.4 to 0.4.x and 0.6.x are known to work.

    Raises:
        NotAble: any other version.
    """
    major, minor = (int(part) for part in lerobot_version.split(".")[:2])
    if (major, minor) in ((0, 3), (0, 4)):
        return "production"
    if (major, minor) == (0, 6):
        return "current"
    raise NotAble(
        "line-unknown",
        f"lerobot {lerobot_version} is neither of the production line (0.4.x) nor of the current one (0.6.x)",
        do="run 'make setup', which installs one of the two",
    )


def detect_line() -> Line:
    """The line of the lerobot that is installed here; reads package metadata only.

    Raises:
        NotAble: lerobot is missing or of an unknown line.
    """
    try:
        return line_of(importlib.metadata.version("lerobot"))
    except importlib.metadata.PackageNotFoundError:
        raise NotAble("lerobot-missing", "lerobot is not installed", do="run 'make setup'") from None


def versions() -> dict[str, str]:
    """Versions of the packages that decide a run's numbers; those not installed are left out."""
    import platform

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def modeling() -> Any:
    """lerobot's module with the pi0.5 model."""
    return _import_policies(MODELING)


def processor() -> Any:
    """lerobot's module with the pi0.5 processors."""
    return _import_policies(PROCESSOR)


class _AbsentModule(types.ModuleType):
    """Stands in for a package that is left out of the slim install; any use of it says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotAble("package-left-out", f"{self.__name__} is not installed, but {name} of it was asked for")


def _import_policies(name: str) -> Any:
    """Import a module below `lerobot.policies`.

    The newer line's package imports all policies, and one that is not ours imports OpenCV at its top; the
    slim install has none. The stand-in is taken away again, so that nobody mistakes it for the package.
    """
    absent = (
        detect_line() == "current" and "cv2" not in sys.modules and importlib.util.find_spec("cv2") is None
    )
    if absent:
        # transformers looks for OpenCV when it is imported, and must find that it is not there.
        importlib.import_module("transformers")
        sys.modules["cv2"] = _AbsentModule("cv2")
    try:
        return importlib.import_module(name)
    finally:
        if absent:
            sys.modules.pop("cv2", None)


def adapters() -> Any:
    """The peft package.

    Raises:
        NotAble: it is not installed.
    """
    try:
        return importlib.import_module("peft")
    except ModuleNotFoundError:
        raise NotAble(
            "peft-missing", "train.lora needs peft, which is not installed", do="run 'make setup'"
        ) from None


def checkpoint_functions() -> Any:
    """lerobot's module with `save_checkpoint` and `load_training_state`."""
    for name in ("lerobot.common.train_utils", "lerobot.utils.train_utils"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise NotAble("lerobot-incomplete", "lerobot's checkpoint functions are not there", do="run 'make setup'")


def save_checkpoint(folder: Path, *, world_size: int, batch_per_device: int, **arguments: Any) -> None:
    """lerobot's own `save_checkpoint`; the newer line also records what its sampler needs."""
    save = checkpoint_functions().save_checkpoint
    extra = {"num_processes": world_size, "batch_size": batch_per_device}
    known = inspect.signature(save).parameters
    save(folder, **arguments, **{name: value for name, value in extra.items() if name in known})


def rng_state() -> dict[str, Any]:
    """This process's generators, as lerobot's checkpoints hold them."""
    state: dict[str, Any] = _random_module().serialize_rng_state()
    return state


def write_rng_state(state: dict[str, Any], folder: Path) -> None:
    """Write a state taken earlier where lerobot's `load_training_state` looks for it."""
    from lerobot.utils.constants import RNG_STATE
    from safetensors.torch import save_file

    save_file(state, folder / RNG_STATE)


def _random_module() -> Any:
    return importlib.import_module("lerobot.utils.random_utils")


def as_unit_floats(picture: Any) -> Any:
    """A picture tensor as float32 in [0, 1], whichever of the two forms the reader gave it in."""
    import torch

    return picture.to(torch.float32) / 255 if picture.dtype == torch.uint8 else picture


def install_decoder(decode: Any) -> None:
    """Let lerobot's reader take its frames from `decode`, which has the arguments of its own function."""
    for name in ("lerobot.datasets.dataset_reader", "lerobot.datasets.lerobot_dataset"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "decode_video_frames"):
            setattr(module, "decode_video_frames", decode)  # noqa: B010
            return
    raise NotAble("lerobot-incomplete", "lerobot's reader of videos is not there", do="run 'make setup'")


def resize(pictures: Any, size: tuple[int, int]) -> Any:
    """Pictures (B, 3, H, W) at `size`, exactly as the policy itself would bring them to it."""
    if tuple(pictures.shape[-2:]) == tuple(size):
        return pictures
    channels_last = pictures.permute(0, 2, 3, 1)
    return modeling().resize_with_pad_torch(channels_last, *size).permute(0, 3, 1, 2)
