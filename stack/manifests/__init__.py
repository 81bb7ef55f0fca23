"""Manifests: YAML files that pin inputs and state what to expect."""

from stack.manifests.dataset import DatasetManifest
from stack.manifests.load import Loaded, load_dataset_manifest, load_models_manifest, load_run_manifest
from stack.manifests.models import ModelsManifest
from stack.manifests.run import RunManifest

__all__ = [
    "DatasetManifest",
    "Loaded",
    "ModelsManifest",
    "RunManifest",
    "load_dataset_manifest",
    "load_models_manifest",
    "load_run_manifest",
]
