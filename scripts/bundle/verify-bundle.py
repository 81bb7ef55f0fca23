#!/usr/bin/env python3
"""Is this bundle whole? For a bare host: Python 3.6 or later, nothing but its standard library.

    python3 verify-bundle.py                        the bundle that this file lies in
    python3 verify-bundle.py --expect SHA256        and is it the one that was meant? (sha256 of bundle.json)
    python3 verify-bundle.py --base OLD             a bundle made with --diff OLD: OLD holds the rest
    python3 verify-bundle.py --unpack DIR           if it is whole, lay its files out under their names

Every byte is hashed, on all cores. Exit code 0: whole. 1: something is missing, extra or wrong; each is named
with who needs it, and nothing is unpacked. 2: no bundle here, or wrong arguments. 3: cannot read or write.

Layout: bundle.json lists items (path, sha256, size, needed_by); their bytes are objects/AB/SHA256, once for
equal content. SHA256SUMS lists every file of the bundle but itself, for `sha256sum -c SHA256SUMS`.
"""
# No annotations here: this file must start on Python 3.6.

import argparse
import hashlib
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

SCHEMA = "stack/bundle-content/1"
BLOCK_BYTES = 4 << 20
SUMS = "SHA256SUMS"
CONTENT = "bundle.json"
OWN = (CONTENT, "README.txt", "bundle-install.sh", "verify-bundle.py")
SHOWN_OWNERS = 3
HEX = set("0123456789abcdef")


def sha256_file(path):
    digest, block = hashlib.sha256(), bytearray(BLOCK_BYTES)
    view = memoryview(block)
    with open(path, "rb", buffering=0) as stream:
        while True:
            count = stream.readinto(block)
            if not count:
                return digest.hexdigest()
            digest.update(view[:count])


def object_name(sha256):
    return f"objects/{sha256[:2]}/{sha256}"


class NoBundle(Exception):
    pass


def need(holds, what):
    if not holds:
        raise ValueError(what)


