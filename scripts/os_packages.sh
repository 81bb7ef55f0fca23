#!/bin/sh
# Resolve and fetch the OS packages that a bare Debian or Ubuntu host needs, and print their list as a manifest.
#   scripts/os_packages.sh IMAGE HOST "WHO NEEDS THEM" OUT PACKAGE... > manifests/packages/HOST.yaml
# IMAGE   a container image with nothing but the host's base system: what it has already is not fetched
# OUT     takes the files; 'stack mirror bundle --site DIR' looks for them in DIR/packages/HOST-MACHINE
# Connected side only. The list pins what the mirror has today; run it again when a security update has come.
set -eu
[ $# -ge 5 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
image=$1 host=$2 owner=$3 out=$4
shift 4
mkdir -p "$out"
out=$(cd "$out" && pwd)
docker run --rm --mount "type=bind,source=$out,target=/out" "$image" sh -euc '
  apt-get -qq update
  mkdir -p /tmp/debs/partial
  apt-get -qq install --download-only --no-install-recommends -o Dir::Cache::archives=/tmp/debs "$@" >/dev/null
  for file in /tmp/debs/*.deb; do cp "$file" "/out/$(basename "$file" | sed "s/%3a/:/")"; done' sh "$@" >&2
machine=$(docker run --rm --network none "$image" uname -m)
echo "# Made by scripts/os_packages.sh: $*, with all that they need on a bare $host."
printf 'schema: stack/packages/1\nhost: %s\nmachine: %s\nkind: deb\nneeded_by: %s\npackages:\n' "$host" "$machine" "$owner"
# What a package needs, by name: versions are resolved above, alternatives stay together.
needs() {
  { dpkg-deb -f "$1" Pre-Depends; dpkg-deb -f "$1" Depends; } | tr ',' '\n' |
    sed -E 's/\([^)]*\)//g; s/:any//g; s/[[:space:]]//g; /^$/d; s/.*/"&"/' | sort -u | paste -sd, - | sed 's/,/, /g'
}
for file in "$out"/*.deb; do
  printf '  - name: %s\n    version: "%s"\n    file: "%s"\n    size: %s\n    sha256: %s\n    depends: [%s]\n' "$(dpkg-deb -f "$file" Package)" \
    "$(dpkg-deb -f "$file" Version)" "$(basename "$file")" "$(stat -c %s "$file")" "$(sha256sum "$file" | cut -c1-64)" "$(needs "$file")"
done
