#!/usr/bin/env bash
# Lists what a cluster leaves on the machine, one trace a line: nothing is printed when `down` did its work.
#   traces.sh          only what is the cluster's own
#   traces.sh --all    every mount, link, route, network namespace, firewall rule, cgroup and changed setting of the machine,
#                      for a comparison before `up` and after `down`
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

processes() { # daemons with this cluster's folder in their command (tests run API servers of their own), and what sits in pods' cgroups
  local p
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in "$BIN"/kubectl | "$BIN"/helm) ;; "$BIN"/*)
      if tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -qF "$CLUSTER_DIR/"; then echo "process ${p#/proc/} $(readlink "$p/exe")"; fi ;;
    esac
  done
  find /sys/fs/cgroup -path '*kubepods*' -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un | sed 's/^/process in a pod: /' || :
}
rules() { # an iptables rule or chain in each line, without the counters
  local tool table
  for tool in iptables ip6tables; do for table in filter nat mangle; do
    "$tool-save" -t $table 2>/dev/null | grep -E '^(:|-A)' | sed -E "s/ \[[0-9:]+\]//; s/^/$tool $table /" || :
  done; done
}
ours() { grep -E -- "$1" || :; }

if [ "${1:-}" = --all ]; then
  processes
  sed 's/^[^ ]* \([^ ]*\) \([^ ]*\) .*/mount \1 \2/' /proc/mounts | grep -v /var/lib/containers/storage | sort || :
  ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/link \1/' | sort
  ip -4 route | sed 's/^/route /'
  ip netns list | sed 's/^/network namespace /'
  nft list tables 2>/dev/null | sed 's/^/nft /' || :
  rules
  find /sys/fs/cgroup -mindepth 1 -type d | sed 's/^/cgroup /' | sort
  sysctl net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables fs.inotify.max_user_instances vm.overcommit_memory kernel.panic kernel.panic_on_oops 2>/dev/null | sed 's/^/sysctl /' || :
  for d in /var/lib/kubelet /var/log/pods /var/log/containers /run/containerd /run/netns "$CLUSTER_DIR"; do [ ! -e "$d" ] || echo "folder $d"; done
  exit 0
fi
processes
awk '{print "mount " $2}' /proc/mounts | ours " ($CLUSTER_DIR|/var/lib/kubelet|/run/netns/cni-|/run/netns/$NODE_NAME)"
ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/link \1/' | ours "^link ($NODE_LINK|$POD_LINK|csln[0-9])"
ip -4 route | sed 's/^/route /' | ours "^route ($POD_NET\.|$SERVICE_CIDR|$NODE_NET\.)"
ip netns list | sed 's/^/network namespace /' | ours "namespace ($NODE_NAME|cni-)"
nft list tables 2>/dev/null | sed 's/^/nft /' | ours 'kube-proxy|carousel-local'
rules | ours 'KUBE-|CNI-|carousel-local'
find /sys/fs/cgroup -maxdepth 2 -type d 2>/dev/null | sed 's/^/cgroup /' | ours "/(kubepods|k8s\.io|$NODE_NAME-[0-9]+)$"
for d in /var/lib/kubelet /var/log/pods /var/log/containers "$CLUSTER_DIR"; do [ ! -e "$d" ] || echo "folder $d"; done
