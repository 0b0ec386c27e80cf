#!/usr/bin/env bash
# Ends the cluster that `up` started, by the pids it noted, and takes back everything else: mounts, namespaces, links,
# firewall rules, cgroups, kernel settings, files. Fails, with a list, when something is still there.
#   KEEP_LOGS=folder down    copies the daemons' logs there first
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
need_root
alone cluster

stop() { # names of daemons: asks all to end, and after two seconds makes them
  local n p left ps=()
  for n; do p=$(running_as "$n") && ps+=("$p") && kill "$p" 2>/dev/null; done
  for _ in $(seq 20); do
    left=0; for p in "${ps[@]}"; do kill -0 "$p" 2>/dev/null && left=1; done
    [ $left = 0 ] && break
    sleep 0.1
  done
  for p in "${ps[@]}"; do kill -9 "$p" 2>/dev/null; done
  for n; do rm -f "$PIDS/$n"; done
}
named() { local f; for f in "$PIDS"/$1; do [ -e "$f" ] && echo "${f##*/}"; done; }
in_pods() { find /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/"$NODE_NAME"-* /sys/fs/cgroup/"$NODE_NAME"-* -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un; }
shims() {
  local p
  for p in /proc/[0-9]*; do
    [ "$(readlink "$p/exe" 2>/dev/null)" = "$BIN/containerd-shim-runc-v2" ] && tr '\0' ' ' <"$p/cmdline" | grep -q -- "-address $CLUSTER_DIR/" && echo "${p#/proc/}"
  done
}
unmount_under() { awk -v d="$1/" 'index($2 "/", d) == 1 {print $2}' /proc/mounts | sort -r | while read -r m; do umount -l "$(printf '%b' "$m")"; done; }
remove_rules() { # chains and rules of the CNI plugins, the kubelet and up itself
  local tool table rule chain
  for tool in iptables ip6tables; do for table in nat filter mangle; do
    "$tool-save" -t $table 2>/dev/null | grep -E '^-A' | grep -E -- 'KUBE-|CNI-|carousel-local' | sed 's/^-A/-D/' |
      while read -r rule; do eval "$tool -t $table $rule" 2>/dev/null; done
    for chain in $("$tool-save" -t $table 2>/dev/null | grep -oE '^:(KUBE|CNI)-\S+' | tr -d :); do $tool -t $table -F "$chain" 2>/dev/null; done
    for chain in $("$tool-save" -t $table 2>/dev/null | grep -oE '^:(KUBE|CNI)-\S+' | tr -d :); do $tool -t $table -X "$chain" 2>/dev/null; done
  done; done
}
remove_tables() { # the tables that iptables made for those rules, when nothing else is in them
  local t
  nft list tables 2>/dev/null | while read -r _ t; do
    case $t in 'ip kube-proxy' | 'ip6 kube-proxy' | 'ip carousel-local') nft delete table $t; continue ;; esac
    case $t in 'ip '* | 'ip6 '*) ;; *) continue ;; esac
    [ ! -e "$CLUSTER_DIR/tables.old" ] || grep -qx "table $t" "$CLUSTER_DIR/tables.old" && continue
    nft list table $t 2>/dev/null | grep -vE '^\s*(table|chain|type|\}|$)' | grep -q . || nft delete table $t
  done
}

if [ ! -d "$CLUSTER_DIR" ] && [ -z "$("$KIT/traces.sh")" ]; then say "no cluster at $CLUSTER_DIR"; exit 0; fi
[ -z "${KEEP_LOGS:-}" ] || [ ! -d "$LOGS" ] || { mkdir -p "$KEEP_LOGS" && cp -a "$LOGS/." "$KEEP_LOGS/"; }
stop $(named 'fakegpu-*') $(named 'kubelet-*') $(named 'kube-*') etcd
# What runs in the pods' cgroups is ours alone, with the shims that watch it: so that nothing is restarted or reported.
for _ in 1 2 3 4 5; do
  left="$(in_pods) $(shims)"; [ -n "${left//[[:space:]]/}" ] || break
  kill -9 $left 2>/dev/null; sleep 0.3
done
stop $(named 'containerd-*')
stop $(named 'node-*')
say "processes ended"
unmount_under "$CLUSTER_DIR"; unmount_under /var/lib/kubelet
for ns in /run/netns/cni-* /run/netns/"$NODE_NAME"-*; do [ -e "$ns" ] && ip netns del "${ns##*/}"; done
ip link del "$POD_LINK" 2>/dev/null; ip link del "$NODE_LINK" 2>/dev/null
remove_rules
remove_tables
for d in /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/k8s.io /sys/fs/cgroup/*/"$NODE_NAME"-* /sys/fs/cgroup/"$NODE_NAME"-*; do
  [ -d "$d" ] && find "$d" -depth -type d -exec rmdir {} \; 2>/dev/null
done
say "mounts, links, rules and cgroups removed"
[ -f "$CLUSTER_DIR/sysctl.old" ] && tac "$CLUSTER_DIR/sysctl.old" | while read -r s; do sysctl -qw "$s"; done
rm -rf /var/lib/kubelet /var/log/pods /var/log/containers /run/containerd/runc/k8s.io
for s in /run/containerd/s/*; do [ -S "$s" ] && ! ss -Hlx "src unix:$s" 2>/dev/null | grep -q . && rm -f "$s"; done   # sockets of shims that are gone
rmdir /run/containerd/runc /run/containerd/s /run/containerd 2>/dev/null
[ -e /run/netns ] && [ -z "$(ls -A /run/netns)" ] && umount /run/netns 2>/dev/null && rmdir /run/netns
rm -rf "$CLUSTER_DIR"
left=$("$KIT/traces.sh")
[ -z "$left" ] || { echo "$left" >&2; die "the traces above are still there"; }
say "down: nothing left behind"
