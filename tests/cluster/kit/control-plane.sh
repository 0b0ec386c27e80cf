# Sourced by up: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, all on node-1's address.
start_api() {
  start etcd "$BIN/etcd" --name default --data-dir "$CLUSTER_DIR/etcd" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380
  # shellcheck disable=SC2086  # APISERVER_ARGS is a list of words
  start kube-apiserver "$BIN/kube-apiserver" --bind-address="$NODE_IP" --advertise-address="$NODE_IP" --secure-port=6443 \
    --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range="$SERVICE_CIDR" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged=true --anonymous-auth=true \
    --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --kubelet-client-certificate="$PKI/apiserver-kubelet-client.crt" --kubelet-client-key="$PKI/apiserver-kubelet-client.key" \
    --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP,Hostname \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --requestheader-client-ca-file="$PKI/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
    --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file="$PKI/front-proxy-client.crt" --proxy-client-key-file="$PKI/front-proxy-client.key" ${APISERVER_ARGS:-}
}
start_controllers() {
  local who=$CLUSTER_DIR/controller-manager.kubeconfig
  # shellcheck disable=SC2086  # KCM_ARGS is a list of words
  start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$who" \
    --authentication-kubeconfig="$who" --authorization-kubeconfig="$who" \
    --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials=true --allocate-node-cidrs=false \
    --service-cluster-ip-range="$SERVICE_CIDR" --root-ca-file="$PKI/ca.crt" --service-account-private-key-file="$PKI/sa.key" \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" ${KCM_ARGS:-}
}
start_scheduler() {
  local who=$CLUSTER_DIR/scheduler.kubeconfig
  start kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$who" --authentication-kubeconfig="$who" \
    --authorization-kubeconfig="$who" --bind-address=127.0.0.1 --leader-elect=false
}
