# Sourced by up: the cluster's certificate authorities, certificates and kubeconfigs, good for 30 days.
new_key() { openssl req "$@" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes 2>/dev/null; }
authority() { # file name, common name
  new_key -x509 -days 30 -subj "/CN=$2" -keyout "$PKI/$1.key" -out "$PKI/$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
}
certificate() { # file name, subject, authority, [subjectAltName]
  local ext=$'keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth'
  [ -z "${4:-}" ] || ext+=$'\n'"subjectAltName=$4"
  new_key -subj "$2" -keyout "$PKI/$1.key" -out "$PKI/$1.csr"
  openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/$3.crt" -CAkey "$PKI/$3.key" -set_serial "0x$(openssl rand -hex 12)" -days 30 \
    -extfile <(echo "$ext") -out "$PKI/$1.crt" 2>/dev/null
  rm "$PKI/$1.csr"
}
kubeconfig() { # certificate's file name
  local file=$CLUSTER_DIR/$1.kubeconfig
  cat >"$file" <<Y
apiVersion: v1
kind: Config
clusters:
- name: carousel-local
  cluster: {server: "https://$NODE_IP:6443", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w0 "$PKI/$1.crt"), client-key-data: $(base64 -w0 "$PKI/$1.key")}
contexts:
- name: carousel-local
  context: {cluster: carousel-local, user: $1}
current-context: carousel-local
Y
  chmod 600 "$file"
}
make_certificates() {
  local n k=kubernetes
  authority ca carousel-local-ca; authority front-proxy-ca carousel-local-front-proxy-ca
  certificate apiserver /CN=kube-apiserver ca \
    "DNS:localhost,DNS:$k,DNS:$k.default,DNS:$k.default.svc,DNS:$k.default.svc.cluster.local,IP:127.0.0.1,IP:$NODE_IP,IP:$API_IP"
  certificate apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client ca
  certificate front-proxy-client /CN=front-proxy-client front-proxy-ca
  certificate admin /O=system:masters/CN=admin ca
  certificate controller-manager /CN=system:kube-controller-manager ca
  certificate scheduler /CN=system:kube-scheduler ca
  certificate kube-proxy /CN=system:kube-proxy ca
  for n in $(seq "$NODES"); do
    certificate "node-$n" "/O=system:nodes/CN=system:node:node-$n" ca "DNS:node-$n,IP:$NODE_NET.$n"
    kubeconfig "node-$n"
  done
  openssl genrsa -out "$PKI/sa.key" 2048 2>/dev/null
  openssl rsa -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null
  for n in admin controller-manager scheduler kube-proxy; do kubeconfig "$n"; done
}
