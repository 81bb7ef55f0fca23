#!/bin/sh
# From bare hosts to a verdict and back, on containers that stand for hosts: walk.sh [FOLDER]
#   check, apply, apply again (nothing may change), damage and mend; reproduce over two hosts; teardown, and the hosts
#   are compared with what they were. Each step's time is printed; nothing may try to leave the hosts' network.
# Needs root, Debian's archive, ansible-playbook on the path (or ANSIBLE_VENV=DIR) and .venv with Python 3.11.
# WALK_KEEP=1 leaves the hosts standing. WALK_VARS=FILE adds variables.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-${STACK_TEST_HOSTS:-/tmp/stack-walk-${STACK_TEST_SET:-80}}}
set_number=${STACK_TEST_SET:-80}
inventory=$folder/inventory/hosts.yml
[ -z "${ANSIBLE_VENV:-}" ] || PATH=$ANSIBLE_VENV/bin:$PATH
command -v ansible-playbook >/dev/null || { echo "walk: no ansible-playbook; see manifests/locks/controller.txt" >&2; exit 3; }
began=$(date +%s)
mkdir -p "$folder"

say() { echo "walk: $*" >&2; }
fail() { say "FAILED: $*"; exit 1; }
step() { # step NAME COMMAND...: its output goes to a file
  name=$1; shift
  at=$(date +%s)
  "$@" >"$folder/$name.log" 2>&1 || { tail -n 40 "$folder/$name.log" >&2; fail "$name (whole log: $folder/$name.log)"; }
  say "$name: $(($(date +%s) - at)) s"
}
play() { # play NAME PLAYBOOK ARGS...
  name=$1 book=$2; shift 2
  (cd ansible && STACK_REPORT="$folder/$name.json" step "$name" ansible-playbook -i "$inventory" "playbooks/$book.yml" -e "@$folder/walk.json" "$@")
}
changed() { # changed NAME HOST: how many tasks changed something there
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["hosts"][sys.argv[2]]["changed"])' "$folder/$1.json" "$2"
}
inside() { host=$1; shift; docker exec "$host-$set_number" "$@"; }
state() { # what a host is: files, users, groups, units, packages
  inside "$1" sh -c 'find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /dev -o -path /var/log \
    -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /root/.ansible -o -path /var/lib/apt \) -prune -o -print |
    grep -v -E "^/etc/(passwd|shadow|group|gshadow|subuid|subgid)-$" | sort # the backups that useradd leaves
    getent passwd | cut -d: -f1 | sort; getent group | sort; systemctl list-unit-files --no-legend | sort; dpkg -l | awk "/^ii/ { print \$2 }"'
}
variables() {
  image=$(cat "$folder/image.id")
  cat >"$folder/walk.json" <<JSON
{"stack_serial": "100%", "site_check_cards": 0, "site_check_free_gb": {"/var/lib/docker": 1, "/opt/stack": 1},
 "images_wanted": [{"archive": "train.tar", "id": "$image", "tag": "stack-train:1"}],
 "train_job_image": "$image", "train_job_manifest": "runs/demo-two-hosts.yaml", "train_job_shm": "1g", "train_job_poll_s": 3,
 "train_job_mounts": [{"source": "/opt/test-host/env", "target": "/opt/stack/env", "kind": "folder"}],
 "train_job_collect": "$folder/collected", "teardown_data": true}
JSON
}

step hosts sh scripts/test_hosts.sh fresh "$folder"
step image sh scripts/test_image.sh "$folder"
mkdir -p "$folder/bundle/packages"
if [ ! -e "$folder/bundle/packages/debian-12-x86_64" ]; then
  step packages sh scripts/os_packages.sh stack-test-base:bookworm debian-12 walk "$folder/engine" docker.io
  mv "$folder/engine" "$folder/bundle/packages/debian-12-x86_64"
fi
variables
for host in trainer1 tracking; do state "$host" >"$folder/$host.before"; done

# What this folder of packages and one image can do; a whole bundle brings the inside and the tracking server too.
roles=site_check,host_record,host_base,container_runtime,images
play check provision --tags "$roles" --check --diff
for host in trainer1 tracking; do state "$host" | cmp -s - "$folder/$host.before" || fail "--check changed $host"; done
play apply provision --tags "$roles"
play again provision --tags "$roles"
for host in trainer1 trainer2 tracking; do
  [ "$(changed again "$host")" = 0 ] || fail "a second run changed $(changed again "$host") things on $host"
done
inside trainer2 sh -c 'rm /etc/security/limits.d/90-stack.conf; systemctl stop docker docker.socket'
play mend provision --tags "$roles"
[ "$(changed mend trainer2)" = 2 ] || fail "two things were damaged, $(changed mend trainer2) were mended"
[ "$(changed mend trainer1)" = 0 ] || fail "mending one host changed another"

play reproduce reproduce
[ -s "$folder/collected/trainer1/verdict.json" ] || fail "no verdict came back"
play reproduce-again reproduce
grep -q 'nothing to do' "$folder/reproduce-again.log" || fail "a finished job was started again"

play teardown teardown
for host in trainer1 tracking; do
  state "$host" >"$folder/$host.after"
  diff "$folder/$host.before" "$folder/$host.after" >"$folder/$host.diff" || fail "teardown left something on $host: $folder/$host.diff"
done
sh scripts/test_hosts.sh attempts "$folder" >"$folder/attempts" || fail "packets tried to leave: $(tr '\n' ' ' <"$folder/attempts")"
[ -n "${WALK_KEEP:-}" ] || sh scripts/test_hosts.sh down "$folder"
say "done in $(($(date +%s) - began)) s; no packet tried to leave"
