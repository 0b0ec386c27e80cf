#!/usr/bin/env bash
# Brings up a Kubernetes cluster on this machine: control plane, containerd, kubelet, kube-proxy, CoreDNS, fake GPUs.
#   up.sh                       whole cluster, NODES=2 FAKE_GPUS=2,1; builds what is missing first. A healthy one is left as it is.
#   up.sh --control-plane       only etcd, kube-apiserver and kube-controller-manager: real admission and RBAC, pods stay Pending
#   up.sh --status              exit 0 when it is up and healthy; says what is wrong otherwise
# Extra flags by environment: APISERVER_ARGS, KCM_ARGS, KUBELET_ARGS. The last line printed is the admin kubeconfig's path.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
for part in certificates network control-plane node; do . "$KIT/$part.sh"; done

start() { # name, command...: a daemon in its own session; down ends it by the pid noted here
  local name=$1; shift
  setsid "$@" >"$LOGS/$name.log" 2>&1 </dev/null 9>&- &
  echo "$! $1" >"$PIDS/$name"
}
wait_for() { # seconds, what, command...: fails early when a daemon has ended
  local end=$((SECONDS + $1)) what=$2 f; shift 2
  until "$@" >/dev/null 2>&1; do
    for f in "$PIDS"/*; do
      kill -0 "$(cut -d' ' -f1 "$f")" 2>/dev/null || { tail -n 30 "$LOGS/${f##*/}.log" >&2; die "${f##*/} ended; its log is above"; }
    done
    [ $SECONDS -lt $end ] || die "gave up waiting for $what; the logs are in $LOGS"
    sleep 0.1
  done
}
node_ready() { [ "$(kube get node "node-$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; }
node_has_gpus() { [ "$(kube get node "node-$1" -o 'jsonpath={.status.allocatable.nvidia\.com/gpu}' 2>/dev/null)" = "$(gpus_of "$1")" ]; }
dns_ready() { [ "$(kube -n kube-system get deploy coredns -o 'jsonpath={.status.readyReplicas}' 2>/dev/null)" = 1 ]; }
settings() { echo "mode=$MODE NODES=$NODES FAKE_GPUS=$FAKE_GPUS APISERVER_ARGS=${APISERVER_ARGS:-} KCM_ARGS=${KCM_ARGS:-} KUBELET_ARGS=${KUBELET_ARGS:-}"; }

trouble() { # prints what is wrong with the running cluster, nothing when it is healthy
  local f n
  [ -e "$CLUSTER_DIR/complete" ] || { echo "it never came up completely"; return; }
  for f in "$PIDS"/*; do running_as "${f##*/}" >/dev/null || { echo "${f##*/} has ended"; return; }; done
  kube get --raw /readyz >/dev/null 2>&1 || { echo "the API server is not ready"; return; }
  [ "$MODE" = full ] || return 0
  for n in $(seq "$NODES"); do
    node_ready "$n" || { echo "node-$n is not Ready"; return; }
    [ "$(gpus_of "$n")" = 0 ] || node_has_gpus "$n" || echo "note: node-$n has $(kube get node "node-$n" -o 'jsonpath={.status.allocatable.nvidia\.com/gpu}') of $(gpus_of "$n") fake GPUs" >&2
  done
  dns_ready || echo "CoreDNS is not ready"
}
settled_trouble() { # a component of a running cluster may be restarting: that alone is no reason to take the cluster down
  local wrong end=$((SECONDS + 20))
  while wrong=$(trouble); [ -n "$wrong" ] && [ -e "$CLUSTER_DIR/complete" ] && [ $SECONDS -lt $end ]; do sleep 1; done
  echo "$wrong"
}
check_machine() {
  local p
  [ ! -e /var/lib/kubelet/config.yaml ] || die "/var/lib/kubelet belongs to another cluster; this machine already is a Kubernetes node"
  for p in 2379 6443 10250; do
    ! ss -Hltn "sport = :$p" | grep -q . || die "port $p is taken ($(ss -Hltnp "sport = :$p" | head -n 1)); another cluster on this machine?"
  done
}
give_up() { # anything that ends this script early leaves nothing half up
  local rc=$?
  [ $rc -ne 0 ] || rc=1
  trap - EXIT INT TERM
  say "failed: taking down what was started; logs are kept in $CACHE/failed-logs"
  rm -rf "$CACHE/failed-logs"
  KEEP_LOGS=$CACHE/failed-logs "$KIT/down.sh" 9>&- || :
  exit $rc
}

MODE=full; STATUS=
case ${1:-} in
  --control-plane) MODE=control-plane ;;
  --status) STATUS=yes ;;
  '') ;;
  *) die "unknown argument '$1' (known: --control-plane, --status)" ;;
