#!/usr/bin/env bash
# Builds what `up` runs, from the pinned Go modules in kit/gomod, into the cache. Does nothing for what is there already.
#   build [full]          everything (about 12 minutes and 300 MB of modules from bare on 2 cores; 0.3 s when done)
#   build control-plane   only etcd, kube-apiserver, kube-controller-manager, kubectl (about 8 minutes from bare)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
want=${1:-full}
mkdir -p "$BIN/cni" "$IMAGES/node"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false

check_go() {
  local go=${GO:-$(command -v go || echo /usr/local/go/bin/go)} have
  [ -x "$go" ] || die "Go $GO_AT_LEAST or newer is needed to build Kubernetes; install it from go.dev/dl (Debian's golang is too old), or set GO=/path/to/go"
  PATH=$(dirname "$go"):$PATH
  have=$(GOTOOLCHAIN=local go version | grep -oE 'go[0-9.]+' | head -n 1)
  [ "$(printf '%s\n' "go$GO_AT_LEAST" "$have" | sort -V | head -n 1)" = "go$GO_AT_LEAST" ] ||
    die "$go is $have; Kubernetes $K8S_VERSION needs Go $GO_AT_LEAST or newer: install it from go.dev/dl, or set GO=/path/to/go"
}
# A stamp names the pinned modules and the compiler, so that a changed go.mod, source or Go rebuilds.
go_build() { # module folder, linker flags, output=package...
  local dir=$KIT/gomod/$1 flags=$2 sum out p t; shift 2
  sum=$(cat "$dir"/go.mod "$dir"/go.sum "$dir"/*/*.go | cat - <(go version) | sha256sum | cut -c1-16)
  for p; do
    out=${p%%=*}
    [ -x "$BIN/$out" ] && [ "$(cat "$BIN/$out.stamp" 2>/dev/null)" = "$sum" ] && continue
    t=$SECONDS; say "building $out …"
    (cd "$dir" && go build -trimpath -ldflags "-s -w $flags" -o "$BIN/$out" "${p#*=}") >"$CACHE/go-build.log" 2>&1 ||
      { tail -n 20 "$CACHE/go-build.log" >&2; die "go could not build $out"; }
    echo "$sum" >"$BIN/$out.stamp"
    say "built $out in $((SECONDS - t)) s"
  done
}
node_image() { # name of a static program: its image, for the nodes themselves
  local archive=$IMAGES/node/$1.tar d
  [ "$archive" -nt "$BIN/$1" ] && return
  d=$(mktemp -d); cp "$BIN/$1" "$d/"
  python3 "$KIT/pack.py" --tag "localhost/carousel/$1:1" --out "$archive" --layer "$d" --entrypoint "[\"/$1\"]" >/dev/null
  rm -r "$d"
}

check_go
alone build      # `up` waits for a build in the background
need openssl:openssl ip:iproute2 python3:python3
component=k8s.io/component-base/version
version="-X $component.gitVersion=v$K8S_VERSION -X $component.gitMajor=${K8S_VERSION%%.*} -X $component.gitMinor=$(cut -d. -f2 <<<"$K8S_VERSION") -X $component.gitTreeState=clean"
cmd=k8s.io/kubernetes/cmd
go_build rest "" etcd=go.etcd.io/etcd/server/v3
go_build k8s "$version" kube-apiserver=$cmd/kube-apiserver kube-controller-manager=$cmd/kube-controller-manager kubectl=$cmd/kubectl
[ "$want" = full ] || exit 0

need_root
need runc:runc iptables:iptables nft:nftables conntrack:conntrack
containerd=github.com/containerd/containerd/v2
plugins=github.com/containernetworking/plugins/plugins
go_build k8s "$version" kube-scheduler=$cmd/kube-scheduler kubelet=$cmd/kubelet kube-proxy=$cmd/kube-proxy
go_build k8s "" fakegpu=./fakegpu pause=./pause
go_build rest "-X $containerd/version.Version=v$CONTAINERD_VERSION" containerd=$containerd/cmd/containerd \
  containerd-shim-runc-v2=$containerd/cmd/containerd-shim-runc-v2 ctr=$containerd/cmd/ctr
go_build rest "" cni/bridge=$plugins/main/bridge cni/loopback=$plugins/main/loopback cni/host-local=$plugins/ipam/host-local \
  cni/portmap=$plugins/meta/portmap coredns=./coredns
go_build rest "-X helm.sh/helm/v4/internal/version.version=v$HELM_VERSION" helm=helm.sh/helm/v4/cmd/helm
for i in pause coredns; do node_image $i; done
say "cluster binaries are in $BIN"
