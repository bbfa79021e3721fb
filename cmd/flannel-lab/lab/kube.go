package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
)

// Files of a node, for flanneld. They have the paths that they have in flannel's
// pod. The kubeconfig has no such path: in a pod, the environment and the files that
// kubelet provides take its place.
const (
	netConfFile    = "/etc/kube-flannel/net-conf.json"
	kubeconfigFile = "/etc/kube-flannel/kubeconfig"
	accountDir     = "/run/secrets/kubernetes.io/serviceaccount" // kubelet mounts it into every pod
	tokenFile      = accountDir + "/token"
)

// kubeDir is the API server's data directory in Infra.
const kubeDir = "/var/lib/etcd/kube"

// Kube is the kube-apiserver of a lab, together with the controller that
// assigns podCIDRs to nodes: bin/kube (cmd/flannel-lab/kube). It runs in Infra, and its
// data is deleted with the lab. The embedded Cluster has the administrator's Client and
// Config, which work outside of the lab's namespaces.
type Kube struct {
	*cluster.Cluster // nil until the API server is ready for the first time
	lab              *Lab
	proc             *machine.Process             // the server that was started last; nil before the first start
	manifest         []*unstructured.Unstructured // the objects of Options.Manifest
}

func (o Options) kubeBinary() string { return filepath.Join(o.BinDir, "kube") }

// Endpoint returns the URL under which nodes reach the API server.
func (k *Kube) Endpoint() string { return "https://" + k.addr().String() }

func (k *Kube) addr() netip.AddrPort {
	return netip.AddrPortFrom(address(!k.lab.opts.Family.Has4(), 0, 1).Addr(), 6443)
}

// Dial connects to the API server from outside of the lab.
func (k *Kube) Dial(ctx context.Context) (net.Conn, error) {
	return k.lab.Infra.Dial(ctx, "tcp", k.addr().String())
}

// Start starts the API server again after Kill, with its old data, and waits
// until it answers.
func (k *Kube) Start(ctx context.Context) error {
	if err := k.launch(); err != nil {
		return err
	}
	return k.ready(ctx)
}

// launch starts the process.
func (k *Kube) launch() (err error) {
	var networks []string
	if k.lab.opts.Family.Has4() {
		networks = append(networks, Network4)
	}
	if k.lab.opts.Family.Has6() {
		networks = append(networks, Network6)
	}
	// bin/kube writes this file when it is ready, and ready waits for the file.
	err = k.lab.Infra.Do(func() error { return os.RemoveAll(filepath.Join(kubeDir, "admin.kubeconfig")) })
	if err != nil {
		return err
	}
	cmd := exec.Command(k.lab.opts.kubeBinary(), "-dir="+kubeDir, "-listen="+k.addr().String(),
		"-cluster-cidr="+strings.Join(networks, ","))
	cmd.Args = append(cmd.Args, k.lab.opts.KubeArgs...)
	k.proc, err = machine.StartProcess(k.lab.Infra, cmd, "kube.log")
	return err
}

// ready waits until the API server is ready. The first time it also creates the
// clients and applies the manifest.
func (k *Kube) ready(ctx context.Context) error {
	var text []byte
	_, err := machine.Until(ctx, machine.Longest, func(context.Context) (err error) {
		if !k.proc.Running() {
			return machine.Fatal(fmt.Errorf("kube exited: %s", machine.LastLine(k.proc.Log())))
		}
		text, err = k.lab.Infra.ReadFile(filepath.Join(kubeDir, "admin.kubeconfig"))
		return err
	})
	if err != nil || k.Cluster != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return err
	}
	config.Dial, config.QPS = k.lab.Infra.Dial, -1 // -1: no limit of requests per second
	if k.Cluster, err = cluster.Open(config); err != nil {
		return err
	}
	manifest, err := os.ReadFile(k.lab.opts.Manifest)
	if err != nil {
		return err
	}
	if k.manifest, err = cluster.Objects(manifest); err != nil {
		return err
	}
	return k.Apply(ctx, false, k.manifest...) // false: no dry run
}

// Object returns the first object of that kind in the manifest.
func (k *Kube) Object(kind string) (*unstructured.Unstructured, error) {
	for _, o := range k.manifest {
		if o.GetKind() == kind {
			return o, nil
		}
	}
	return nil, fmt.Errorf("no %s in %s", kind, k.lab.opts.Manifest)
}

