# Sourced by the cluster's scripts: where things are, addresses, versions. Override by environment.
KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$KIT/../../.." && pwd)
CACHE=${CAROUSEL_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carousel/cluster}   # binaries: worth keeping between runs
CLUSTER_DIR=${CLUSTER_DIR:-/var/lib/carousel-cluster}                               # this cluster's state: `down` removes it
KUBECONFIG_FILE=$CLUSTER_DIR/admin.kubeconfig
BIN=$CACHE/bin
IMAGES=${CAROUSEL_IMAGE_CACHE:-$(dirname "$CACHE")/images}                                # archives of images, buildah's store

K8S_VERSION=1.37.2           # the modules themselves are pinned in gomod/k8s/go.mod and gomod/rest/go.mod
CONTAINERD_VERSION=2.4.2
HELM_VERSION=4.3.1
GO_AT_LEAST=1.26.8           # gomod/rest/go.mod asks for it

NODES=${NODES:-2}            # node-1 is this machine; node-2 and on are network and mount namespaces of it
FAKE_GPUS=${FAKE_GPUS:-2,1}  # nvidia.com/gpu devices that a device plugin advertises: one number for all nodes, or one a node
NODE_LINK=csl-node           # the bridge that joins the nodes and carries node-1's address
POD_LINK=csl-pods            # each node's bridge for its pods
NODE_NAME=csl-node           # network namespace and cgroup of node-N are $NODE_NAME-N
NODE_NET=172.31.255          # node-N has $NODE_NET.N
NODE_IP=$NODE_NET.1
POD_NET=10.244               # node-N's pods have $POD_NET.N.0/24
POD_CIDR=$POD_NET.0.0/16
SERVICE_CIDR=10.96.0.0/16
API_IP=10.96.0.1
DNS_IP=10.96.0.10

PKI=$CLUSTER_DIR/pki; LOGS=$CLUSTER_DIR/log; PIDS=$CLUSTER_DIR/pids; CONF=$CLUSTER_DIR/conf

T0=$(date +%s%N)
say() { printf '%6.1fs  %s\n' "$(( ($(date +%s%N) - T0) / 100000000 ))e-1" "$*"; }
die() { echo "${0##*/}: $*" >&2; exit 1; }
need_root() { [ "$(id -u)" = 0 ] || die "needs root (network and mount namespaces, containerd): run it with sudo -E"; }
need() { # command:package...: installs the Debian packages of the commands that are missing
  local missing=() c
  for c; do command -v "${c%%:*}" >/dev/null 2>&1 || missing+=("${c##*:}"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null 2>&1 || die "install these first (there is no apt-get here to do it): ${missing[*]}"
  say "apt: ${missing[*]}"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    >/dev/null 2>"$CACHE/apt.log" || { tail -n 20 "$CACHE/apt.log" >&2; die "apt could not install ${missing[*]}"; }
}
alone() { # lock's name: one at a time. The daemons that `up` starts must not inherit fd 9; its own `down` runs under its lock
  [ "${CAROUSEL_LOCK_HELD:-}" != "$1" ] || return 0
  mkdir -p "$CACHE"; exec 9>"$CACHE/$1.lock"
  flock -n 9 || { say "waiting for another run of ${0##*/} to end"; flock 9; }
  export CAROUSEL_LOCK_HELD=$1
}
socket() { echo "$CLUSTER_DIR/nodes/node-$1/containerd.sock"; }
ctr() { # node's number, arguments
  local n=$1; shift
  "$BIN/ctr" --address "$(socket "$n")" -n k8s.io "$@" 2> >(grep -v DEPRECATION >&2)
}
kube() { "$BIN/kubectl" --kubeconfig="$KUBECONFIG_FILE" --request-timeout=10s "$@"; }
running_as() { # pid name: prints the pid that up wrote for it, if that pid still runs that very program
  local p exe; [ -f "$PIDS/$1" ] || return 1
  read -r p exe <"$PIDS/$1"
  [ "$(readlink "/proc/$p/exe" 2>/dev/null)" = "$(readlink -f "$exe")" ] && echo "$p"
}
gpus_of() { # node's number
  local g; IFS=, read -r -a g <<<"$FAKE_GPUS"
  echo "${g[$(($1 - 1))]:-${g[-1]}}"
}
