#!/bin/sh
# A Docker engine for building and testing images, on a machine where none runs.
#   engine.sh start    use the engine that answers, else install docker.io where it is missing and start one
#   engine.sh stop     stop the engine that this script started, and no other
#   engine.sh status   exit code 0: an engine answers; 3: none does
# STACK_ENGINE=DIR holds its images, sockets and log (default /tmp/stack-engine). The folder stays after a stop;
# remove it for its room.
# A second daemon in one network namespace breaks the first one's bridge, so that there is never a second.
set -eu
folder=${STACK_ENGINE:-/tmp/stack-engine}
pid_file=$folder/docker.pid
log=$folder/dockerd.log
wait_s=60

say() { echo "engine: $*" >&2; }
fail() { # fail ID WHAT DO
  printf 'error[%s]: %s\n  do: %s\n' "$1" "$2" "$3" >&2
  exit 3
}

answers() { docker info >/dev/null 2>&1; }

own_pid() { # the pid of the daemon that this script started, if it lives and is one
  [ -s "$pid_file" ] || return 1
  pid=$(cat "$pid_file")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 1
  tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "--pidfile=$pid_file" || return 1
  echo "$pid"
}

any_daemon() { # pids of all docker daemons of this machine
  for comm in /proc/[0-9]*/comm; do
    if [ "$(cat "$comm" 2>/dev/null)" = dockerd ]; then basename "$(dirname "$comm")"; fi
  done
}

install_engine() {
  command -v dockerd >/dev/null && command -v docker >/dev/null && return
  command -v apt-get >/dev/null ||
    fail engine-missing "dockerd is not installed, and this is no Debian or Ubuntu" "install a Docker engine"
  say "installing docker.io"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables >"$folder/apt.log" 2>&1 ||
    fail engine-install "docker.io could not be installed; the reason is in $folder/apt.log" "run 'apt-get update', or install an engine by hand"
}

start() {
  mkdir -p "$folder"
  exec 9>"$folder/lock"
  flock 9 # two callers at once: the second finds the first one's engine
  if answers; then say "an engine answers already: $(describe)"; return; fi
  [ "$(id -u)" = 0 ] || fail engine-not-root "no engine answers, and only root can start one" "start it as root, or ask for access to the machine's own"
  install_engine
  if answers; then say "an engine answers already: $(describe)"; return; fi
  others=$(any_daemon | tr '\n' ' ')
  [ -z "$others" ] || fail engine-other "a Docker daemon runs (pid $others) and does not answer on ${DOCKER_HOST:-its default socket}; a second one would break its network" "point DOCKER_HOST at it, or stop it"
  # 9>&-: the daemon must not keep the lock
  setsid dockerd --data-root="$folder/data" --exec-root="$folder/exec" --pidfile="$pid_file" >"$log" 2>&1 9>&- </dev/null &
  started=$!
  i=0
  until answers; do
    i=$((i + 1))
    [ -d "/proc/$started" ] || fail engine-ended "the daemon ended at its start: $(tail -n 1 "$log")" "read $log"
    [ "$i" -le $((wait_s * 5)) ] || { kill "$started"; fail engine-silent "the daemon did not answer within $wait_s s" "read $log"; }
    sleep 0.2
  done
  say "started: $(describe)"
}

describe() { docker version --format '{{.Server.Version}} on {{.Server.Os}}/{{.Server.Arch}}'; }

stop() {
  if ! pid=$(own_pid); then say "no engine of this script runs (looked at $pid_file)"; return; fi
  kill "$pid"
  i=0
  while [ -d "/proc/$pid" ]; do
    i=$((i + 1))
    [ "$i" -le $((wait_s * 5)) ] || fail engine-stays "the daemon (pid $pid) did not end within $wait_s s" "read $log"
    sleep 0.2
  done
  say "stopped (pid $pid); $folder holds its images still"
}

status() {
  if answers; then
    if pid=$(own_pid); then say "answers: $(describe), started by this script (pid $pid, $folder)"
    else say "answers: $(describe), not started by this script"; fi
  else
    say "no engine answers"
    exit 3
  fi
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  status) status ;;
  *) echo "usage: engine.sh start|stop|status" >&2; exit 2 ;;
esac
