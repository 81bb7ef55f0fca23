#!/bin/sh
# Inside the image build: make below /image all that our layer adds to the base, the same bytes every time.
# The base's own environment is not touched: ours is laid over it, so that packages of the base (torch,
# torch_npu) are seen and those of our lock win.
# Reads: /build (context), EPOCH, RUN_UID, DRIVER_GID and what find_base.sh reads.
set -eu
here=$(dirname "$0")
umask 022

fail() { # fail ID WHAT DO
  printf 'error[%s]: %s\n  do: %s\n' "$1" "$2" "$3" >&2
  exit 3
}

found=$(sh "$here/find_base.sh")
eval "$(echo "$found" | sed "s/=\(.*\)/='\1'/")"
env=/opt/stack/env

# Who the container runs as: the driver's device nodes belong to the group HwHiAiUser, by number
gid=$(awk -F: '$1 == "HwHiAiUser" { print $3 }' /etc/group)
if [ -n "$gid" ] && [ -n "$DRIVER_GID" ] && [ "$gid" != "$DRIVER_GID" ]; then
  fail image-driver-group "the base's group HwHiAiUser has the number $gid; DRIVER_GID is $DRIVER_GID" \
    "leave DRIVER_GID out, or give the hosts and the image the same number"
fi
group_line=""
if [ -z "$gid" ]; then
  gid=${DRIVER_GID:-1000}
  taken=$(awk -F: -v gid="$gid" '$3 == gid { print $1 }' /etc/group)
  [ -z "$taken" ] || fail image-driver-group "the base has no group HwHiAiUser, and $gid is its group '$taken'" \
    "give the number that the hosts' HwHiAiUser has: DRIVER_GID=NUMBER"
  group_line="HwHiAiUser:x:$gid:"
fi
if grep -q -e '^stack:' -e "^[^:]*:[^:]*:$RUN_UID:" /etc/passwd; then
  fail image-user "the base has a user 'stack', or one with the number $RUN_UID" "give another number: RUN_UID=NUMBER"
fi

# The environment
"$BASE_PYTHON" -m venv --system-site-packages --without-pip --symlinks "$env"
mkdir -p /build/tools
"$BASE_PYTHON" -m zipfile -e /build/wheels/uv-*.whl /build/tools
uv=$(echo /build/tools/uv-*.data/scripts/uv)
chmod +x "$uv"
# --no-deps: the lock is whole, and torch, which it leaves to the base, would be looked for.
"$uv" pip install --quiet --no-config --no-index --find-links /build/wheels --require-hashes --no-deps --no-cache \
  --link-mode copy --python "$env/bin/python" -r /build/manifests/locks/container.txt
# uv notes when each wheel was written, which no installed package needs and no second build repeats.
for note in "$env"/lib/python3*/site-packages/*.dist-info/uv_cache.json; do
  [ -e "$note" ] || continue
  rm "$note"
  sed -i '/uv_cache\.json,/d' "$(dirname "$note")/RECORD"
done

# The code, installed as `make setup` does: the checkout's own tree on the path
mkdir -p /opt/stack/src
cp -R /build/stack /build/manifests /build/LICENSE /build/README.md /build/pyproject.toml /opt/stack/src/
site=$(echo "$env"/lib/python3*/site-packages)
echo /opt/stack/src >"$site/stack.pth"

# The commands
shell=$(command -v bash || command -v sh)
mkdir -p /opt/stack/bin
{
  echo "# What CANN and the driver need. The driver itself is mounted from the host."
  echo "if [ -z \"\${STACK_ENVIRONMENT:-}\" ]; then"
  echo "  export STACK_ENVIRONMENT=1"
  echo "  . '$CANN_SET_ENV' >/dev/null"
  echo "  driver=/usr/local/Ascend/driver/lib64"
  echo "  LD_LIBRARY_PATH=\${LD_LIBRARY_PATH:-}:\$driver:\$driver/common:\$driver/driver"
  # An empty part, which set_env.sh may leave, would mean the working folder.
  echo "  LD_LIBRARY_PATH=\$(echo \"\$LD_LIBRARY_PATH\" | tr -s : | sed 's/^://; s/:\$//')"
  echo "  PYTHONPATH=\$(echo \"\${PYTHONPATH:-}\" | tr -s : | sed 's/^://; s/:\$//')"
  echo "  if [ -z \"\$PYTHONPATH\" ]; then unset PYTHONPATH; else export PYTHONPATH; fi"
  echo "  export LD_LIBRARY_PATH"
  echo "  unset driver"
  echo "fi"
} >/opt/stack/environment.sh
printf '#!%s\n. /opt/stack/environment.sh\nexec "$@"\n' "$shell" >/opt/stack/bin/with-environment
printf '#!%s\n. /opt/stack/environment.sh\nexec %s/bin/python -m stack "$@"\n' "$shell" "$env" >/opt/stack/bin/stack
printf '#!%s\n. /opt/stack/environment.sh\nexec %s/bin/python "$@"\n' "$shell" "$env" >/opt/stack/bin/python
chmod 755 /opt/stack/bin/*
echo "$found" >/opt/stack/base.txt

"$env/bin/python" -I -B "$here/prove.py" /build/manifests/locks "$env" >/opt/stack/packages.txt

# Compiled code that depends on no clock and no chance: the seed orders sets of constants, and -I would ignore it.
# Without compiled code every start as a user who cannot write here would compile all again.
(cd / && env -i PYTHONHASHSEED=0 "$env/bin/python" -s -m compileall -f -q --invalidation-mode unchecked-hash \
  -x '/tests?/' /opt/stack/env/lib /opt/stack/src >/build/compile.log 2>&1) || true # packages carry templates
[ -f "$(echo /opt/stack/src/stack/__pycache__/errors.*.pyc)" ] ||
  fail image-not-compiled "no code was compiled: $(tail -n 1 /build/compile.log)" "look at the base's Python"

mkdir -p /image/etc /image/opt /image/work
cp /etc/passwd /etc/group /image/etc/
[ -z "$group_line" ] || echo "$group_line" >>/image/etc/group
echo "stack:x:$RUN_UID:$gid:stack:/work:$shell" >>/image/etc/passwd
mv /opt/stack /image/opt/

# One time for everything, and the modes of the folders that are the base's
for folder in /etc /opt; do chmod --reference="$folder" "/image$folder"; done
for file in /etc/passwd /etc/group; do chmod --reference="$file" "/image$file"; done
chmod 1777 /image/work # whoever the container runs as
find /image -exec touch -h -d "@$EPOCH" {} +
