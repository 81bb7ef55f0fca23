#!/bin/sh
# From a bundle and bare hosts to a verdict in the tracking server and back, on containers that stand for hosts:
# walk.sh [FOLDER]
#   bundle; check, apply, apply again (nothing may change), damage and mend; inside server, tracking server and data on
#   the third host, twice; reproduce over two hosts; the verdict as the tracking server has it; teardown, first without
#   the data, and the hosts are compared with what they were. Each step's time is printed; nothing may try to leave the
#   hosts' network.
#   WALK_DRILLS=1: before the teardown a trainer host dies in a training, one that only listens and then the first one,
#   and a training is stopped; each goes on from its checkpoint with the losses of the undisturbed one. Then a newer
#   bundle takes over on the third host, which keeps its runs.
# Needs root, Debian's archive, an index, ansible-playbook on the path (or ANSIBLE_VENV=DIR) and .venv with Python 3.11.
# Exit code 3: something from outside could not be had, and nothing was tested. 1: the walk failed.
# WALK_KEEP=1 leaves the hosts standing. WALK_GO_ON=1 goes on after the last good step of an earlier call.
set -eu
cd "$(dirname "$0")/.."
set_number=${STACK_TEST_SET:-80}
folder=${1:-${STACK_TEST_HOSTS:-/tmp/stack-walk-$set_number}}
inventory=$folder/inventory/hosts.yml
site=$folder/site
[ -z "${ANSIBLE_VENV:-}" ] || PATH=$ANSIBLE_VENV/bin:$PATH
command -v ansible-playbook >/dev/null || { echo "walk: no ansible-playbook; see manifests/locks/controller.txt" >&2; exit 3; }
export ANSIBLE_VAULT_PASSWORD_FILE="$folder/vault-password"
began=$(date +%s)
code=1
[ -n "${WALK_GO_ON:-}" ] || rm -rf "$folder/done"
mkdir -p "$folder/done"

