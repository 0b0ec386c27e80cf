# Sourced by images.sh: the images below the project's own code, packed from folders and kept in $IMAGES/base.
# debian (Python on bare Debian) <- server-base, operator-base, client (Debian and an environment in /opt/carousel).
SUITE=bookworm; PYTHON_VERSION=3.11
DEBIAN_PACKAGES=python3-minimal,libpython3-stdlib,ca-certificates
# torch's CUDA libraries are 4 GB and Triton 1 GB: neither is of use on the local cluster's CPU nodes.
NO_CUDA=(nvidia-cublas cuda-toolkit cuda-bindings nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton)

hash_of() { cat "$@" | sha256sum | cut -c1-12; }
find_uv() {
  UV=$(command -v uv || :)
  if [ -z "$UV" ] || ! "$UV" pip compile --help 2>/dev/null | grep -q -- --excludes; then
    local tools; tools=$(dirname "$CACHE")/uv   # where .ci/setup puts it too
    UV=$tools/bin/uv
    [ -x "$UV" ] || { say "uv from PyPI"; python3 -m venv "$tools" && "$tools/bin/pip" install -q uv; }
  fi
}
debian_base() { # sets DEBIAN_ARCHIVE; 60 s, once
  local h; h=$(hash_of "$KIT/pack.py" "$KIT/oci.py" <(echo "$SUITE $DEBIAN_PACKAGES"))
  DEBIAN_ARCHIVE=$IMAGES/base/debian-$h.tar
  [ ! -e "$DEBIAN_ARCHIVE" ] || return 0
  need mmdebstrap:mmdebstrap
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || need debian-archive-keyring:debian-archive-keyring
  say "Debian $SUITE with Python"
  local d; d=$(mktemp -d); SCRATCH+=("$d")
  chmod 755 "$d"
  mmdebstrap --quiet --mode=root --variant=minbase --include="$DEBIAN_PACKAGES" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$SUITE" "$d/root" >"$IMAGES/debian.log" 2>&1 || { tail -n 20 "$IMAGES/debian.log" >&2; die "mmdebstrap failed"; }
  python3 "$KIT/pack.py" --tag "localhost/carousel/debian:$h" --out "$DEBIAN_ARCHIVE" --layer "$d/root" --keep-owner >/dev/null
  rm -rf "$d"
}
requirements_of() { # component, scratch folder: what uv resolves for it, pinned and hashed as in constraints.txt
  local from=("$ROOT/pyproject.toml" --extra "$1") without=()
  if [ "$1" = client ]; then printf 'openai\nhttpx\n' >"$2/client.in"; from=("$2/client.in"); fi
  if [ "$1" = server ]; then printf '%s\n' "${NO_CUDA[@]}" >"$2/without"; without=(--excludes "$2/without"); fi
  "$UV" pip compile --quiet "${from[@]}" --constraints "$ROOT/constraints.txt" --generate-hashes --no-annotate --no-header \
    --python-version "$PYTHON_VERSION" "${without[@]}" --output-file "$2/requirements.txt" >/dev/null
}
environment() { # folder, requirements: the virtual environment /opt/carousel below that folder
  local venv=$1/opt/carousel
  mkdir -p "$venv/bin" "$venv/lib/python$PYTHON_VERSION"
  # `copy`, because what is changed below would otherwise change in uv's cache too
  "$UV" pip install --quiet --target "$venv/lib/python$PYTHON_VERSION/site-packages" --python-version "$PYTHON_VERSION" \
    --no-deps --require-hashes --requirements "$2" --link-mode copy --only-binary :all:
  rm -rf "$venv/lib/python$PYTHON_VERSION/site-packages/bin"     # scripts with this machine's Python in their first line
  printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$PYTHON_VERSION" >"$venv/pyvenv.cfg"
  ln -s /usr/bin/python3 "$venv/bin/python3"; ln -s python3 "$venv/bin/python"
}
slim_torch() { # site-packages: 2.3 GB become 0.7 GB on disk, and 0.3 GB in the archive
  need gcc:gcc readelf:binutils
  python3 "$KIT/stub_cuda.py" "$1" >/dev/null
  rm -rf "$1"/torch/include "$1"/torch/bin/protoc* "$1"/torch/lib/libtorch_cuda_linalg.so
  strip --strip-all "$1"/torch/lib/lib{torch_cpu,torch_cuda,torch_python}.so
}
component_base() { # component: sets BASE_TAG and BASE_ARCHIVE
  local c=$1 known wanted h d as=()
  known=$IMAGES/base/$c-$(hash_of "$ROOT/constraints.txt" "$ROOT/pyproject.toml" "$KIT"/{bases.sh,stub_cuda.py,pack.py,oci.py}).tag
  if [ -e "$known" ]; then
    BASE_TAG=$(cat "$known"); BASE_ARCHIVE=$IMAGES/base/$c-${BASE_TAG##*:}.tar
    [ ! -e "$BASE_ARCHIVE" ] || return 0
  fi
  need python3:python3
  find_uv; debian_base
  d=$(mktemp -d); SCRATCH+=("$d"); wanted=$d/requirements.txt
  requirements_of "$c" "$d"
  h=$(hash_of "$wanted" "$DEBIAN_ARCHIVE" "$KIT"/{bases.sh,stub_cuda.py})
  BASE_TAG=localhost/carousel/$c-base:$h; BASE_ARCHIVE=$IMAGES/base/$c-$h.tar
  if [ "$c" = client ]; then BASE_TAG=localhost/carousel/client:$h; as=(--user 65532:65532); fi
  if [ ! -e "$BASE_ARCHIVE" ]; then
    say "$c: $(grep -c == "$wanted") packages"
    rm -f "$IMAGES/base/$c-"*.tar "$IMAGES/base/$c-"*.tag
    mkdir "$d/layer"; chmod 755 "$d/layer"
    environment "$d/layer" "$wanted"
    [ "$c" != server ] || slim_torch "$d/layer/opt/carousel/lib/python$PYTHON_VERSION/site-packages"
    python3 "$KIT/pack.py" --tag "$BASE_TAG" --out "$BASE_ARCHIVE" --base "$DEBIAN_ARCHIVE" --layer "$d/layer" \
      --env PATH=/opt/carousel/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --env PYTHONUNBUFFERED=1 "${as[@]}" >/dev/null
    say "$c: base image of $(($(stat -c %s "$BASE_ARCHIVE") / 1000000)) MB"
  fi
  echo "$BASE_TAG" >"$known"
  rm -rf "$d"
}
