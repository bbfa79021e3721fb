{{/* A copy of values.yaml for helm upgrade --reuse-values, which does not read that file. */}}
{{- define "flannel.defaults" -}}
podCidr: 10.244.0.0/16
podCidrv6: ""
backend:
  Type: vxlan
netConf: {}
nftables: false
image:
  repository: flanneld
  tag: dev
  pullPolicy: ""
imagePullSecrets: []
args: []
env: []
apiServer:
  host: ""
  port: ""
healthPort: 8471
metrics:
  expose: false
  podMonitor:
    enabled: false
    labels: {}
    interval: 30s
annotationPrefix: flannel.alpha.coreos.com/
admissionPolicy: true
privileged: false
seLinuxOptions: {}
resources:
  requests:
    cpu: 20m
    memory: 50Mi
  limits:
    memory: 256Mi
nodeSelector:
  kubernetes.io/os: linux
tolerations:
- operator: Exists
affinity: {}
priorityClassName: system-node-critical
updateStrategy:
  type: RollingUpdate
  rollingUpdate:
    maxUnavailable: 1
podAnnotations: {}
cniBinDir: /opt/cni/bin
cniConfDir: /etc/cni/net.d
replaceCniPlugin: false
windows:
  enabled: false
  image:
    repository: flanneld-windows
    tag: dev
  serviceCidr: 10.96.0.0/12
  dns: []
  args: []
  resources:
    requests:
      cpu: 20m
      memory: 50Mi
  nodeSelector:
    kubernetes.io/arch: amd64
    kubernetes.io/os: windows
  cniBinDir: ""
  cniConfDir: ""
netpol:
  enabled: false
  args:
  - --hostname-override=$(MY_NODE_NAME)
  - --v=2
  image:
    repository: registry.k8s.io/networking/kube-network-policies
    tag: v0.9.1
flannel: {}
global:
  imagePullSecrets: []
{{- end }}
