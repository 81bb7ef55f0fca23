"""Manifests: YAML files that pin inputs and state what to expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stack.lazy import lazily

if TYPE_CHECKING:
    from stack.manifests.ascend import AscendManifest
    from stack.manifests.bundle import BundleManifest, PackagesManifest
    from stack.manifests.dataset import DatasetManifest
    from stack.manifests.images import ImagesManifest
    from stack.manifests.load import (
        Loaded,
        load_ascend_manifest,
        load_bundle_manifest,
        load_dataset_manifest,
        load_images_manifest,
        load_models_manifest,
        load_packages_manifest,
        load_run_manifest,
        load_wheels_manifest,
    )
    from stack.manifests.models import ModelsManifest
    from stack.manifests.run import RunManifest
    from stack.manifests.wheels import WheelsManifest

__all__ = [
    "AscendManifest",
    "BundleManifest",
    "DatasetManifest",
    "ImagesManifest",
    "Loaded",
    "ModelsManifest",
    "PackagesManifest",
    "RunManifest",
    "WheelsManifest",
    "load_ascend_manifest",
    "load_bundle_manifest",
    "load_dataset_manifest",
    "load_images_manifest",
    "load_models_manifest",
    "load_packages_manifest",
    "load_run_manifest",
    "load_wheels_manifest",
]

__getattr__ = lazily(
    __name__,
    {
        "ascend": ("AscendManifest",),
        "bundle": ("BundleManifest", "PackagesManifest"),
        "dataset": ("DatasetManifest",),
        "images": ("ImagesManifest",),
        "load": (
            "Loaded",
            "load_ascend_manifest",
            "load_bundle_manifest",
            "load_dataset_manifest",
            "load_images_manifest",
            "load_models_manifest",
            "load_packages_manifest",
            "load_run_manifest",
            "load_wheels_manifest",
        ),
        "models": ("ModelsManifest",),
        "run": ("RunManifest",),
        "wheels": ("WheelsManifest",),
    },
)
