#!/bin/sh
# Make a stand-in of the vendor's image, to build and test ours over where that image cannot be had.
#   standin_base.sh TAG [WHEELS]
# The layout is that of the drivingsdk family, read from its published Dockerfiles: conda environments below
# /opt/conda/envs of which several hold the same torch and torch_npu, the group and user HwHiAiUser, CANN below
# /usr/local/Ascend with set_env.sh, and an npu-smi that answers as without a driver. It is Debian, not openEuler.
# With WHEELS (a folder with torch, torchvision and torch_npu of manifests/locks/base.txt and all that they
# import) the packages are the real ones, and CANN's libraries are empty but for the names that torch_npu
# links against: it imports and counts no device. Without, the packages are their metadata and a version.
#   PYTHON_TREE=DIR  a relocatable Python 3.10 (default: the newest of pyenv)
#   STANDIN_SCRATCH=DIR  where to work (default: a folder in TMPDIR)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tag=${1:?usage: standin_base.sh TAG [WHEELS]}
wheels=${2:-}
epoch=1767225600 # 2026-01-01: nothing in the image depends on the day that it is made
cann=9.1.0

fail() { # fail ID WHAT DO
  printf 'error[%s]: %s\n  do: %s\n' "$1" "$2" "$3" >&2
  exit 3
}

command -v mmdebstrap >/dev/null || fail standin-mmdebstrap "mmdebstrap is not installed" "apt-get install mmdebstrap"
tree=${PYTHON_TREE:-$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10.* 2>/dev/null | sort -V | tail -n 1)}
[ -n "$tree" ] && [ -x "$tree/bin/python3.10" ] || fail standin-python "no Python 3.10 was found" "PYTHON_TREE=/path/to/prefix"
mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null ||
  awk '/^deb / { print $2; exit }' /etc/apt/sources.list)
scratch=${STANDIN_SCRATCH:-$(mktemp -d)}
mkdir -p "$scratch"
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
env=$root/opt/conda/envs/torch2.7.1

# Debian, with the libraries that a Python built elsewhere links against
SOURCE_DATE_EPOCH=$epoch mmdebstrap --quiet --variant=minbase \
  --include=ca-certificates,libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,libreadline8,libncursesw6,libgomp1,libstdc++6 \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --customize-hook='chroot "$1" groupadd --gid 1000 HwHiAiUser' \
  --customize-hook='chroot "$1" useradd --uid 1000 --gid 1000 --no-create-home --shell /usr/sbin/nologin HwHiAiUser' \
  bookworm "$root" "$mirror"

# The environment
mkdir -p "$env/bin" "$env/lib"
cp -a "$tree/bin/python3.10" "$env/bin/"
ln -s python3.10 "$env/bin/python"
ln -s python3.10 "$env/bin/python3"
cp -a "$tree/lib/python3.10" "$env/lib/"
rm -rf "$env/lib/python3.10/test" "$env/lib/python3.10/config-3.10"* "$env"/lib/python3.10/site-packages/*
if ls "$tree"/lib/libpython3.10.so* >/dev/null 2>&1; then
  # A Python built with a shared library looks for it where it was built.
  cp -a "$tree"/lib/libpython3.10.so* "$env/lib/"
  echo /opt/conda/envs/torch2.7.1/lib >"$root/etc/ld.so.conf.d/python.conf"
  ldconfig -r "$root"
fi
site=$env/lib/python3.10/site-packages

version_of() { sed -n "s/^$1==\([^ ]*\).*/\1/p" "$here/../manifests/locks/base.txt"; }
if [ -n "$wheels" ]; then
  for wheel in "$wheels"/*.whl; do "$tree/bin/python3.10" -m zipfile -e "$wheel" "$site"; done
else
  for package in torch torchvision torch-npu; do
    name=$(echo "$package" | tr - _)
    mkdir -p "$site/$name" "$site/$name-$(version_of "$package").dist-info"
    echo "__version__ = '$(version_of "$package")'" >"$site/$name/__init__.py"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$name" "$(version_of "$package")" \
      >"$site/$name-$(version_of "$package").dist-info/METADATA"
  done
fi
find "$root" -name __pycache__ -prune -exec rm -rf {} +

# CANN, and a package beside it whose set_env.sh is not CANN's
ascend=$root/usr/local/Ascend
toolkit=$ascend/ascend-toolkit
machine=$(uname -m)
mkdir -p "$toolkit/$cann/lib64" "$toolkit/$cann/$machine-linux" "$toolkit/$cann/opp" "$toolkit/$cann/runtime" \
  "$toolkit/$cann/compiler" "$ascend/nnal/atb" "$root/usr/local/sbin"
ln -s "$cann" "$toolkit/latest"
printf 'package_name=Ascend-cann-toolkit\nversion=%s\narch=%s\nos=linux\n' "$cann" "$machine" \
  >"$toolkit/$cann/$machine-linux/ascend_toolkit_install.info"
cat >"$toolkit/set_env.sh" <<'SET_ENV'
export ASCEND_TOOLKIT_HOME=/usr/local/Ascend/ascend-toolkit/latest
export ASCEND_HOME_PATH=/usr/local/Ascend/ascend-toolkit/latest
export ASCEND_OPP_PATH=${ASCEND_TOOLKIT_HOME}/opp
export LD_LIBRARY_PATH=${ASCEND_TOOLKIT_HOME}/lib64:${LD_LIBRARY_PATH}
export PATH=${ASCEND_TOOLKIT_HOME}/bin:${PATH}
SET_ENV
echo 'export ATB_HOME_PATH=/usr/local/Ascend/nnal/atb/latest' >"$ascend/nnal/atb/set_env.sh"
sh "$here/standin_cann.sh" "$toolkit/$cann/lib64" "$site/torch_npu" "$site/torch"
printf '#!/bin/sh\necho "dcmi module initialize failed. ret is -8005"\nexit 187\n' >"$root/usr/local/sbin/npu-smi"
chmod 755 "$root/usr/local/sbin/npu-smi"

# The family's other environments, with the same packages: the same files once more
for other in bevformer sparse4d; do cp -al "$env" "$root/opt/conda/envs/$other"; done

chown -R 0:0 "$root/opt/conda" "$ascend" "$root/usr/local/sbin"
chmod -R go+rX "$root/opt/conda" "$ascend"
rm -rf "$root/var/log/"* "$root/var/cache/ldconfig/aux-cache"
find "$root" -exec touch -h -d "@$epoch" {} +
tar --sort=name --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --numeric-owner \
  -C "$root" -cf - . | docker import --change 'CMD ["/bin/bash"]' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  --change "LABEL stack.standin=$([ -n "$wheels" ] && echo packages || echo metadata)" - "$tag"
