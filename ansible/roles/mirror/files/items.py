#!/usr/bin/env python3
"""A folder's files against a list of what they must be: say what is due, fetch it, prove it.

    items.py make FOLDER --list FILE --record FILE              write the list of a folder that is right
    items.py hold LIST --to FOLDER --record FILE [--from URL]   what is missing or wrong is fetched, or named

Plain Python 3.6 and its standard library: it runs on a host before anything is installed there.

LIST is `{"items": [{"path", "from", "size", "sha256"}]}`; `path` below FOLDER, `from` below URL. A file takes
its name by one rename, when it is right; until then it is `.NAME.SHA256.partial` beside it, and a later call
goes on from there. RECORD remembers what was hashed, by size, times and inode, as git does, so that a second
call reads nothing; --every-byte hashes everything again. Prints one JSON object. Exit code 0: all is right
(with --check: could be looked at); 1: it is not, and `wrong` names what; 3: the environment is not able.
"""

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

BLOCK_BYTES = 1 << 20
PARTIAL = ".partial"
OWN_PARTIAL = re.compile(r"(^|/)\.[^/]+\.[0-9a-f]{16}\.partial$")
TRIES = 5
WAIT_S = 2
SILENCE_S = 60
SPARE_FRAC = 0.01
# No proxy of the environment: the server is inside.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Wrong(Exception):
    """An item that cannot be had as it must be."""


class Unable(Exception):
    """The host or the server is not able: nothing is said about the items."""


def sha256_of(path, digest=None):
    digest = digest or hashlib.sha256()
    with open(path, "rb") as stream:
        while True:
            block = stream.read(BLOCK_BYTES)
            if not block:
                return digest
            digest.update(block)


def look(path):
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def read_json(path, otherwise):
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return otherwise
    except ValueError:
        return otherwise


def write_json(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + PARTIAL, "w", encoding="utf-8") as stream:
        json.dump(data, stream, sort_keys=True, indent=0)
        stream.write("\n")
    os.replace(path + PARTIAL, path)


class Folder:
    """Files below `root`, and what is known of them."""

    def __init__(self, root, record, every_byte):
        self.root, self.record_file, self.every_byte = root, record, every_byte
        known = read_json(record, {})
        self.known = known.get("seen", {}) if known.get("root") == root else {}
        self.hashed_bytes = 0
        self.guard = threading.Lock()

    def place(self, path):
        return os.path.join(self.root, *path.split("/"))

    def partial(self, item):
        folder, name = os.path.split(self.place(item["path"]))
        return os.path.join(folder, "." + name + "." + item["sha256"][:16] + PARTIAL)

    def sha256(self, path):
        """Of the file that is there, remembered or new; None where there is none."""
        place = self.place(path)
        if not os.path.isfile(place):
            return None
        now = look(place)
        known = self.known.get(path)
        if known and known[:-1] == now and not self.every_byte:
            return known[-1]
        found = sha256_of(place).hexdigest()
        with self.guard:
            self.hashed_bytes += now[0]
            if look(place) == now:
                self.known[path] = [*now, found]
        return found

    def is_right(self, item):
        place = self.place(item["path"])
        if not os.path.isfile(place) or os.path.getsize(place) != item["size"]:
            return False
        return self.sha256(item["path"]) == item["sha256"]

    def take(self, item):
        """Let the partial file, which is right, be the file."""
        place = self.place(item["path"])
        os.replace(self.partial(item), place)
        with self.guard:
            self.known[item["path"]] = [*look(place), item["sha256"]]

    def files(self):
        found = []
        for folder, _, names in os.walk(self.root):
            below = os.path.relpath(folder, self.root)
            found += [name if below == "." else below.replace(os.sep, "/") + "/" + name for name in names]
        return sorted(found)

    def save(self, items, digest):
        keep = {item["path"] for item in items}
        seen = {path: known for path, known in self.known.items() if path in keep}
        data = {"root": self.root, "digest": digest, "items": len(items), "seen": seen}
        if read_json(self.record_file, None) != data:
            write_json(self.record_file, data)


def digest_of(items):
    """sha256 over sorted lines of (digest, size, path), as stack.files.tree_digest writes them."""
    lines = ["{sha256} {size} {path}\n".format(**item) for item in sorted(items, key=lambda i: i["path"])]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def free_bytes(root):
    place = root
    while not os.path.exists(place):
        place = os.path.dirname(place) or "/"
    return shutil.disk_usage(place).free


