#!/usr/bin/env bash
# Puts image archives (OCI or docker format) into the nodes' containerd, all nodes at once.
#   load [-n NODE] ARCHIVE...      pods name the image with imagePullPolicy: Never or IfNotPresent, and a tag other than latest
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
need_root
[ -d "$CLUSTER_DIR/nodes" ] || die "no cluster at $CLUSTER_DIR; run $KIT/up.sh first"
nodes=$(cd "$CLUSTER_DIR/nodes" && ls -d node-* | sed s/node-//)
if [ "${1:-}" = -n ]; then nodes=$2; shift 2; fi
for archive; do
  [ -e "$archive" ] || die "no such archive: $archive"
  jobs=()
  for n in $nodes; do ctr "$n" images import --digests=false "$archive" >/dev/null & jobs+=($!); done
  for j in "${jobs[@]}"; do wait "$j" || die "could not import $archive"; done
  say "loaded ${archive##*/}"
done
