#!/bin/sh
# From bare hosts to a verdict and back, on containers that stand for hosts: walk.sh [FOLDER]
#   check, apply, apply again (nothing may change), damage and mend; reproduce over two hosts; teardown, and the hosts
#   are compared with what they were. Each step's time is printed; nothing may try to leave the hosts' network.
#   WALK_DRILLS=1: before the teardown a trainer host dies in a training, one that only listens and then the first one,
#   and a training is stopped; each goes on from its checkpoint with the losses of the undisturbed one. 5 minutes more.
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

losses() { # losses FOLDER: the run's losses as its journal has them, the last word on each step
  python3 - "$1/train/journal.jsonl" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
found = {line["step"]: line["metrics"]["train/loss"] for line in lines if "train/loss" in line.get("metrics", {})}
print(*(f"{step} {loss!r}" for step, loss in sorted(found.items())), sep="\n")
PYTHON
}
begin() { # begin NAME: the same training in a folder of its own, with the data of the first; waits for a checkpoint
  at=/opt/stack/$1
  for host in trainer1 trainer2; do
    inside "$host" sh -c "cp -a /opt/stack/train $at && cd $at/work/runs/demo-two-hosts && rm -rf train* verdict*"
  done
  own="{\"train_job_folder\": \"$at\", \"train_job_collect\": \"$folder/$1\"}"
  (cd ansible && ansible-playbook -i "$inventory" playbooks/reproduce.yml -e "@$folder/walk.json" -e "$own" >"$folder/$1-broken.log" 2>&1) &
  playing=$!
  saved="ls -d $at/work/runs/demo-two-hosts/train.partial/checkpoints/[0-9]*[0-9]"
  tries=0
  until inside trainer1 sh -c "$saved" >/dev/null 2>&1; do
    tries=$((tries + 1)); [ "$tries" -le 600 ] || fail "no checkpoint in $at"
    sleep 0.3
  done
}
runs() { [ "$(inside "$1" docker container inspect -f '{{ .State.Running }}' stack-demo-two-hosts)" = true ]; }
go_on() { # go_on NAME: the job ended without an end; the same command ends it, with the undisturbed losses
  if wait "$playing"; then fail "$1: the job was to end without a verdict"; fi
  play "$1" reproduce -e "$own"
  grep -qE 'resum|from step' "$folder/$1/container.log" || grep -q '"kind": "attempt"' "$folder/$1/train/journal.jsonl" ||
    fail "$1 began again"
  losses "$folder/collected/trainer1" >"$folder/losses"
  losses "$folder/$1/trainer1" | diff "$folder/losses" - || fail "$1 has other losses than the undisturbed training"
  for host in trainer1 trainer2; do inside "$host" rm -rf "/opt/stack/$1"; done
}
host_dies() { # host_dies NAME DEAD OTHER: no power, no word; the other host has 60 s to stop
  begin "$1"
  docker network disconnect -f "stack-test-$set_number" "$2-$set_number"
  docker kill "$2-$set_number" >/dev/null
  died=$(date +%s)
  while runs "$3"; do [ $(($(date +%s) - died)) -le 60 ] || fail "$1: $3 runs a minute after $2 died"; sleep 0.5; done
  say "$1: $3 stopped after $(($(date +%s) - died)) s"
  sh scripts/test_hosts.sh up "$folder" >"$folder/$1-back.log" 2>&1
  go_on "$1"
}
stopped() {
  begin stopped
  play stop stop
  ! runs trainer1 && ! runs trainer2 || fail "stop left a container running"
  go_on stopped
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

if [ -n "${WALK_DRILLS:-}" ]; then
  host_dies other-host-dies trainer2 trainer1
  host_dies first-host-dies trainer1 trainer2
  stopped
fi

play teardown teardown
for host in trainer1 tracking; do
  state "$host" >"$folder/$host.after"
  diff "$folder/$host.before" "$folder/$host.after" >"$folder/$host.diff" || fail "teardown left something on $host: $folder/$host.diff"
done
sh scripts/test_hosts.sh attempts "$folder" >"$folder/attempts" || fail "packets tried to leave: $(tr '\n' ' ' <"$folder/attempts")"
[ -n "${WALK_KEEP:-}" ] || sh scripts/test_hosts.sh down "$folder"
say "done in $(($(date +%s) - began)) s; no packet tried to leave"
