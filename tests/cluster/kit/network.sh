# Sourced by up: node-1's own links, routes, firewall and kernel settings. down takes all of it back.
sysctl_set() { # name, value: notes the old value for down
  local old; old=$(sysctl -n "$1" 2>/dev/null) || return 0
  [ "$old" != "$2" ] || return 0
  echo "$1=$old" >>"$CLUSTER_DIR/sysctl.old"; sysctl -qw "$1=$2"
}
make_network() {
  ip link show "$NODE_LINK" >/dev/null 2>&1 || ip link add "$NODE_LINK" type bridge
  ip addr replace "$NODE_IP/24" dev "$NODE_LINK"; ip link set "$NODE_LINK" up
  ip route replace "$SERVICE_CIDR" dev "$NODE_LINK" src "$NODE_IP"   # a ClusterIP that nobody serves must not leave by the default route
}
make_pod_network() {
  local link way
  sysctl_set net.ipv4.ip_forward 1
  sysctl_set net.bridge.bridge-nf-call-iptables 1
  sysctl_set fs.inotify.max_user_instances 8192
  sysctl_set vm.overcommit_memory 1; sysctl_set kernel.panic 10; sysctl_set kernel.panic_on_oops 1   # the kubelet would set these and leave them
  # what pods and nodes send stays on this machine
  nft -f - <<Y
table ip carousel-local
delete table ip carousel-local
table ip carousel-local {
  chain forward { type filter hook forward priority 0; ip saddr { $POD_CIDR, $NODE_NET.0/24 } oifname != { "$POD_LINK", "$NODE_LINK", "lo" } reject; }
}
Y
  # where a Docker engine ran, the FORWARD chain drops by default
  for link in "$POD_LINK" "$NODE_LINK"; do for way in -i -o; do
    iptables -I FORWARD $way "$link" -m comment --comment carousel-local -j ACCEPT
  done; done
}