esac
need_root
[ -z "$STATUS" ] || [ ! -e "$CLUSTER_DIR/settings" ] || eval "$(grep -oE '^mode=\S+|NODES=\S+|FAKE_GPUS=\S+' "$CLUSTER_DIR/settings" | sed 's/^mode/MODE/')"
if [ -n "$STATUS" ]; then
  [ -e "$CLUSTER_DIR" ] || die "no cluster at $CLUSTER_DIR"
  wrong=$(settled_trouble); [ -z "$wrong" ] || die "$wrong"
  say "up and healthy ($(cat "$CLUSTER_DIR/settings"))"; echo "$KUBECONFIG_FILE"; exit 0
fi
alone cluster
if [ -e "$CLUSTER_DIR/complete" ] && [ "$(cat "$CLUSTER_DIR/settings")" != "$(settings)" ]; then
  die "a cluster with other settings is up ($(cat "$CLUSTER_DIR/settings")); run $KIT/down.sh first"
fi
if [ -e "$CLUSTER_DIR" ]; then
  wrong=$(settled_trouble)
  [ -n "$wrong" ] || { say "already up and healthy"; echo "$KUBECONFIG_FILE"; exit 0; }
  say "found a cluster, but $wrong: cleaning up first"
  "$KIT/down.sh" 9>&- >/dev/null
fi
"$KIT/build.sh" "$MODE"
check_machine
trap give_up EXIT INT TERM
mkdir -p "$PKI" "$LOGS" "$PIDS" "$CONF" "$CLUSTER_DIR/run"
chmod 700 "$CLUSTER_DIR"
settings >"$CLUSTER_DIR/settings"
nft list tables >"$CLUSTER_DIR/tables.old" 2>/dev/null || :

make_network
[ $MODE != full ] || make_pod_network
make_certificates
say "network and certificates"
start_api
if [ $MODE = full ]; then
  : >"$CONF/resolv.conf"     # pods get the cluster's DNS, and no search domain of the host
  for n in $(seq 2 "$NODES"); do node_namespaces "$n"; done
  for n in $(seq "$NODES"); do node_runtime "$n"; done
  for n in $(seq "$NODES"); do
    wait_for 30 "containerd of node-$n" ctr "$n" version
    for i in pause coredns; do ctr "$n" images import --digests=false "$IMAGES/node/$i.tar" >/dev/null; done
  done
  say "containerd on $NODES nodes"
fi
wait_for 90 "the API server" kube get --raw /readyz     # ready includes the built-in RBAC roles, which the rest needs to start
say "API server ready"
start_controllers
if [ $MODE = full ]; then
  start_scheduler
  for n in $(seq "$NODES"); do node_kubelet "$n"; node_proxy "$n"; done
fi
wait_for 60 "the default service account" kube -n default get serviceaccount default
if [ $MODE = full ]; then
  sed "s/@DNS_IP@/$DNS_IP/" "$KIT/coredns.yaml" | kube apply -f - >/dev/null
  for n in $(seq "$NODES"); do wait_for 90 "node-$n" node_ready "$n"; done
  say "$NODES nodes Ready"
  for n in $(seq "$NODES"); do node_gpus "$n"; done
  for n in $(seq "$NODES"); do [ "$(gpus_of "$n")" = 0 ] || wait_for 60 "node-$n's fake GPUs" node_has_gpus "$n"; done
  say "fake nvidia.com/gpu devices: $FAKE_GPUS"
  wait_for 90 CoreDNS dns_ready
  say "CoreDNS ready"
fi
touch "$CLUSTER_DIR/complete"
trap - EXIT INT TERM
say "up: Kubernetes $K8S_VERSION"
echo "$KUBECONFIG_FILE"
