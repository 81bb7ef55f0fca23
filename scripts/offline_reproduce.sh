#!/bin/sh
# Install stack from a bundle and run `make reproduce` in a container that has no network, and count every
# attempt to leave it. Exit code 0: the verdict is good and nothing tried to leave.
#   scripts/offline_reproduce.sh BUNDLE SCRATCH [KEEP]
# BUNDLE   a folder made by 'make bundle' with manifests/bundles/demo.yaml
# SCRATCH  takes about 10 GB: what is unpacked and installed (removed at the end, unless a third word is given),
#          offline.log, and offline.json with what was counted.
# Needs a Docker engine (scripts/engine.sh start) and, once, mmdebstrap with a Debian mirror for the bare base:
# Debian 12 with Python, make and strace, and nothing of ours.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { echo "usage: $0 BUNDLE SCRATCH [KEEP]" >&2; exit 2; }
bundle=$(cd "$1" && pwd)
mkdir -p "$2"
scratch=$(cd "$2" && pwd)
keep=${3:-}
base=stack-offline-base:bookworm

say() { echo "offline: $*" >&2; }

docker info >/dev/null 2>&1 || { echo "error[offline-no-engine]: no Docker engine answers; do: scripts/engine.sh start" >&2; exit 3; }
if ! docker image inspect "$base" >/dev/null 2>&1; then
  say "making $base"
  mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
  packages=ca-certificates,make,python3,python3-venv,strace
  TMPDIR=/dev/shm mmdebstrap --quiet --variant=minbase --include="$packages" --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' bookworm - "$mirror" | docker import - "$base" >/dev/null
fi

rm -rf "$scratch/opt" "$scratch/offline.json"
mkdir -p "$scratch/opt"
say "installing and running without a network; the log is $scratch/offline.log"
status=0
docker run --rm --network none --cap-add SYS_PTRACE --shm-size 1g \
  --mount "type=bind,source=$bundle,target=/media/bundle,readonly" \
  --mount "type=bind,source=$here/offline_count.py,target=/offline_count.py,readonly" \
  --mount "type=bind,source=$scratch,target=/scratch" --mount "type=bind,source=$scratch/opt,target=/opt/stack" \
  "$base" sh -euc '
    count() { name=$1; shift; python3 /offline_count.py /scratch/offline.json "$name" -- "$@"; }
    count install sh /media/bundle/bundle-install.sh --to /opt/stack
    count reproduce make -C /opt/stack/checkout reproduce
    count again make -C /opt/stack/checkout reproduce
  ' >"$scratch/offline.log" 2>&1 || status=$?
grep -E "^offline: |^verdict|^error" "$scratch/offline.log" || tail -n 12 "$scratch/offline.log"
[ -n "$keep" ] || rm -rf "$scratch/opt"
exit "$status"
