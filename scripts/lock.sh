#!/bin/sh
# Rewrite manifests/locks/*.txt from pyproject.toml. Needs an index; run after a change of dependencies.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-uv}
"$uv" pip compile -q pyproject.toml --extra production --extra server --extra dev --overrides manifests/locks/slim.txt \
  --overrides manifests/locks/slim-production.txt --universal \
  --python-version 3.10 --generate-hashes --no-annotate --no-header -o manifests/locks/production.txt
"$uv" pip compile -q pyproject.toml --extra current --extra server --extra dev --overrides manifests/locks/slim.txt --universal \
  --python-version 3.12 --generate-hashes --no-annotate --no-header -o manifests/locks/current.txt
# Left-out packages would otherwise stand in the lock under a marker that never holds.
for lock in manifests/locks/production.txt manifests/locks/current.txt; do
  awk '/^[a-zA-Z0-9]/ { keep = !(/sys_platform == .never./ && !/ or /) } keep' "$lock" >"$lock.new" && mv "$lock.new" "$lock"
done
echo 'uv==0.13.9' | "$uv" pip compile -q - --generate-hashes --no-annotate --no-header -o manifests/locks/bootstrap.txt
