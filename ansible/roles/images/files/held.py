"""What this host's engine holds of one image: held.py ID [TAG], printed as JSON.

ID is `sha256:` of the image's configuration, which is the same wherever the image is. An engine with the
classic store names images by it; one with the containerd store names them by their manifest, so that the
manifest is read here, from containerd's content folder, to find the configuration behind it. No network,
nothing is changed.

{"engine": true, "local": NAME, "architecture": "amd64", "tagged": ID}: `local` is what
`docker run` takes for ID, null where it is not held; `tagged` is the ID that TAG stands for, null where there
is no such tag. Python 3.6 and later.
"""

import json
import re
import subprocess
import sys

CONTENT = "io.containerd.content.v1.content/blobs/sha256/"


def docker(*words):
    """Lines of the command's output, or None where it fails."""
    try:
        done = subprocess.run(
            ["docker", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,  # noqa: UP021
        )
    except OSError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def content_roots():
    """Where containerd may keep content: one of its own, or one that the engine runs."""
    roots = []
    try:
        with open("/etc/containerd/config.toml", encoding="utf-8") as stream:
            roots += re.findall(r"^root\s*=\s*[\"']([^\"']+)", stream.read(), re.MULTILINE)
    except OSError:
        pass
    engine = docker("info", "--format", "{{.DockerRootDir}}") or ["/var/lib/docker"]
    return [*roots, "/var/lib/containerd", engine[0] + "/containerd/daemon"]


def blob(digest, roots):
    for root in roots:
        try:
            with open(f"{root.rstrip('/')}/{CONTENT}{digest.split(':', 1)[1]}", "rb") as stream:
                return json.loads(stream.read().decode())
        except (OSError, ValueError):
            continue
    return None


def configurations(name, roots):
    """Digests of the configurations behind an image's name: its own, or those of its manifests."""
    content = blob(name, roots)
    if content is None:
        return [name]  # the classic store: the name is the digest of the configuration
    if "config" in content:
        return [content["config"]["digest"]]
    found = []
    for entry in content.get("manifests", []):
        manifest = blob(entry["digest"], roots)
        if manifest and entry.get("platform", {}).get("os") != "unknown":
            found.append(manifest["config"]["digest"])
    return found


def inspect(name):
    lines = docker("image", "inspect", "--format", "{{.Id}} {{.Architecture}}", name)
    return lines[0].split(" ") if lines else None


def held(wanted, tag):
    result = {"engine": False, "local": None, "architecture": None, "tagged": None}
    status = docker("info", "--format", "{{json .DriverStatus}}")
    if status is None:
        return result
    result["engine"] = True
    roots = content_roots() if "io.containerd.snapshotter" in "".join(status) else []
    names = (
        [wanted] if not roots else sorted(set(docker("image", "ls", "--all", "--quiet", "--no-trunc") or []))
    )
    for name in names:
        seen = inspect(name)
        if seen and wanted in configurations(seen[0], roots):
            result["local"], result["architecture"] = seen[0], seen[1]
            break
    seen = inspect(tag) if tag else None
    if seen:
        behind = configurations(seen[0], roots)
        result["tagged"] = wanted if wanted in behind else (behind or [seen[0]])[0]
    return result


if __name__ == "__main__":
    print(json.dumps(held(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""), sort_keys=True))
