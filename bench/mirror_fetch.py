"""`stack mirror get` of one big file against curl, from one loopback server, in one run.

    python -m bench.mirror_fetch --scratch work/bench --gb 14

The server hands a sparse file to the kernel (sendfile), so that it is never the slower end. Ours checks the
sha256 and brings the bytes to the disk before it is done; curl does neither, and is measured twice: as it is,
and with the `sync` that ours has in it. Both copies are removed. Twice SIZE of disk is needed at most once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click

from bench.measure import Cost, measure
from bench.table import Line, is_busy, machine, render

REPOSITORY, REVISION, NAME = "bench/big", "0" * 40, "model.safetensors"
ROUTE = f"/api/v1/models/{REPOSITORY}/repo"
LEAST_FRAC = 0.8
FLAT_MIB = 400  # the interpreter with the client is about 150 MiB


class Handler(BaseHTTPRequestHandler):
    """The file route of ModelScope, with ranges."""

    protocol_version = "HTTP/1.1"
    file: Path

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != ROUTE or parse_qs(url.query).get("FilePath") != [NAME]:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = self.file.stat().st_size
        asked = self.headers.get("Range")
        first = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - first))
        self.end_headers()
        self.wfile.flush()
        with self.file.open("rb") as stream:
            while first < size:
                first += os.sendfile(
                    self.connection.fileno(), stream.fileno(), first, min(size - first, 1 << 28)
                )


def serve(file: Path, ready: int) -> None:
    """Serve until killed; the port is written to the descriptor `ready`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Handler,), {"file": file}))
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    os.write(ready, f"{server.server_address[1]}\n".encode())
    server.serve_forever()


def sparse(file: Path, size: int) -> str:
    """Make the file; its sha256."""
    with file.open("wb") as stream:
        stream.truncate(size)
    digest, block = hashlib.sha256(), bytes(1 << 24)
    for _ in range(size // len(block)):
        digest.update(block)
    digest.update(block[: size % len(block)])
    return digest.hexdigest()


def manifest(file: Path, size: int, sha256: str) -> Path:
    file.write_text(
        "schema: stack/models/1\nmodels:\n  big:\n    kind: weights\n    licence: none\n"
        f"    origin: {{modelscope: {REPOSITORY}, revision: '{REVISION}'}}\n"
        f"    files: [{{path: {NAME}, size: {size}, sha256: {sha256}}}]\n"
    )
    return file


def fetches(folder: Path, size: int) -> tuple[Cost, Cost, Cost]:
    """Costs of curl, of curl with a sync, and of ours; each begins with nothing on the disk."""
    source = folder / "source"
    pins = manifest(folder / "models.yaml", size, sparse(source, size))
    reading, writing = os.pipe()
    code = (
        "import sys, pathlib, bench.mirror_fetch as b; b.serve(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(source), str(writing)]
    server = subprocess.Popen(command, pass_fds=[writing])
    try:
        address = f"http://127.0.0.1:{os.read(reading, 20).decode().strip()}"
        url, copy = f"{address}{ROUTE}?Revision={REVISION}&FilePath={NAME}", folder / "copy"
        curl = ["curl", "--silent", "--fail", "--output", str(copy), url]
        costs = []
        for line in (curl, ["sh", "-c", '"$@" && sync -f "$0"', str(copy), *curl]):
            subprocess.run(["sync"], check=True)
            costs.append(measure(line))
            copy.unlink()
        subprocess.run(["sync"], check=True)
        get = [sys.executable, "-m", "stack", "mirror", "get", str(pins), "--to", str(folder / "mirror")]
        ours = measure([*get, "--endpoint", address])
        again = measure([*get, "--endpoint", address])
        click.echo(f"a second get: {again.wall_s:.1f} s", err=True)
        return costs[0], costs[1], ours
    finally:
        server.kill()
        server.wait()


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench"), show_default=True)
@click.option("--gb", type=float, default=14.0, show_default=True, help="Size of the file, 10^9 bytes.")
def main(scratch: Path, gb: float) -> None:
    """Exit code 1: slower than the bar on a machine that had nothing else to do, or memory that grows."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="mirror-fetch-", dir=scratch.resolve()))
    try:
        plain, synced, ours = fetches(folder, int(gb * 1e9))
    finally:
        shutil.rmtree(folder)
    frac = synced.wall_s / ours.wall_s
    work = f"fetch one file of {gb:g} GB, hashed"
    took = f"{ours.wall_s:.1f} s, {gb * 1e3 / ours.wall_s:.0f} MB/s, {ours.cpu_s:.1f} CPU-s"
    against = (
        f"curl and sync: {synced.wall_s:.1f} s, {gb * 1e3 / synced.wall_s:.0f} MB/s; "
        f"curl alone, not on the disk at the end: {plain.wall_s:.1f} s"
    )
    busy = is_busy()
    lines = [
        Line(work, took, against, f">= 80 % of curl and sync: {frac:.0%}", frac >= LEAST_FRAC, busy),
        Line("its memory", f"{ours.peak_mib:.0f} MiB", "", f"<= {FLAT_MIB} MiB", ours.peak_mib <= FLAT_MIB),
    ]
    click.echo(f"{render(lines)}\nMeasured on {machine()}.")
    raise SystemExit(1 if any(line.holds is False and not line.is_busy for line in lines) else 0)


if __name__ == "__main__":
    main()