def read_content(bundle):
    """The parsed bundle.json, checked as far as unpacking relies on it."""
    path = os.path.join(bundle, CONTENT)
    try:
        with open(path, "rb") as stream:
            content = json.loads(stream.read().decode("utf-8"))
        need(content["schema"] == SCHEMA, "its schema is {}".format(content["schema"]))
        for item in content["items"]:
            parts, sha256 = item["path"].split("/"), item["sha256"]
            safe = all(part not in ("", ".", "..") for part in parts) and "\0" not in item["path"]
            need(safe, "an item leaves the bundle: {}".format(item["path"]))
            need(len(sha256) == 64 and not set(sha256) - HEX, f"not a sha256: {sha256}")
            need(isinstance(item["size"], int), "no size: {}".format(item["path"]))
            need(isinstance(item["carried"], bool), "not said to be carried: {}".format(item["path"]))
            need(all(isinstance(owner, str) for owner in item["needed_by"]), "owners of " + item["path"])
    except FileNotFoundError:
        raise NoBundle(f"there is no {CONTENT} in {bundle}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoBundle(f"{path} is damaged: {error!r}") from error
    return content


def read_sums(bundle):
    """SHA256SUMS as a dictionary, and what is wrong with it."""
    sums, wrong = {}, []
    try:
        with open(os.path.join(bundle, SUMS), "rb") as stream:
            lines = stream.read().split(b"\n")
    except FileNotFoundError:
        return {}, [f"missing: {SUMS}"]
    if lines[-1] != b"":
        wrong.append(f"wrong: {SUMS}: its last line is cut off")
    for number, line in enumerate(lines[:-1], 1):
        text = line.decode("utf-8", "replace")
        if len(text) < 67 or text[64:66] != "  " or set(text[:64]) - HEX:
            wrong.append(f"wrong: {SUMS}: line {number} is damaged")
        else:
            sums[text[66:]] = text[:64]
    return sums, wrong


def files_below(bundle):
    found = []
    for folder, _, names in os.walk(bundle):
        found += [os.path.relpath(os.path.join(folder, name), bundle).replace(os.sep, "/") for name in names]
    return set(found)


def owners(items):
    names = sorted({owner for item in items for owner in item["needed_by"]})
    more = f" and {len(names) - SHOWN_OWNERS} more" if len(names) > SHOWN_OWNERS else ""
    return "; needed by: " + ", ".join(names[:SHOWN_OWNERS]) + more if names else ""


def named(items):
    return ", ".join(sorted(item["path"] for item in items))


def object_path(places, sha256):
    """Where an object lies, the bundle itself first; None where it does not."""
    for place in places:
        path = os.path.join(place, *object_name(sha256).split("/"))
        if os.path.isfile(path):
            return path
    return None


def check(bundle, bases, jobs):
    """All that is wrong, one line each; and how many bytes were hashed."""
    content = read_content(bundle)
    sums, wrong = read_sums(bundle)
    by_hash = {}
    for item in content["items"]:
        by_hash.setdefault(item["sha256"], []).append(item)
    work = []  # path, expected sha256, what to call it, whose it is
    for sha256, items in by_hash.items():
        path = object_path([bundle, *bases], sha256)
        if path is None:
            carried = any(item["carried"] for item in items)
            hint = "" if carried else " (not carried: it is in the bundle that this one builds on, --base)"
            wrong.append(f"missing: {named(items)}{hint}{owners(items)}")
        else:
            work.append((path, sha256, named(items), items))
    carried = {object_name(i["sha256"]) for i in content["items"] if i["carried"]}
    listed = carried | set(OWN)
    for name in OWN:
        path = os.path.join(bundle, name)
        if not os.path.isfile(path):
            wrong.append(f"missing: {name}")
        elif name not in sums:
            wrong.append(f"wrong: {SUMS}: {name} is not in it")
        else:
            work.append((path, sums[name], name, []))
    for name in sorted(set(sums) ^ listed):
        if name in carried:
            wrong.append(f"wrong: {SUMS}: {name} is not in it")
        elif name not in OWN:
            wrong.append(f"wrong: {SUMS}: it lists {name}, which is no item")
    for name in sorted(carried & set(sums)):
        if sums[name] != name.rpartition("/")[2]:
            wrong.append(f"wrong: {SUMS}: its hash of {name} is not that of {CONTENT}")
    for name in sorted(files_below(bundle) - listed - {SUMS}):
        wrong.append(f"extra: {name}: no item of the bundle, and nobody needs it")
    work.sort(key=lambda entry: -os.path.getsize(entry[0]))
    with ThreadPoolExecutor(jobs) as pool:
        wrong += [line for line in pool.map(check_file, work) if line is not None]
    return content, wrong, sum(os.path.getsize(entry[0]) for entry in work)


def check_file(entry):
    path, expected, name, items = entry
    size = os.path.getsize(path)
    if items and size != items[0]["size"]:
        what = "{} bytes, expected {}".format(size, items[0]["size"])
    else:
        try:
            got = sha256_file(path)
        except OSError as error:
            return f"wrong: {name}: cannot be read ({error}){owners(items)}"
        if got == expected:
            return None
        what = f"sha256 {got}, expected {expected}"
    return f"wrong: {name} ({path}): {what}{owners(items)}"


def unpack(bundle, bases, content, target):
    """Lay the items out under their names: hard links where the file system can, else copies."""
    for item in content["items"]:
        source = object_path([bundle, *bases], item["sha256"])
        place = os.path.join(target, *item["path"].split("/"))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        partial = place + ".partial"
        for leftover in (partial, place):
            if os.path.lexists(leftover):
                os.remove(leftover)
        # Copies, not links, of what people edit or programs write into: a bundle must stay what it is.
        if item["path"].startswith(("wheels/", "images/", "packages/", "site/")):
            try:
                os.link(source, partial)
            except OSError:
                shutil.copyfile(source, partial)
        else:
            shutil.copyfile(source, partial)
        os.rename(partial, place)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("bundle", nargs="?", default=here, help="folder with bundle.json (default: this one)")
    parser.add_argument("--expect", metavar="SHA256", help="what the sha256 of bundle.json must be")
    parser.add_argument("--base", action="append", default=[], metavar="OLD", help="has what is not carried")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files at a time")
    parser.add_argument("--unpack", metavar="DIR", help="lay the files out here")
    options = parser.parse_args()
    try:
        digest = sha256_file(os.path.join(options.bundle, CONTENT))
        content, wrong, hashed = check(options.bundle, options.base, max(1, options.jobs))
    except FileNotFoundError as error:
        print(f"error[bundle-missing]: there is no bundle here: {error}", file=sys.stderr)
        return 2
    except NoBundle as error:
        print(f"wrong: bundle.json: {error}")
        return 1
    except OSError as error:
        print(f"error[bundle-unreadable]: {error}", file=sys.stderr)
        return 3
    if options.expect is not None and options.expect != digest:
        what = f"sha256 {digest}, expected {options.expect}: it is another bundle"
        wrong.insert(0, f"wrong: bundle.json: {what}")
    for line in wrong:
        print(line)
    count = len(content["items"])
    if wrong:
        print(f"NOT whole: {len(wrong)} of its files are missing, extra or wrong")
        return 1
    print(f"whole: {count} items, {hashed:,} bytes hashed; bundle.json is sha256 {digest}")
    if options.unpack is not None:
        try:
            unpack(options.bundle, options.base, content, options.unpack)
            # Last: whoever takes files from there has their hashes, and knows that all were laid out.
            shutil.copyfile(os.path.join(options.bundle, CONTENT), os.path.join(options.unpack, CONTENT))
        except OSError as error:
            print(f"error[unpack]: {error}; run it again when that is mended", file=sys.stderr)
            return 3
        print(f"unpacked into {options.unpack}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
