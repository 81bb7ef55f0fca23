#!/bin/sh
# Resolve and fetch the OS packages that a bare host with rpm (openEuler, Kylin) needs, and print their list as a manifest.
#   scripts/rpm_packages.sh "WHO NEEDS THEM" OUT PACKAGE... > manifests/packages/ID-VERSION-MACHINE.yaml
# Runs as root on a connected machine of that very system, or in a container image of it, as bare as the hosts are:
# what is installed here is not fetched. Needs dnf, and installs nothing.
# OUT     a new folder; 'stack mirror bundle --site DIR' looks for its files in DIR/packages/ID-VERSION-MACHINE
# The list pins what the repositories have today; run it again when a security update has come.
set -eu
export LC_ALL=C
tab=$(printf '\t')

fail() { # fail CODE ID WHAT DO
  printf 'error[%s] %s\n  do: %s\n' "$2" "$3" "$4" >&2
  exit "$1"
}

[ $# -ge 3 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
owner=$1 out=${2%/}
shift 2
for tool in dnf rpm; do
  command -v "$tool" >/dev/null || fail 3 rpm-no-dnf "$tool is not on this machine: it cannot say what a host with rpm needs" \
    "run this on a machine of the hosts' own system, or in a container image of it; Debian and Ubuntu have scripts/os_packages.sh"
done
[ "$(id -u)" = 0 ] || fail 3 rpm-not-root "dnf resolves an installation for root only" "run this as root; it installs nothing"
[ ! -e "$out" ] || fail 2 rpm-out-there "$out is there already: what an earlier call fetched would get into the list" \
  "name a new folder, or remove this one"
for package; do
  ! rpm -q "$package" >/dev/null 2>&1 || fail 2 rpm-not-bare \
    "$package is installed here: what came here with it would be missing in the list, and on the hosts" \
    "run this where it is not installed, as on the hosts; a package that the hosts' system has anyway needs no list"
done
release() { sed -n "s/^$1=//p" /etc/os-release | tr -d "\"'"; }
host=$(release ID)-$(release VERSION_ID) machine=$(uname -m)

mkdir -p "$(dirname "$out")"
new=$(mktemp -d "$out.XXXXXX") work=$(mktemp -d)
trap 'rm -rf "$new" "$work"' EXIT
trap 'exit 130' INT TERM HUP
dnf -y install --downloadonly "--destdir=$new" --setopt=install_weak_deps=False --setopt=skip_if_unavailable=False "$@" >&2 2>"$work/said" || {
  cat "$work/said" >&2
  missing=$(sed -n 's/.*Unable to find a match: //p' "$work/said")
  [ -z "$missing" ] || fail 2 rpm-no-package "no repository of this machine has $missing" \
    "correct the name (dnf search), or add the repository that has it (dnf repolist)"
  fail 3 rpm-resolve "dnf could not resolve or fetch $*: $(grep . "$work/said" | head -n 1)" \
    "put it right on this machine (its words are above), then run this again"
}
cat "$work/said" >&2
chmod 755 "$new"

# ask FIELDS FILE...: what rpm says of package files, one line an entry
ask() { format=$1; shift; rpm -qp --nosignature --qf "$format" "$@" 2>/dev/null; }

# What the fetched packages provide, files too, and what they require: by capability, with the package's name.
{
  ask "[%{PROVIDENAME}\t%{=NAME}\n]" "$new"/*.rpm
  ask "[%{FILENAMES}\t%{=NAME}\n]" "$new"/*.rpm
} | sort -u >"$work/provided"
ask "[%{REQUIRENAME}\t%{=NAME}\n]" "$new"/*.rpm | sort -u >"$work/required"
# `(a if b)`, `((a or b) and c)`: their words are looked up one by one; a closing bracket may be the word's own.
grep '^(' "$work/required" | while IFS=$tab read -r rich name; do
  set -f
  for word in $rich; do
    word=$(printf '%s' "$word" | sed 's/^(*//')
    for candidate in "$word" "${word%)}" "${word%))}" "${word%)))}"; do printf '%s\t%s\n' "$candidate" "$name"; done
  done
done >"$work/rich"
sort -u "$work/required" "$work/rich" | join -t "$tab" - "$work/provided" | cut -f 2,3 | sort -u >"$work/needs"

quoted() { printf '%s' "$1" | sed 's/[\\"]/\\&/g; s/.*/"&"/'; }
version() { sed 's/^(none)://; s/^0://'; }
echo "# Made by scripts/rpm_packages.sh on $(release PRETTY_NAME): $*, with all that they need there."
printf 'schema: stack/packages/1\nhost: %s\nmachine: %s\nkind: rpm\nneeded_by: %s\npackages:\n' "$host" "$machine" "$(quoted "$owner")"
for file in "$new"/*.rpm; do
  name=$(ask '%{NAME}' "$file")
  depends=$(sed -n "s/^$(printf '%s' "$name" | sed 's/\./\\./g')$tab//p" "$work/needs" | grep -vFx "$name" | sed 's/.*/"&"/' | paste -sd, - | sed 's/,/, /g')
  printf '  - name: %s\n    version: "%s"\n    file: "%s"\n    size: %s\n    sha256: %s\n    depends: [%s]\n' "$name" \
    "$(ask '%{EPOCH}:%{VERSION}-%{RELEASE}' "$file" | version)" "${file##*/}" "$(stat -c %s "$file")" "$(sha256sum "$file" | cut -c1-64)" "$depends"
  # A package of the bare system that is too old for the others: hosts that have this version get the newer one.
  if old=$(rpm -q --qf '%{EPOCH}:%{VERSION}-%{RELEASE}\n' "$name" 2>/dev/null); then
    printf '    replaces: "%s"\n' "$(printf '%s\n' "$old" | tail -n 1 | version)"
  fi
done
mv "$new" "$out"