say() { echo "walk: $*" >&2; }
fail() { say "FAILED: $*"; exit 1; }
past() { [ -e "$folder/done/$1" ]; }
step() { # step NAME COMMAND...: its output goes to a file
  name=$1; shift
  if past "$name"; then return; fi
  at=$(date +%s)
  set +e # a shell looks at no failure inside a function that is part of a condition
  (set -e; "$@") >"$folder/$name.log" 2>&1
  rc=$?
  set -e
  if [ "$rc" -ne 0 ]; then
    tail -n 40 "$folder/$name.log" >&2
    say "FAILED: $name after $(($(date +%s) - at)) s (whole log: $folder/$name.log)"
    exit "$code"
  fi
  say "$name: $(($(date +%s) - at)) s"
  touch "$folder/done/$name"
}
play() { # play NAME TARGET ARGS...: a target of make, as docs/operations.md has it
  name=$1 target=$2; shift 2
  STACK_REPORT="$folder/$name.json" step "$name" make -s "$target" INVENTORY="$inventory" RUN=manifests/runs/demo-two-hosts.yaml ARGS="$*"
}
book() { # book NAME PLAYBOOK ARGS...
  name=$1 file=$2; shift 2
  (cd ansible && STACK_REPORT="$folder/$name.json" step "$name" ansible-playbook -i "$inventory" "playbooks/$file.yml" "$@")
}
changed() { # changed NAME HOST: how many tasks changed something there
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["hosts"][sys.argv[2]]["changed"])' "$folder/$1.json" "$2"
}
unchanged() { # unchanged NAME: nothing was changed on any host
  for host in trainer1 trainer2 tracking; do
    [ "$(changed "$1" "$host")" = 0 ] || fail "$1 changed $(changed "$1" "$host") things on $host (see $folder/$1.json)"
  done
}
inside() { host=$1; shift; docker exec -i "$host-$set_number" "$@"; }
state() { # what a host is: files, contents of its settings, users, groups, units, packages
  inside "$1" sh -c 'find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /dev -o -path /var/log \
    -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /root/.ansible -o -path /var/lib/apt \) -prune -o -print |
    grep -v -E "^/etc/(passwd|shadow|group|gshadow|subuid|subgid)-$|^/var/lib/ucf/|^/var/tmp/systemd-private|^/usr/share/man/|\.target\.wants$" |
    sort # without what useradd, ucf and systemd keep for themselves, and empty folders of packages
    find /etc -xdev -type f ! -name "*-" ! -name ld.so.cache | grep -v -E "^/etc/(passwd|shadow|group|gshadow|subuid|subgid)$" |
    sort | xargs sha256sum
    getent passwd | sort; getent group | sort; systemctl list-unit-files --no-legend | sort; dpkg -l | awk "/^ii/ { print \$2 }"' </dev/null
}
packages() { # the files that both lists of a Debian 12 host pin
  sh scripts/os_packages.sh stack-test-base:bookworm debian-12 walk "$site/packages/debian-12-x86_64" \
    docker.io iptables python3 python3-venv make chrony nginx postgresql openssl
  for list in manifests/packages/debian-12-x86_64.yaml manifests/packages/tracking/debian-12-x86_64.yaml; do
    sed -n 's/^    file: "\(.*\)"$/\1/p' "$list" | while read -r file; do
      [ -e "$site/packages/debian-12-x86_64/$file" ] || { echo "$list pins $file, and Debian's archive has another one now"; exit 3; }
    done
  done
}
bundle() { # as docs/bundle.md has it, from what is committed
  rm -rf "$folder/checkout"
  git clone -q . "$folder/checkout"
  stack=$PWD/.venv/bin/stack
  (cd "$folder/checkout" && "$stack" demo work/demo &&
    "$stack" mirror get manifests/models.yaml --to work/mirror --demo work/demo --only toy-pi05 --only toy-tokenizer)
  packed
}
packed() {
  rm -rf "$folder/packed" "$folder/bundle"
  stack=$PWD/.venv/bin/stack
  (cd "$folder/checkout" &&
    "$stack" mirror bundle manifests/bundles/site-demo.yaml --to "$folder/packed" --wheels "$folder/wheels" --site "$site")
  make -s bundle-verify BUNDLE="$folder/packed"
  python3 "$folder/packed/verify-bundle.py" --unpack "$folder/bundle"
  rm -rf "$folder/packed"
}
variables() { # the inventory's, with secrets in a vault
  image=$(cat "$folder/image.id") groups=$folder/inventory/group_vars
  mkdir -p "$groups/all"
  cat >"$groups/all/site.yml" <<YAML
stack_serial: "100%"
site_check_free_gb: {/var/lib/docker: 1, /opt/stack: 1}
mirror_allow: [172.30.$set_number.0/24]
mirror_sets:
  - {name: models, items: ["checkout/work/mirror/*"], strip: checkout/work/mirror/, to: /opt/stack/models}
images_from_mirror: true
data_sets:
  - {name: demo, manifest: manifests/datasets/demo.yaml, demo: work/demo}
mlflow_server_names: [tracking.test]
mlflow_server_self_signed: true
mlflow_server_hosts_entry: true
teardown_data: true
YAML
  cat >"$groups/trainers.yml" <<YAML
site_check_cards: 0
images_wanted:
  - {archive: train.tar, id: "$image", tag: "stack-train:1"}
train_job_image: "$image"
train_job_shm: 1g
train_job_poll_s: 3
train_job_mounts:
  - {source: /opt/test-host/env, target: /opt/stack/env, kind: folder}
train_job_collect: $folder/collected
train_job_tracking_server: https://tracking.test
train_job_tracking_authority: /etc/stack-tracking-client/authority.pem
train_job_tracking_login_file: /etc/stack-tracking-client/login
YAML
  if past vault; then return; fi
  secret() { python3 -c 'import secrets; print(secrets.token_urlsafe(18))'; }
  (umask 077; secret >"$ANSIBLE_VAULT_PASSWORD_FILE"
    for who in database admin shipper; do echo "mlflow_server_${who}_password: $(secret)"; done >"$groups/all/vault.yml")
  step vault ansible-vault encrypt "$groups/all/vault.yml"
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
  own=$folder/$1.yml
  printf 'train_job_folder: %s\ntrain_job_collect: %s\ntrain_job_tracking_server: ""\n' "$at" "$folder/$1" >"$own"
  make -s reproduce INVENTORY="$inventory" RUN=manifests/runs/demo-two-hosts.yaml ARGS="-e @$own" >"$folder/$1-broken.log" 2>&1 &
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
  play "$1" reproduce -e "@$own"
  grep -qE 'resum|from step' "$folder/$1/trainer1/container.log" || grep -q '"kind": "attempt"' "$folder/$1/trainer1/train/journal.jsonl" ||
    fail "$1 began again"
  losses "$folder/collected/trainer1" >"$folder/losses"
  losses "$folder/$1/trainer1" | diff "$folder/losses" - || fail "$1 has other losses than the undisturbed training"
  for host in trainer1 trainer2; do inside "$host" rm -rf "/opt/stack/$1"; done
}
host_dies() { # host_dies NAME DEAD OTHER: no power, no word; the other host has 60 s to stop
  if past "$1"; then return; fi
  begin "$1"
  docker network disconnect -f "stack-test-$set_number" "$2-$set_number"
  docker kill "$2-$set_number" >/dev/null
  died=$(date +%s)
  while runs "$3"; do [ $(($(date +%s) - died)) -le 60 ] || fail "$1: $3 runs a minute after $2 died"; sleep 0.5; done
  say "$1: $3 stopped after $(($(date +%s) - died)) s"
  sh scripts/test_hosts.sh up "$folder" >"$folder/$1-back.log" 2>&1
  go_on "$1"
}
shipped() { # shipped NAME: what the tracking server has of the run
  inside trainer1 python3 - https://tracking.test demo-two-hosts <scripts/shipped_run.py >"$folder/$1.json" ||
    fail "the tracking server has no such run"
}
release() { inside tracking readlink /opt/stack/tracking; }
newer() { # a newer bundle: the server's next release takes over, with the runs of the one before
  if past newer; then return; fi
  old=$(release)
  git -C "$folder/checkout" -c user.name=walk -c user.email=walk@example.invalid commit -q --allow-empty -m newer
  step newer-bundle packed
  book newer services
  [ "$(release)" != "$old" ] || fail "the newer bundle has no release of its own"
  inside tracking sh -c "ls $old/.venv/bin/stack /var/backups/stack-tracking/before-*/backup.json" >/dev/null || fail "no backup, or no old release"
  shipped shipped-newer
  diff "$folder/shipped.json" "$folder/shipped-newer.json" || fail "the run changed with the release"
}
stopped() {
  if past stopped; then return; fi
  begin stopped
  play stop stop
  ! runs trainer1 && ! runs trainer2 || fail "stop left a container running"
  go_on stopped
}
code=3 # from here on things come from outside
step engine sh scripts/engine.sh start
step hosts sh scripts/test_hosts.sh fresh "$folder"
step image sh scripts/test_image.sh "$folder" "$site/images"
step packages packages
step wheels .venv/bin/stack mirror wheels --for server-x86_64 --to "$folder/wheels/server-x86_64"
code=1
step bundle bundle
variables
if ! past check; then
  for host in trainer1 trainer2 tracking; do state "$host" >"$folder/$host.before"; done
