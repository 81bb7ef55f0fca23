#!/bin/sh
# System packages that some tests use, where they are missing and can be had: as root, with apt.
# Without them those tests are skipped with a reason, so this never fails a run.
set -u

missing=
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
command -v strace >/dev/null 2>&1 || missing="$missing strace"
command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || missing="$missing nginx-light"

if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  # Services are not started: the tests start servers of their own, on ports of their own.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made_policy=1
  fi
  # shellcheck disable=SC2086 # a list of names
  { apt-get install -y -qq --no-install-recommends $missing ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; }; } >/dev/null 2>&1
  [ "${made_policy:-0}" = 1 ] && rm -f "$policy"
fi
exit 0
