#!/bin/sh
# Find, inside a vendor's image, the Python that carries torch_npu and CANN's set_env.sh, and prove both.
# Nothing is assumed of names and places: image families have held one to five environments, in conda and
# outside it. Prints BASE_PYTHON, BASE_PREFIX, CANN_SET_ENV, CANN_HOME and CANN_VERSION as lines NAME=VALUE.
#   PYTHON=3.10 PACKAGES="torch=2.7.1 torch_npu=2.7.1.post6" ENVIRONMENT=torch2.7.1 CANN=9.1.0 find_base.sh [ROOT]
# ENVIRONMENT decides only where several hold these versions. CANN=any takes every version.
# ROOT is for tests: the tree to look at in place of /.
set -eu
root=${1:-}

say() { echo "base: $*" >&2; }
fail() { # fail ID WHAT DO
  printf 'error[%s]: %s\n  do: %s\n' "$1" "$2" "$3" >&2
  exit 3
}

# What an interpreter says of itself: version, prefix, and the wanted packages that it would import.
probe='
import importlib.metadata, sys
found = []
for name in sys.argv[1:]:
    try:
        found.append(name + "=" + importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        found.append(name + "=none")
print("python=%d.%d" % sys.version_info[:2], *found)
'

interpreter_of() { # the interpreter that imports from a site-packages folder
  lib=$(dirname "$1")
  name=$(basename "$lib")
  prefix=$(dirname "$(dirname "$lib")")
  for python in "$prefix/bin/$name" "$root/usr/bin/$name"; do
    if [ -x "$python" ]; then echo "$python"; return; fi
  done
}

as_found() { # the wanted versions in the form that the probe prints, without local parts such as +cpu
  printf 'python=%s' "$PYTHON"
  for package in $PACKAGES; do printf ' %s' "$package"; done
  echo
}

find_python() {
  names=$(for package in $PACKAGES; do printf '%s ' "${package%%=*}"; done)
  seen=""
  fits=""
  for info in $(find "${root:-/}" -xdev -type d -name 'torch_npu-*.dist-info' 2>/dev/null | sort); do
    python=$(interpreter_of "$(dirname "$info")")
    [ -n "$python" ] || { say "$info belongs to no interpreter"; continue; }
    # -I: what PYTHONPATH and the user's own folder hold is not part of the image.
    # shellcheck disable=SC2086
    if ! holds=$("$python" -I -c "$probe" $names 2>/dev/null); then
      say "$python does not start"
      continue
    fi
    public=$(echo "$holds" | sed 's/+[A-Za-z0-9.]*//g')
    seen="$seen
    $python: $holds"
    if [ "$public" = "$(as_found)" ]; then fits="$fits $python"; fi
  done
  [ -n "$seen" ] || fail image-no-torch-npu "no Python in the base image carries torch_npu" \
    "name a base image of the drivingsdk family (BASE=IMAGE)"
  # shellcheck disable=SC2086
  set -- $fits
  case $# in
    0) fail image-versions "no Python in the base image holds what is needed: $(as_found); it holds:$seen" \
        "take a base image with these versions, or change base.packages in manifests/images.yaml and the locks with it" ;;
    1) BASE_PYTHON=$1 ;;
    *) BASE_PYTHON=""
       for python in "$@"; do
         if [ "$(basename "$(dirname "$(dirname "$python")")")" = "$ENVIRONMENT" ]; then BASE_PYTHON=$python; fi
       done
       [ -n "$BASE_PYTHON" ] || fail image-environment \
         "several Pythons of the base image hold what is needed, and none is of an environment '$ENVIRONMENT': $*" \
         "put one's environment into base.environment of manifests/images.yaml" ;;
  esac
  BASE_PREFIX=$(dirname "$(dirname "$BASE_PYTHON")")
  case $BASE_PREFIX in
    "$root"/root | "$root"/root/*) fail image-private "the environment $BASE_PREFIX lies where only root can enter" \
      "take a base image that has it elsewhere, such as /opt/conda" ;;
  esac
}

home_of() { # where a set_env.sh says that CANN and its operators are: HOME|OPP
  shell=$(command -v bash || command -v sh)
  env -i PATH="$PATH" HOME=/nonexistent "$shell" -c \
    ". '$1' >/dev/null 2>&1; echo \"\${ASCEND_HOME_PATH:-\${ASCEND_TOOLKIT_HOME:-}}|\${ASCEND_OPP_PATH:-}\"" 2>/dev/null || true
}

find_cann() {
  CANN_SET_ENV=""
  CANN_HOME=""
  others=""
  for script in $(find "$root/usr/local/Ascend" "$root/opt" "$root/home" -maxdepth 6 -name set_env.sh 2>/dev/null |
    awk '{ print length, $0 }' | sort -n | cut -d' ' -f2-); do
    told=$(home_of "$script")
    home=${told%%|*}
    if [ -z "$home" ] || [ ! -d "$home" ]; then say "$script is not CANN's"; continue; fi
    real=$(cd "$home" && pwd -P)
    if [ -z "$CANN_HOME" ]; then
      CANN_SET_ENV=$script
      CANN_HOME=$real
      operators=${told#*|}
    elif [ "$real" != "$CANN_HOME" ]; then
      others="$others $script"
    fi
  done
  [ -n "$CANN_HOME" ] || fail image-no-cann \
    "no set_env.sh in the base image leads to a CANN (looked below /usr/local/Ascend, /opt and /home)" \
    "name a base image of the drivingsdk family (BASE=IMAGE)"
  [ -z "$others" ] || fail image-several-cann "the base image holds several CANNs: $CANN_SET_ENV$others" \
    "take a base image with one"
  [ -n "$(find -L "$CANN_HOME" -maxdepth 3 -name 'libascendcl.so*' 2>/dev/null | head -n 1)" ] || fail image-no-cann \
    "$CANN_HOME holds no libascendcl.so, which torch_npu loads" "name a base image with CANN's toolkit"
  # Without these the real torch_npu refuses to be imported (torch_npu/utils/npu_intercept.py of 2.7.1.post6).
  for part in "${operators:-ASCEND_OPP_PATH (not set)}" "$CANN_HOME/runtime" "$CANN_HOME/compiler"; do
    [ -d "$part" ] || fail image-cann-incomplete \
      "after $CANN_SET_ENV this is not there: $part; torch_npu refuses to be imported without it" \
      "name a base image with CANN's toolkit and operators"
  done
  CANN_VERSION=$(find -L "$CANN_HOME" -maxdepth 3 -name 'ascend_*_install.info' -exec sed -n 's/^version=//p' {} + |
    sort -u | head -n 1)
  CANN_VERSION=${CANN_VERSION:-unknown}
  case $CANN in
    any | "$CANN_VERSION") ;;
    *) if [ "$CANN_VERSION" = unknown ]; then
         say "the version of CANN in $CANN_HOME could NOT be told; $CANN is wanted"
       else
         fail image-cann "the base image holds CANN $CANN_VERSION; $CANN is wanted" \
           "take a base image with CANN $CANN, or change base.cann in manifests/images.yaml"
       fi ;;
  esac
}

find_python
say "Python: $BASE_PYTHON"
find_cann
say "CANN $CANN_VERSION: $CANN_SET_ENV"
printf 'BASE_PYTHON=%s\nBASE_PREFIX=%s\nCANN_SET_ENV=%s\nCANN_HOME=%s\nCANN_VERSION=%s\n' \
  "$BASE_PYTHON" "$BASE_PREFIX" "$CANN_SET_ENV" "$CANN_HOME" "$CANN_VERSION"
