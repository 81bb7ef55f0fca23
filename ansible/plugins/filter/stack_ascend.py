"""What a container needs of a host with cards: `probe | ascend_container`."""

from __future__ import annotations

from typing import Any

NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
# Source on the host, the kind that it must be, whether a container can do without it. Only the driver's own
# folder: the whole /usr/local/Ascend would hide the image's CANN.
MOUNTS = (
    ("driver", "folder", False),
    ("/usr/local/dcmi", "folder", False),
    ("/etc/ascend_install.info", "file", False),
    ("/etc/hccn.conf", "file", True),
)


def ascend_container(probe: dict[str, Any]) -> dict[str, Any]:
    """Options of `docker run`, and what stands against them.

    Args:
        probe: what roles/site_check/files/probe.py printed.

    Returns:
        `{options: [...], wrong: [...]}`. Both are empty for a host without a driver. With
        `--mount` a missing source is an error, where `-v` would make a folder of that name on the host.
    """
    ascend, kinds = probe["ascend"], probe["kinds"]
    if ascend["npu_smi"] is None:
        return {"options": [], "wrong": []}
    options, wrong = [], []
    for node in (*ascend["devices"], *NODES):
        if node in NODES and kinds.get(node) != "device":
            wrong.append(f"{node} is {kinds.get(node) or 'not there'}, a device is needed")
        options.append(f"--device={node}")
    sources = [(ascend["npu_smi"], "file", False), *MOUNTS]
    for place, kind, spare in sources:
        source = f"{ascend['prefix']}/driver" if place == "driver" else place
        got = "file" if source == ascend["npu_smi"] else kinds.get(source)
        if got == kind:
            options.append(f"--mount=type=bind,source={source},target={source},readonly")
        elif got is not None or not spare:
            wrong.append(f"{source} is {got or 'not there'}, a {kind} is needed")
    return {"options": options, "wrong": wrong}


def mount_options(mounts: list[dict[str, str]]) -> list[str]:
    """Options of `docker run` for read-only mounts, `{source, target}`; a missing source is an error."""
    return [
        f"--mount=type=bind,source={one['source']},target={one.get('target', one['source'])},readonly"
        for one in mounts
    ]


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"ascend_container": ascend_container, "mount_options": mount_options}