fi

play check provision --check --diff
if ! past apply; then
  for host in trainer1 tracking; do state "$host" | diff "$folder/$host.before" - >"$folder/$host.diff" || fail "--check changed $host: $folder/$host.diff"; done
fi
play apply provision
play again provision
unchanged again
past mend || inside trainer2 sh -c 'rm /etc/security/limits.d/90-stack.conf; systemctl stop docker docker.socket'
play mend provision --limit trainers
[ "$(changed mend trainer2)" = 2 ] || fail "two things were damaged, $(changed mend trainer2) were mended"
[ "$(changed mend trainer1)" = 0 ] || fail "mending one host changed another"

book services services
book services-again services
unchanged services-again

play verify verify
grep -q 'so is the sum over all' "$folder/verify.log" || fail "verify told of no sum: $folder/verify.log"
play reproduce reproduce
python3 -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["good"])' "$folder/collected/trainer1/verdict.json" ||
  fail "the verdict is not good: $folder/collected/trainer1/verdict.json"
shipped shipped
python3 - "$folder/shipped.json" "$folder/collected/trainer1" <<'PYTHON' || fail "the tracking server says other things than the run: $folder/shipped.json"
import json, pathlib, sys
shipped, run = json.load(open(sys.argv[1])), pathlib.Path(sys.argv[2])
verdict = json.loads((run / "verdict.json").read_text())
result = json.loads((run / "train/result.json").read_text())
assert shipped["tags"]["stack.verdict"] == verdict["verdict"], shipped
assert shipped["status"] == "FINISHED" and "verdict.html" in shipped["artifacts"], shipped
assert shipped["train"]["final_loss"] == result["final_loss"], (shipped, result["final_loss"])
print(shipped["tags"]["stack.verdict"])
PYTHON
say "the tracking server has the run, with its verdict"
play reproduce-again reproduce
grep -q 'nothing to do' "$folder/reproduce-again.log" || fail "a finished job was started again"

if [ -n "${WALK_DRILLS:-}" ]; then
  host_dies other-host-dies trainer2 trainer1
  host_dies first-host-dies trainer1 trainer2
  stopped
  newer
fi

play teardown-keeps teardown -e teardown_data=false
if ! past kept; then
  inside tracking sh -ec 'ls -d /srv/stack /var/lib/stack-tracking /var/lib/postgresql/*/main/PG_VERSION
    getent passwd postgres stack-tracking; ! command -v nginx' >"$folder/kept" &&
    inside trainer1 sh -ec 'ls -d /opt/stack/models/* /opt/stack/data/*; getent passwd HwHiAiUser; ! command -v docker' >>"$folder/kept" ||
    fail "a teardown that keeps the data took some, or left what it was to take: $folder/kept"
  touch "$folder/done/kept"
fi
play teardown teardown
for host in trainer1 trainer2 tracking; do
  state "$host" >"$folder/$host.after"
  diff "$folder/$host.before" "$folder/$host.after" >"$folder/$host.diff" || fail "teardown left something on $host: $folder/$host.diff"
done
sh scripts/test_hosts.sh attempts "$folder" >"$folder/attempts" || fail "packets tried to leave: $(tr '\n' ' ' <"$folder/attempts")"
[ -n "${WALK_KEEP:-}" ] || sh scripts/test_hosts.sh down "$folder"
say "done in $(($(date +%s) - began)) s; no packet tried to leave"