// PodEnv returns the environment variables by which every pod of a cluster
// finds the API server.
func (k *Kube) PodEnv() []string {
	return []string{"KUBERNETES_SERVICE_HOST=" + k.addr().Addr().String(),
		fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", k.addr().Port())}
}

// register registers every node of the lab.
func (k *Kube) register(ctx context.Context) error {
	for _, n := range k.lab.Nodes {
		if err := k.Register(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// Register adds a node of the lab to the cluster: it creates the Node, waits
// for its podCIDRs, and writes to the node a token of flannel's service account
// that is bound to it. flanneld authenticates with this token. A node that was
// unregistered may get other podCIDRs.
func (k *Kube) Register(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithTimeout(ctx, machine.Longest)
	defer cancel()
	var addresses []netip.Addr
	for _, a := range []netip.Addr{n.IP4, n.IP6} {
		if a.IsValid() {
			addresses = append(addresses, a)
		}
	}
	if err := k.AddNode(ctx, n.Name, addresses...); err != nil {
		return err
	}
	if _, err := k.PodCIDRs(ctx, n.Name); err != nil {
		return err
	}
	token, err := k.Token(ctx, n.Name, 24*time.Hour)
	if err != nil {
		return err
	}
	kubeconfig, err := k.Kubeconfig("", n.path(tokenFile)) // "": with the URL of the server that k runs
	if err != nil {
		return err
	}
	config, err := k.Object("ConfigMap")
	if err != nil {
		return err
	}
	cniConf, _, err := unstructured.NestedString(config.Object, "data", "cni-conf.json")
	if err != nil {
		return err
	}
	return n.Do(func() error {
		return errors.Join(os.MkdirAll(accountDir, 0o755), os.WriteFile(tokenFile, []byte(token), 0o600),
			os.WriteFile(accountDir+"/ca.crt", k.Config.CAData, 0o600), os.WriteFile(kubeconfigFile, kubeconfig, 0o600),
			os.WriteFile("/etc/kube-flannel/cni-conf.json", []byte(cniConf), 0o644))
	})
}

// Unregister deletes a Node and the Pod that its token is bound to.
func (k *Kube) Unregister(ctx context.Context, n *Node) error {
	noGrace := metav1.DeleteOptions{GracePeriodSeconds: new(int64)} // 0 seconds: at once
	return errors.Join(k.Client.CoreV1().Nodes().Delete(ctx, n.Name, noGrace),
		k.Client.CoreV1().Pods(cluster.Namespace).Delete(ctx, cluster.FlannelPod(n.Name), noGrace))
}

// setConfig writes the network configuration to a file on every node.
func (k *Kube) setConfig(json string) error {
	var errs []error
	for _, n := range k.lab.Nodes {
		errs = append(errs, n.SetNetConfig(json))
	}
	return errors.Join(errs...)
}

// SetNetConfig writes the network configuration to the node's file, as its
// kubelet does with the ConfigMap.
func (n *Node) SetNetConfig(json string) error { return n.WriteFile(netConfFile, json) }

// leases returns the flannel annotations of each node as JSON, by node name and
// podCIDRs.
func (k *Kube) leases(ctx context.Context) (map[string]string, error) {
	nodes, err := k.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	leases := map[string]string{}
	for _, n := range nodes.Items {
		maps.DeleteFunc(n.Annotations, func(key, _ string) bool {
			return !strings.HasPrefix(key, "flannel.alpha.coreos.com/")
		})
		text, err := json.Marshal(n.Annotations)
		if err != nil {
			return nil, err
		}
		leases[n.Name+" "+strings.Join(n.Spec.PodCIDRs, " ")] = string(text)
	}
	return leases, nil
}

// AuditLog returns the API server's log of flannel's requests, one JSON object
// a line. It needs -audit in Options.KubeArgs.
func (k *Kube) AuditLog() (string, error) {
	text, err := k.lab.Infra.ReadFile(filepath.Join(kubeDir, "audit.log"))
	return string(text), err
}

// Kill ends the API server with SIGKILL. There is no Stop, because a graceful
// shutdown would wait for every watch.
func (k *Kube) Kill() error {
	_, err := k.proc.Stop(context.Background(), syscall.SIGKILL)
	return err
}

// Pause stops the API server with SIGSTOP. Its connections stay open and
// nothing answers.
func (k *Kube) Pause() error { return k.proc.Signal(syscall.SIGSTOP) }

// Resume continues the API server after Pause.
func (k *Kube) Resume() error { return k.proc.Signal(syscall.SIGCONT) }

// Log returns everything that the API server has written.
func (k *Kube) Log() string { return k.proc.Log() }

func (k *Kube) close() error {
	if k.proc == nil {
		return nil
	}
	return k.Kill()
}
