# Sourced by up: one node's namespaces, containerd, kubelet, kube-proxy and fake GPUs.
in_node() { # node's number, command...: sets CMD to the command inside that node's namespaces
  local n=$1 p; shift; CMD=("$@")
  [ "$n" != 1 ] || return 0
  p=$(cut -d' ' -f1 "$PIDS/node-$n")
  CMD=(nsenter --net="/run/netns/$NODE_NAME-$n" --mount="/proc/$p/ns/mnt" --uts="/proc/$p/ns/uts" "$@")
}
node_start() { # number, daemon's name, command...
  local n=$1 name=$2; shift 2
  in_node "$n" "$@"
  setsid "${CMD[@]}" >"$LOGS/$name-$n.log" 2>&1 </dev/null 9>&- &
  echo "$! $1" >"$PIDS/$name-$n"
}
node_cgroups() { # a cgroup of its own for node N's pods, below which its kubelet makes kubepods
  local c
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$NODE_NAME-$1"
    for c in cpuset cpu io memory hugetlb pids; do
      echo "+$c" >/sys/fs/cgroup/cgroup.subtree_control || :
      echo "+$c" >"/sys/fs/cgroup/$NODE_NAME-$1/cgroup.subtree_control" || :
    done 2>/dev/null
    return
  fi
  for c in /sys/fs/cgroup/*/; do
    [ -e "$c/cgroup.controllers" ] && continue
    mkdir -p "$c/$NODE_NAME-$1"
    case $c in */cpuset/) for f in cpuset.cpus cpuset.mems; do cat "$c/$f" >"$c/$NODE_NAME-$1/$f"; done;; esac
  done
}
node_namespaces() { # a node that is not the machine itself: its network, and its own copies of the folders with fixed names
  local n=$1 d=$CLUSTER_DIR/nodes/node-$1 ns=$NODE_NAME-$1 sleep
  ip netns add "$ns"
  ip link add "csln$n" type veth peer name eth0 netns "$ns"
  ip link set "csln$n" master "$NODE_LINK" up
  nsenter --net="/run/netns/$ns" sh -ec "
    ip link set lo up; ip addr add $NODE_NET.$n/24 dev eth0; ip link set eth0 up; ip route add default via $NODE_IP
    sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.bridge.bridge-nf-call-iptables=1 || :
    for i in \$(seq $NODES); do [ \$i = $n ] || ip route add $POD_NET.\$i.0/24 via $NODE_NET.\$i; done"
  ip route replace "$POD_NET.$n.0/24" via "$NODE_NET.$n"
  node_cgroups "$n"
  mkdir -p "$d"/{kubelet,netns,pods,containers} /var/lib/kubelet /var/log/pods /var/log/containers /run/netns
  sleep=$(readlink -f "$(command -v sleep)")
  setsid nsenter --net="/run/netns/$ns" unshare --mount --uts --propagation private sh -ec "
    hostname node-$n
    mount --bind $d/kubelet /var/lib/kubelet; mount --bind $d/netns /run/netns
    mount --bind $d/pods /var/log/pods; mount --bind $d/containers /var/log/containers
    touch $d/ready; exec $sleep infinity" >"$LOGS/node-$n.log" 2>&1 </dev/null 9>&- &
  echo "$! $sleep" >"$PIDS/node-$n"
  wait_for 10 "node-$n's namespaces" test -e "$d/ready"
}
node_runtime() {
  local n=$1 d=$CLUSTER_DIR/nodes/node-$1
  mkdir -p "$d/cni/net.d"
  cat >"$d/cni/net.d/10-pods.conflist" <<Y
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "$POD_LINK", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_NET.$n.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$d/cni/ipam"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
Y
  # restrict_oom_score_adj: a machine without CAP_SYS_RESOURCE may not lower it
  cat >"$d/containerd.toml" <<Y
version = 3
root = "$d/containerd"
state = "$d/containerd-run"
[grpc]
  address = "$(socket "$n")"
[ttrpc]
  address = "$(socket "$n").ttrpc"
[plugins.'io.containerd.nri.v1.nri']
  disable = true  # its socket has one path on a machine: two nodes that start together take it from each other
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "localhost/carousel/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["$BIN/cni"]
    conf_dir = "$d/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
Y
  PATH=$BIN:$PATH node_start "$n" containerd "$BIN/containerd" --config "$d/containerd.toml" --log-level info
}
node_kubelet() {
  local n=$1 d=$CLUSTER_DIR/nodes/node-$1 root=/
  [ "$n" = 1 ] || root=/$NODE_NAME-$n
  cat >"$d/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $NODE_NET.$n
healthzBindAddress: 127.0.0.1
tlsCertFile: $PKI/node-$n.crt
tlsPrivateKeyFile: $PKI/node-$n.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$(socket "$n")
cgroupDriver: cgroupfs
cgroupRoot: $root
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$DNS_IP]
resolvConf: $CONF/resolv.conf
oomScoreAdj: 0
enforceNodeAllocatable: [pods]
evictionHard: {memory.available: 200Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 110
logging: {verbosity: 2}
Y
  # shellcheck disable=SC2086  # KUBELET_ARGS is a list of words
  node_start "$n" kubelet "$BIN/kubelet" --config="$d/kubelet.yaml" --kubeconfig="$CLUSTER_DIR/node-$n.kubeconfig" \
    --hostname-override="node-$n" --node-ip="$NODE_NET.$n" --root-dir=/var/lib/kubelet ${KUBELET_ARGS:-}
}
node_proxy() {
  local n=$1 d=$CLUSTER_DIR/nodes/node-$1
  cat >"$d/kube-proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: $CLUSTER_DIR/kube-proxy.kubeconfig}
clusterCIDR: $POD_CIDR
hostnameOverride: node-$n
mode: nftables
nftables: {minSyncPeriod: 100ms}
conntrack: {maxPerCore: 0}
oomScoreAdj: 0
Y
  node_start "$n" kube-proxy "$BIN/kube-proxy" --config="$d/kube-proxy.yaml"
}
node_gpus() { # devices that exist in name only; ids listed in unhealthy-gpus (GPU-fake-0, ...) are reported as sick
  local g; g=$(gpus_of "$1")
  [ "$g" = 0 ] || node_start "$1" fakegpu "$BIN/fakegpu" -n "$g" -unhealthy-file "$CLUSTER_DIR/nodes/node-$1/unhealthy-gpus"
}