def require_room(folder, due):
    need = 0
    for item in due:
        partial = folder.partial(item)
        there = os.path.getsize(partial) if os.path.exists(partial) else 0
        need += max(0, item["size"] - there)
    need = int(need * (1 + SPARE_FRAC))
    free = free_bytes(folder.root)
    if need > free:
        text = "{} files of {:,} bytes are to come, and {} has {:,} bytes free"
        raise Unable("disk: " + text.format(len(due), need, folder.root, free))


class Source:
    """A server of files, by plain HTTP; what it sends is believed only when its hash is right."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        self.fetched_bytes = 0
        self.kept_bytes = 0
        self.guard = threading.Lock()

    def open(self, item, start):
        url = self.url + "/" + quote(item["from"])
        asked = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
        return OPENER.open(asked, timeout=SILENCE_S)

    def fetch(self, folder, item):
        """Bring one file; twice, if what an earlier call left was not worth keeping."""
        partial = folder.partial(item)
        os.makedirs(os.path.dirname(partial), exist_ok=True)
        kept = os.path.exists(partial)
        found = self._stream_all(partial, item)
        if found != item["sha256"] and kept:
            os.remove(partial)
            found = self._stream_all(partial, item)
        if found != item["sha256"]:
            os.remove(partial)
            text = "the server sent sha256 {}, {} is expected"
            raise Wrong(text.format(found, item["sha256"]))
        folder.take(item)

    def _stream_all(self, partial, item):
        for attempt in range(TRIES):
            try:
                return self._stream(partial, item)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    raise Wrong("the server does not have it ({})".format(item["from"])) from error
                if error.code in (401, 403):
                    raise Unable(f"server: {error.code} {error.reason} for " + item["from"]) from error
                reason = f"{error.code} {error.reason}"
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    # A file that fills the disk is no help to anybody.
                    size = os.path.getsize(partial) if os.path.exists(partial) else 0
                    if size:
                        os.remove(partial)
                    text = "disk: {} while {} of {:,} bytes was written ({:,} had come; they were removed)"
                    raise Unable(text.format(error.strerror, item["path"], item["size"], size)) from error
                reason = str(error)
            if attempt + 1 < TRIES:
                time.sleep(WAIT_S * (attempt + 1))
        raise Unable(f"server: {self.url} after {TRIES} tries: {reason}")

    def _stream(self, partial, item):
        start = os.path.getsize(partial) if os.path.exists(partial) else 0
        if start > item["size"]:
            os.remove(partial)
            start = 0
        digest = hashlib.sha256()
        if start:
            sha256_of(partial, digest)
        if start == item["size"] and start:
            return digest.hexdigest()
        with self.open(item, start) as answer:
            if start and answer.status != 206:
                digest, start = hashlib.sha256(), 0
            with self.guard:
                self.kept_bytes += start
            with open(partial, "ab" if start else "wb") as stream:
                got = start
                while True:
                    block = answer.read(BLOCK_BYTES)
                    if not block:
                        break
                    got += len(block)
                    if got > item["size"]:
                        break
                    stream.write(block)
                    digest.update(block)
                    with self.guard:
                        self.fetched_bytes += len(block)
                stream.flush()
                os.fsync(stream.fileno())
        if got < item["size"]:
            raise OSError("the connection ended {:,} bytes short".format(item["size"] - got))
        if got > item["size"]:
            return "of more bytes than the {:,} that are expected".format(item["size"])
        return digest.hexdigest()


def hold(options):
    with open(options.list, encoding="utf-8") as stream:
        items = json.load(stream)["items"]
    if options.by_origin:
        items = [dict(item, path=item["from"]) for item in items]
    for item in items:
        if item["path"].startswith("/") or ".." in item["path"].split("/"):
            raise Unable("list: {} leads out of the folder".format(item["path"]))
    folder = Folder(options.to, options.record, options.every_byte)
    digest = digest_of(items)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        right = list(pool.map(folder.is_right, items))
    due = [item for item, is_right in zip(items, right) if not is_right]  # noqa: B905 (3.6)
    answer = {
        "due": [item["path"] for item in due],
        "due_bytes": sum(item["size"] for item in due),
        "fetched": [],
        "wrong": [],
        "digest": digest,
        "items": len(items),
    }
    if options.exclusive:
        extra = sorted(set(folder.files()) - {item["path"] for item in items})
        extra = [path for path in extra if not OWN_PARTIAL.search(path)]
        answer["wrong"] += [{"path": path, "what": "it is not in the list"} for path in extra]
    source = None
    if options.url:
        require_room(folder, due)
    if options.url and not options.check:
        source = Source(options.url)
        clear_partials(folder, items)
        try:
            bring(folder, source, due, answer)
        finally:
            folder.save(items, "")
    elif not options.check:
        for item in due:
            answer["wrong"].append({"path": item["path"], "what": wrong_file(folder, item)})
    answer["hashed_bytes"] = folder.hashed_bytes
    if source is not None:
        answer["fetched_bytes"], answer["kept_bytes"] = source.fetched_bytes, source.kept_bytes
    if not options.check:
        folder.save(items, digest)
    return answer


def bring(folder, source, due, answer):
    """Fetch a few at a time; what is wrong is named and the rest still comes, what is unable ends it."""

    def one(item):
        if unable:
            return
        try:
            source.fetch(folder, item)
            answer["fetched"].append(item["path"])
        except Wrong as error:
            answer["wrong"].append({"path": item["path"], "what": str(error)})
        except Unable as error:
            unable.append(error)
        except OSError as error:
            unable.append(Unable("disk: {}: {}".format(item["path"], error)))

    unable = []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, due))
    answer["fetched"].sort()
    if unable:
        raise unable[0]


def clear_partials(folder, items):
    """What was begun of other versions of these files is of no use any more."""
    wanted = {folder.partial(item) for item in items}
    for place in {os.path.dirname(path) for path in wanted}:
        for name in os.listdir(place) if os.path.isdir(place) else ():
            if OWN_PARTIAL.search(name) and os.path.join(place, name) not in wanted:
                os.remove(os.path.join(place, name))


def wrong_file(folder, item):
    """What is wrong with a file that nobody brings; one that is there and wrong is no file to serve."""
    place = folder.place(item["path"])
    if not os.path.exists(place):
        return "it is not there"
    found = folder.sha256(item["path"])
    os.remove(place)
    return "sha256 {}, {} is expected; it was removed".format(found, item["sha256"])


def make(options):
    """The list of a folder as it is now; `from` of each file is its path below the folder's parent."""
    folder = Folder(options.folder, options.record, options.every_byte)
    paths = [path for path in folder.files() if not OWN_PARTIAL.search(path)]
    name = os.path.basename(options.folder.rstrip("/"))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        hashes = list(pool.map(folder.sha256, paths))
    items = [
        {
            "path": path,
            "from": name + "/" + path,
            "size": os.path.getsize(folder.place(path)),
            "sha256": sha256,
        }
        for path, sha256 in zip(paths, hashes)  # noqa: B905 (3.6)
    ]
    content = {"items": items, "digest": digest_of(items)}
    is_new = read_json(options.list, None) != content
    if is_new:
        write_json(options.list, content)
    folder.save(items, content["digest"])
    return {"digest": content["digest"], "items": len(items), "changed": is_new, "wrong": []}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    making = commands.add_parser("make")
    making.add_argument("folder")
    making.add_argument("--list", required=True)
    holding = commands.add_parser("hold")
    holding.add_argument("list")
    holding.add_argument("--to", required=True)
    holding.add_argument("--from", dest="url")
    holding.add_argument("--check", action="store_true")
    holding.add_argument("--by-origin", action="store_true", help="files lie in FOLDER as `from` says")
    holding.add_argument("--exclusive", action="store_true", help="no other file may be there")
    for each in (making, holding):
        each.add_argument("--record", required=True)
        each.add_argument("--every-byte", action="store_true")
    options = parser.parse_args()
    if options.command is None:
        parser.error("say `make` or `hold`")
    try:
        answer = make(options) if options.command == "make" else hold(options)
    except Unable as error:
        print(json.dumps({"unable": str(error), "wrong": []}))
        return 3
    except OSError as error:
        print(json.dumps({"unable": f"disk: {error}", "wrong": []}))
        return 3
    print(json.dumps(answer, sort_keys=True))
    return 1 if answer["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
