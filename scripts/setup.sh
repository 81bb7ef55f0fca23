#!/bin/sh
# Find a supported Python and let scripts/setup.py build .venv with it. Called by `make setup`.
#   setup.sh --find          only print the Python that would be used; exit code 3 where there is none
#   PYTHON=/path/to/python   use this one
#   LINE=production|current  look only for the Pythons of that line
set -eu
here=$(cd "$(dirname "$0")" && pwd)

production="python3.11 python3.10"
current="python3.12 python3.13"
case "${LINE:-}" in
  production) names=$production ;;
  current) names=$current ;;
  "") names="$production python3 $current" ;;
  *) echo "error[setup-line]: LINE is 'production' or 'current', not '$LINE'" >&2; exit 2 ;;
esac

fits() { # a version manager's shim may exist and yet start nothing
  "$1" -c 'import sys; v = sys.version_info[:2]; l = sys.argv[1]
ok = {"production": ((3, 10), (3, 11)), "current": ((3, 12), (3, 13))}
sys.exit(0 if v in (ok.get(l) or ok["production"] + ok["current"]) else 1)' "${LINE:-}" 2>/dev/null
}

found=""
if [ -n "${PYTHON:-}" ]; then
  if ! fits "$PYTHON"; then
    echo "error[setup-python]: PYTHON=$PYTHON does not start, or is no Python of the ${LINE:-production or current} line" >&2
    echo "  do: name a Python 3.10 or 3.11 (production line), or 3.12 or 3.13 (current line)" >&2
    exit 3
  fi
  found=$PYTHON
else
  for name in $names; do
    for candidate in "$name" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"${name#python}".*/bin/"$name"; do
      if fits "$candidate"; then found=$candidate; break 2; fi
    done
  done
fi
if [ -z "$found" ]; then
  echo "error[setup-no-python]: no supported Python was found (looked for: $names)" >&2
  echo "  do: install one, for example" >&2
  echo "        Debian 12:        apt-get install python3 python3-venv" >&2
  echo "        Ubuntu 22.04:     apt-get install python3.10 python3.10-venv" >&2
  echo "        Ubuntu 24.04:     apt-get install python3.12 python3.12-venv" >&2
  echo "        openEuler 24.03:  dnf install python3 python3-pip" >&2
  echo "      or name one: make setup PYTHON=/path/to/python3.11" >&2
  exit 3
fi
if [ "${1:-}" = --find ]; then echo "$found"; exit 0; fi
exec "$found" "$here/setup.py"
