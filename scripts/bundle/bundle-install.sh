#!/bin/sh
# Install stack from this bundle on a machine without any network.
#   sh bundle-install.sh --to DIR
#     --to DIR          checkout, wheels, models and all else are laid out here; packages go into DIR/envs
#     --target NAME     which wheels, where the bundle holds them for several machines (default: this machine's)
#     --python PATH     the Python to install for (default: the target's version on PATH)
#     --expect SHA256   what the sha256 of bundle.json must be
#     --base OLD        the bundle that this one builds on (made with --diff OLD)
# The bundle is verified first, every byte of it; nothing is installed from one that is not whole.
set -eu
bundle=$(cd "$(dirname "$0")" && pwd)

fail() { # fail EXIT ID WHAT DO
  printf 'error[%s]: %s\n  do: %s\n' "$2" "$3" "$4" >&2
  exit "$1"
}

to="" target="" python="" expect="" base=""
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail 2 install-arguments "$1 needs a value" "sh bundle-install.sh --to DIR"
  case "$1" in
    --to) to=$2 ;;
    --target) target=$2 ;;
    --python) python=$2 ;;
    --expect) expect=$2 ;;
    --base) base=$(cd "$2" && pwd) ;;
    *) fail 2 install-arguments "unknown option $1" "sh bundle-install.sh --to DIR" ;;
  esac
  shift 2
done
[ -n "$to" ] || fail 2 install-arguments "--to is missing" "sh bundle-install.sh --to DIR"

checker=""
for name in ${python:-} python3 python3.11 python3.10 python3.12 python3.13; do
  if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null; then checker=$name; break; fi
done
[ -n "$checker" ] || fail 3 install-no-python "no Python 3.6 or later was found" "install the OS packages of the bundle first (packages/)"

mkdir -p "$to"
to=$(cd "$to" && pwd)
set -- "$bundle" --unpack "$to"
[ -z "$expect" ] || set -- "$@" --expect "$expect"
[ -z "$base" ] || set -- "$@" --base "$base"
"$checker" "$bundle/verify-bundle.py" "$@" || fail 1 install-not-whole "the bundle is not whole, or could not be unpacked (see above); nothing was installed" "carry what is named again"

# One line a target of the bundle whose wheels `make setup` can install: NAME PYTHON MACHINE
targets=$("$checker" -c 'import json, sys
for name, t in sorted(json.load(open(sys.argv[1], encoding="utf-8"))["targets"].items()):
    if {"production", "current"} & set(t.get("locks", "production").split()):
        print(name, t["python"], t["machine"])' "$bundle/bundle.json")
[ -n "$targets" ] || fail 2 install-target "this bundle has no wheels for a machine to work on; those that it has are for hosts that Ansible installs" "its files are in $to: mkdir STACK && tar -xf $to/checkout.tar -C STACK; docs/operations.md there says how to go on"
machine=$(uname -m)
if [ -z "$target" ]; then
  target=$(echo "$targets" | awk -v m="$machine" '$3 == m { print $1 }')
  [ "$(echo "$target" | wc -w)" = 1 ] || fail 2 install-target "wheels for $machine in this bundle: ${target:-none}" "name one with --target: $(echo "$targets" | awk '{ print $1 }' | tr '\n' ' ')"
fi
version=$(echo "$targets" | awk -v t="$target" '$1 == t { print $2 }')
[ -n "$version" ] || fail 2 install-target "this bundle has no wheels for '$target' to work on" "name one of: $(echo "$targets" | awk '{ print $1 }' | tr '\n' ' ')"
[ -n "$python" ] || python=$(command -v "python$version" || echo "$checker")
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$version" ] || fail 3 install-python "the wheels of '$target' are for Python $version, and $python is $found" "install Python $version, or name one with --python"

mkdir -p "$to/checkout"
tar -xf "$to/checkout.tar" -C "$to/checkout"
revision=$("$checker" -c 'import json, sys; print(json.load(open(sys.argv[1], encoding="utf-8"))["revision"])' "$bundle/bundle.json")
echo "export STACK_REVISION ?= $revision" >"$to/checkout/revision.mk"
{ # read by the Makefile: the same wheels and the same place for every later 'make'
  echo "export STACK_WHEELS ?= $to/wheels/$target"
  echo "export STACK_ENVS ?= $to/envs"
  echo "export PYTHON ?= $python"
} >>"$to/checkout/revision.mk"
cd "$to/checkout"
STACK_WHEELS="$to/wheels/$target" STACK_ENVS="$to/envs" PYTHON="$python" sh scripts/setup.sh
echo "installed: $to/checkout at revision $revision"
echo "next: cd $to/checkout && make reproduce"
