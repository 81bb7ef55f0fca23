#!/bin/sh
# The training image for the test hosts, as a bundle would carry it: test_image.sh FOLDER [IMAGES]
# IMAGES/train.tar (FOLDER/bundle/images) is what `docker save` wrote; FOLDER/image.id is its id, which is also printed.
set -eu
cd "$(dirname "$0")/.."
folder=$1
images=${2:-$folder/bundle/images}
tag=stack-test-train:1
base=stack-test-base:bookworm
mkdir -p "$images"
revision=$(git rev-parse HEAD)
content=$(cat tests/ansible/image/Dockerfile scripts/test_image.sh | sha256sum | cut -c1-16)-$({ git ls-tree HEAD:stack; git ls-tree HEAD:manifests; cat .venv/stack-env; } | sha256sum | cut -c1-16)
if [ "$(docker image inspect -f '{{ index .Config.Labels "content" }}' "$tag" 2>/dev/null)" != "$content" ]; then
  context=$(mktemp -d "$folder/context-train.XXXXXX")
  cp tests/ansible/image/Dockerfile "$context"
  git archive HEAD stack manifests | tar -x -C "$context"
  mkdir "$context/bin"
  printf '#!/usr/bin/python3\nfrom stack.cli import main\n\nif __name__ == "__main__":\n    main()\n' >"$context/bin/stack"
  printf '#!/bin/sh\nexec /usr/bin/python3 "$@"\n' >"$context/bin/python"
  DOCKER_BUILDKIT=0 docker build -q --label content="$content" --build-arg BASE_IMAGE="$base" --build-arg REVISION="$revision" \
    --build-arg LOCK="$(sed -n '1s/.*-//p' .venv/stack-env)" \
    --build-arg MIRROR="$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources)" -t "$tag" "$context" >/dev/null
  rm -rf "$context"
fi
id=$(docker image inspect -f '{{ .Id }}' "$tag")
if [ "$(cat "$folder/image.id" 2>/dev/null)" != "$id" ] || [ ! -e "$images/train.tar" ]; then
  docker save -o "$images/train.tar.partial" "$tag"
  mv "$images/train.tar.partial" "$images/train.tar"
  echo "$id" >"$folder/image.id"
fi
echo "$id"
