package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
)

// podImage is the image of the sandboxes of pods (pause containers), and of pods that talk. It is
// built from the directory pod; loadImages imports it on each node.
const podImage = "docker.io/library/flannel-lab-pod:dev"

// containerdConfig does not set oom scores below that of this process, because a lab in a
// container without CAP_SYS_RESOURCE cannot. configure replaces RUNC, and ADDRESS, RESOLVER,
// MODE, NETWORKS and NODE in the files below.
const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "` + podImage + `"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "RUNC"
`

// kubeletConfig accepts the host as it is: with swap, with cgroup v1, with little space.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: "ADDRESS"
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /run/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
resolvConf: /etc/resolv.conf
clusterDNS: ["RESOLVER"]
clusterDomain: cluster.local
volumePluginDir: /var/lib/kubelet/volumeplugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
`

// proxyConfig leaves alone the limits of conntrack, which belong to the machine.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: /run/kube-proxy.kubeconfig}
mode: MODE
clusterCIDR: NETWORKS
hostnameOverride: NODE
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
oomScoreAdj: 0
`

// kubelet returns the configuration of kubelet, which listens on all addresses.
func (o Options) kubelet() string {
	every := "0.0.0.0"
	if o.IPv6Only {
		every = "::"
	}
	return strings.NewReplacer("ADDRESS", every, "RESOLVER", o.service(dns).String()).Replace(kubeletConfig)
}

// configure writes the files of a service (Containerd, Kubelet or KubeProxy) into the
// node's /run, and returns the command that starts it. StartService calls it. kubelet and
// kube-proxy start after Ready, which sets n.cluster.ca.
func (n *Node) configure(service string) (command []string, err error) {
	o := n.cluster.opts
	files := map[string]string{}
	switch service {
	case Containerd:
		files["containerd.toml"] = strings.ReplaceAll(containerdConfig, "RUNC", filepath.Join(o.BinDir, runc))
		command = []string{o.file("containerd"), "-c", "/run/containerd.toml"}
	case Kubelet:
		files["kubelet.yaml"], files["ca.crt"] = o.kubelet(), string(n.cluster.ca)
		files["kubelet.kubeconfig"] = n.cluster.kubeconfigOf("system:node:" + n.Name)
		command = o.kubernetes("kubelet", "--config=/run/kubelet.yaml", "--kubeconfig=/run/kubelet.kubeconfig",
			"--hostname-override="+n.Name, "--node-ip="+n.addresses())
	case KubeProxy:
		files["kube-proxy.yaml"] = strings.NewReplacer("MODE", o.ProxyMode, "NETWORKS", o.podNetworks(), "NODE", n.Name).Replace(proxyConfig)
		files["kube-proxy.kubeconfig"] = n.cluster.kubeconfigOf("system:kube-proxy")
		command = o.kubernetes("kube-proxy", "--config=/run/kube-proxy.yaml")
	default:
		return nil, fmt.Errorf("no service %q: the services are %s, %s and %s", service, Containerd, Kubelet, KubeProxy)
	}
	for name, text := range files {
		if err := n.WriteFile("/run/"+name, text); err != nil {
			return nil, err
		}
	}
	return command, nil
}
