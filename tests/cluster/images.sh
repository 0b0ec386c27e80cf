#!/usr/bin/env bash
# Builds the project's images with buildah and puts them into the local cluster's nodes. What has not changed costs nothing.
#   images.sh base     only what is below the project's code (torch, kopf, ...): minutes from bare, then only when constraints.txt changes
#   images.sh build    and the server's and operator's image, from their Containerfiles
#   images.sh load     and into every node that lacks them
# The tags are written to $IMAGES/tags.env as SERVER_IMAGE, OPERATOR_IMAGE and CLIENT_IMAGE; a tag is a hash of all that went in.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/kit/env.sh"
. "$KIT/bases.sh"
SCRATCH=()
store=(--root "$IMAGES/buildah" --runroot "/run/carousel-buildah/$(hash_of <(echo "$IMAGES"))" --storage-driver overlay)
in_store() { buildah "${store[@]}" "$@"; } # not named like the program: `need` asks whether that is there
tidy() { # an interrupted build leaves its container mounted
  rm -rf "${SCRATCH[@]}" "$IMAGES/tags.env.new"
  ! grep -q " $IMAGES/buildah/overlay/" /proc/mounts || in_store rm --all >/dev/null 2>&1 || :
  awk -v store="$IMAGES/buildah/" 'index($2, store) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do umount "$mount" || umount -l "$mount" || :; done
}
trap tidy EXIT

sources_of() { # component: the files that go into its image
  local folders=(server/carousel_server kernels/carousel_kernels)
  [ "$1" != operator ] || folders=(operator/carousel_operator server/carousel_server)
  (cd "$ROOT" && { find "${folders[@]}" -type f ! -path '*/__pycache__/*' | LC_ALL=C sort | xargs sha256sum
    sha256sum "$1/Containerfile" .dockerignore "tests/cluster/images.sh" "tests/cluster/kit/thin.py"; })
}
store_base() { # component: buildah knows its base
  need buildah:buildah
  ! in_store images --quiet "$BASE_TAG" >/dev/null 2>&1 || return 0
  in_store tag "$(in_store pull --quiet "oci-archive:$BASE_ARCHIVE")" "$BASE_TAG"
  say "$1: base image is in buildah's store"
}
build_component() { # component: sets TAG and ARCHIVE
  local c=$1 h layout t=$SECONDS
  component_base "$c"
  h=$(hash_of <(sources_of "$c") <(echo "$BASE_TAG"))
  TAG=localhost/carousel/$c:$h; ARCHIVE=$IMAGES/$c-$h.tar
  [ ! -e "$ARCHIVE" ] || return 0
  store_base "$c"
  in_store build --quiet --isolation chroot --pull-never --build-arg BASE_IMAGE="$BASE_TAG" \
    --tag "$TAG" --file "$ROOT/$c/Containerfile" "$ROOT" >"$IMAGES/$c.log" 2>&1 || { tail -n 20 "$IMAGES/$c.log" >&2; die "buildah could not build $c"; }
  layout=$(mktemp -d); SCRATCH+=("$layout")
  python3 "$KIT/thin.py" prepare "$layout" "$BASE_ARCHIVE"
  in_store push --quiet --disable-compression "$TAG" "oci:$layout:image" >"$IMAGES/$c.log" 2>&1 || { cat "$IMAGES/$c.log" >&2; die "buildah could not write $c"; }
  rm -f "$IMAGES/$c-"*.tar
  python3 "$KIT/thin.py" cut "$layout" "$BASE_ARCHIVE" "$TAG" "$ARCHIVE" >/dev/null
  rm -rf "$layout"
  forget_others "$c"
  say "$c: $TAG built in $((SECONDS - t)) s"
}
forget_others() { # component: its earlier images leave buildah's store
  local old
  for old in $(in_store images --format '{{.Name}}:{{.Tag}}' | grep -E "^localhost/carousel/$1(-base)?:" | grep -vx -e "$TAG" -e "$BASE_TAG"); do
    in_store rmi "$old" >/dev/null 2>&1 || :
  done
}
load_image() { # tag, archive
  local n jobs=() t=$SECONDS
  for n in $nodes; do
    grep -qx "$1" <<<"${have[$n]}" || { ctr "$n" images import --digests=false "$2" >/dev/null & jobs+=($!); }
  done
  [ ${#jobs[@]} -gt 0 ] || return 0
  for n in "${jobs[@]}"; do wait "$n" || die "a node could not take $2"; done
  for n in $nodes; do have[$n]+=$'\n'$1; done
  say "loaded $1 into ${#jobs[@]} node(s) in $((SECONDS - t)) s"
}

want=${1:-build}
case $want in base | build | load) ;; *) die "usage: images.sh base | build | load" ;; esac
need_root
mkdir -p "$IMAGES/base"
alone images
declare -A have
if [ "$want" = load ]; then
  nodes=$(cd "$CLUSTER_DIR/nodes" 2>/dev/null && ls -d node-* | sed s/node-//) || die "no cluster at $CLUSTER_DIR; run $KIT/up.sh first"
  for n in $nodes; do have[$n]=$(ctr "$n" images ls -q); done
fi
: >"$IMAGES/tags.env.new"
for c in client operator server; do
  if [ "$want" = base ]; then
    component_base $c
    [ $c = client ] || store_base $c
    continue
  fi
  if [ $c = client ]; then component_base client; TAG=$BASE_TAG ARCHIVE=$BASE_ARCHIVE; else build_component $c; fi
  echo "${c^^}_IMAGE=$TAG" >>"$IMAGES/tags.env.new"
  if [ "$want" = load ]; then load_image "$BASE_TAG" "$BASE_ARCHIVE"; load_image "$TAG" "$ARCHIVE"; fi
done
if [ "$want" != base ]; then mv "$IMAGES/tags.env.new" "$IMAGES/tags.env"; cat "$IMAGES/tags.env"; fi
say "images: $want done"
