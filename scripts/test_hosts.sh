#!/bin/sh
# Hosts for testing the playbooks: containers with systemd and sshd on a network without a way out.
#   test_hosts.sh up [FOLDER]      three hosts (trainer1, trainer2, tracking); FOLDER gets keys, inventory and packages
#   test_hosts.sh down             remove the hosts, their volumes and the network
#   test_hosts.sh attempts         how many packets tried to leave, host by host; exit code 1 when any did
#   test_hosts.sh fresh            the same hosts, made anew
# STACK_TEST_SYSTEM=rpm makes hosts with rpm and dnf, which say that they are openEuler; they get no packages here.
# Needs root and Debian's archive. A container is no machine: see docs/operations.md for what these hosts cannot show.
set -eu
cd "$(dirname "$0")/.."
command=${1:-}
# Several sets may stand side by side: STACK_TEST_SET is the third byte of the set's addresses.
set=${STACK_TEST_SET:-80}
network=stack-test-$set subnet=172.30.$set.0/24 gateway=172.30.$set.1
folder=${2:-${STACK_TEST_HOSTS:-/tmp/stack-test-hosts-$set}}
hosts="trainer1:172.30.$set.11:2 trainer2:172.30.$set.12:2 tracking:172.30.$set.13:0"
base=stack-test-base:bookworm image=stack-test-host:$set system=${STACK_TEST_SYSTEM:-deb}

say() { echo "test-hosts: $*" >&2; }

archive() { awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources; }

make_base() {
  docker image inspect "$base" >/dev/null 2>&1 && return
  command -v mmdebstrap >/dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
  say "making a minimal Debian (half a minute)"
  # On a memory file system: dpkg syncs every file.
  TMPDIR=/dev/shm mmdebstrap --quiet --variant=minbase --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' bookworm - "$(archive)" |
    docker import -c 'CMD ["/bin/bash"]' - "$base" >/dev/null
}

make_image() {
  mkdir -p "$folder"
  [ -e "$folder/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C test-hosts -f "$folder/id_ed25519"
  content=$(cat tests/ansible/hosts/* "$folder/id_ed25519.pub" | sha256sum | cut -c1-16)
  if [ "$(docker image inspect -f '{{ index .Config.Labels "content" }}' "$image" 2>/dev/null)" = "$content" ]; then return; fi
  say "making the hosts' image"
  rm -rf "$folder/context" && cp -r tests/ansible/hosts "$folder/context"
  cp "$folder/id_ed25519.pub" "$folder/context/authorized_keys"
  DOCKER_BUILDKIT=0 docker build -q --label content="$content" --build-arg BASE_IMAGE="$base" \
    --build-arg MIRROR="$(archive)" -t "$image" "$folder/context" >/dev/null
}

# The same host with another package manager; its packages are built here (a minute).
make_rpm_image() {
  from=$image image=stack-test-rpm-host:$set
  content=$({ docker image inspect -f '{{ .Id }}' "$from"; cat tests/ansible/rpm_host/*; } | sha256sum | cut -c1-16)
  if [ "$(docker image inspect -f '{{ index .Config.Labels "content" }}' "$image" 2>/dev/null)" = "$content" ]; then return; fi
  say "making the image of hosts with rpm"
  DOCKER_BUILDKIT=0 docker build -q --label content="$content" --build-arg BASE_IMAGE="$from" \
    --build-arg MIRROR="$(archive)" -t "$image" tests/ansible/rpm_host >/dev/null
}

# What a bundle's packages are for hosts like these: the engine and what the roles need, with all that they depend on.
make_packages() {
  ls "$folder"/packages/*.deb >/dev/null 2>&1 && return
  say "fetching the hosts' packages"
  mkdir -p "$folder/packages"
  docker run --rm -v "$folder/packages:/out" "$image" sh -c "
    printf 'deb $(archive) bookworm main\n' >/etc/apt/sources.list && apt-get update -qq &&
    apt-get install -y -qq --download-only --no-install-recommends -o Dir::Cache::archives=/out docker.io chrony >/dev/null &&
    rm -rf /out/partial /out/lock"
}

# The folder of installed packages behind .venv, if it is for the hosts' Python.
environment() {
  [ -x .venv/bin/python3.11 ] || return 0
  .venv/bin/python -c 'import click; print(__import__("os").path.dirname(click.__path__[0]))'
}

up() {
  sh scripts/engine.sh start
  make_base
  make_image
  if [ "$system" = rpm ]; then make_rpm_image; else make_packages; fi
  docker network inspect "$network" >/dev/null 2>&1 ||
    docker network create --internal --subnet "$subnet" --gateway "$gateway" "$network" >/dev/null
  # The packages of the training image are too large for a copy on each host; they are mounted where they are.
  shared=
  [ -z "$(environment)" ] || shared="-v $(environment):/opt/test-host/env:ro"
  for entry in $hosts; do
    IFS=: read -r name address cards <<EOF
$entry
EOF
    if docker container inspect "$name-$set" >/dev/null 2>&1; then
      # One that lost its network in a drill gets it again.
      docker network connect --ip "$address" "$network" "$name-$set" 2>/dev/null || true
      docker start "$name-$set" >/dev/null
      continue
    fi
    # The capabilities are listed one by one: with SYS_TIME a container could set the whole machine's clock.
    docker run -d --name "$name-$set" --hostname "$name" --label stack-test-host --network "$network" --ip "$address" \
      --cgroupns private --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined \
      --device-cgroup-rule 'a *:* rwm' --tmpfs /run --tmpfs /run/lock --tmpfs /tmp:exec \
      -v "stack-test-$set-$name:/var/lib/docker" $shared -e container=docker -e TEST_CARDS="$cards" \
      -e TEST_GATEWAY="$gateway" -e TEST_SUBNET="$subnet" "$image" >/dev/null
  done
  write_inventory
  wait_for_ssh
  say "up: $(echo "$hosts" | tr ' ' '\n' | cut -d: -f1,2 | tr '\n' ' ')inventory in $folder/inventory"
}

wait_for_ssh() {
  : >"$folder/known_hosts"
  for entry in $hosts; do
    address=$(echo "$entry" | cut -d: -f2)
    i=0
    until ssh-keyscan -T 1 -t ed25519 "$address" >>"$folder/known_hosts" 2>/dev/null && grep -q "^$address " "$folder/known_hosts"; do
      i=$((i + 1)); [ "$i" -le 60 ] || { say "no ssh at $address"; exit 3; }
      sleep 0.5
    done
  done
}

write_inventory() {
  mkdir -p "$folder/inventory" # group_vars beside it stay
  sh tests/ansible/inventory.sh "$folder" $hosts >"$folder/inventory/hosts.yml"
}

down() {
  for entry in $hosts; do
    name=${entry%%:*}
    docker rm -f -v "$name-$set" >/dev/null 2>&1 || true
    docker volume rm "stack-test-$set-$name" >/dev/null 2>&1 || true
  done
  docker network rm "$network" >/dev/null 2>&1 || true
}

attempts() {
  total=0
  for entry in $hosts; do
    name=${entry%%:*}
    count=$(docker exec "$name-$set" sh -c 'iptables -t mangle -nvxL; ip6tables -t mangle -nvxL' |
      awk '/leaves-the-test-network/ { n += $1 } END { print n + 0 }')
    echo "$name $count"
    total=$((total + count))
  done
  [ "$total" -eq 0 ]
}

case $command in
  up) up ;;
  down) down ;;
  fresh) down; up ;;
  attempts) attempts ;;
  *) sed -n '2,8s/^# //p' "$0"; exit 2 ;;
esac
