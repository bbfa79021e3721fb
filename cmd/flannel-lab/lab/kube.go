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
	"flannel/subnet/kube/kubetest/cluster"
)

// Files of a node, where flannel's pod has them, but for the kubeconfig, which stands for what a pod has anyway.
const (
	netConfFile    = "/etc/kube-flannel/net-conf.json"
	kubeconfigFile = "/etc/kube-flannel/kubeconfig"
	accountDir     = "/run/secrets/kubernetes.io/serviceaccount" // what kubelet gives every pod
	tokenFile      = accountDir + "/token"
)

// kubeDir is in Infra.
const kubeDir = "/var/lib/etcd/kube"

// Kube is the real kube-apiserver of a lab, with the controller that gives nodes their podCIDRs. It runs in Infra; its
// data is gone with the lab. Its Client and Config are the administrator's, from outside of the lab's namespaces.
type Kube struct {
	*cluster.Cluster // once it is ready for the first time
	lab              *Lab
	proc             *machine.Process
	manifest         []*unstructured.Unstructured
}

func (o Options) kubeBinary() string { return filepath.Join(o.BinDir, "kube") }

// Endpoint is the URL by which nodes reach it.
func (k *Kube) Endpoint() string { return "https://" + k.addr().String() }

func (k *Kube) addr() netip.AddrPort {
	return netip.AddrPortFrom(address(!k.lab.opts.Family.Has4(), 0, 1).Addr(), 6443)
}

// Dial opens a connection to it from outside of the lab.
func (k *Kube) Dial(ctx context.Context) (net.Conn, error) {
	return k.lab.Infra.Dial(ctx, "tcp", k.addr().String())
}

// Start starts it after Kill, on the data that it had, and waits until it answers.
func (k *Kube) Start(ctx context.Context) error {
	if err := k.launch(); err != nil {
		return err
	}
	return k.ready(ctx)
}

func (k *Kube) launch() (err error) {
	var networks []string
	if k.lab.opts.Family.Has4() {
		networks = append(networks, Network4)
	}
	if k.lab.opts.Family.Has6() {
		networks = append(networks, Network6)
	}
	// It tells by this file that it is ready.
	err = k.lab.Infra.Do(func() error { return os.RemoveAll(filepath.Join(kubeDir, "admin.kubeconfig")) })
	if err != nil {
		return err
	}
	cmd := exec.Command(k.lab.opts.kubeBinary(), "-dir="+kubeDir, "-listen="+k.addr().String(), "-cluster-cidr="+strings.Join(networks, ","))
	cmd.Args = append(cmd.Args, k.lab.opts.KubeArgs...)
	k.proc, err = machine.StartProcess(k.lab.Infra, cmd, "kube.log")
	return err
}

func (k *Kube) ready(ctx context.Context) error {
	var text []byte
	_, err := machine.Until(ctx, machine.Longest, func(context.Context) (err error) {
		if !k.proc.Running() {
			return machine.Fatal(fmt.Errorf("kube ended: %s", machine.LastLine(k.proc.Log())))
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
	config.Dial, config.QPS = k.lab.Infra.Dial, -1
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
	return k.Apply(ctx, false, k.manifest...)
}

// Object is one of the manifest's, by its kind.
func (k *Kube) Object(kind string) (*unstructured.Unstructured, error) {
	for _, o := range k.manifest {
		if o.GetKind() == kind {
			return o, nil
		}
	}
	return nil, fmt.Errorf("there is no %s in %s", kind, k.lab.opts.Manifest)
}

// PodEnv is the environment that every pod of the cluster has, by which it finds the API server.
func (k *Kube) PodEnv() []string {
	return []string{"KUBERNETES_SERVICE_HOST=" + k.addr().Addr().String(), fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", k.addr().Port())}
}

// register makes every node of the lab a node of the cluster.
func (k *Kube) register(ctx context.Context) error {
	for _, n := range k.lab.Nodes {
		if err := k.Register(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// Register makes a node of the lab one of the cluster: with a Node, its podCIDRs, and a token of flannel's service
// account that is bound to it. After Unregister its podCIDRs may be others.
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
	kubeconfig, err := k.Kubeconfig("", n.path(tokenFile))
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

// Unregister deletes a node from the cluster, with the pod that its token is bound to.
func (k *Kube) Unregister(ctx context.Context, n *Node) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	return errors.Join(k.Client.CoreV1().Nodes().Delete(ctx, n.Name, now),
		k.Client.CoreV1().Pods(cluster.Namespace).Delete(ctx, cluster.FlannelPod(n.Name), now))
}

func (k *Kube) setConfig(json string) error {
	var errs []error
	for _, n := range k.lab.Nodes {
		errs = append(errs, n.WriteFile(netConfFile, json))
	}
	return errors.Join(errs...)
}

// leases are the podCIDRs and flannel's annotations of each node, as JSON.
func (k *Kube) leases(ctx context.Context) (map[string]string, error) {
	nodes, err := k.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, n := range nodes.Items {
		maps.DeleteFunc(n.Annotations, func(key, _ string) bool { return !strings.HasPrefix(key, "flannel.alpha.coreos.com/") })
		text, err := json.Marshal(n.Annotations)
		if err != nil {
			return nil, err
		}
		all[n.Name+" "+strings.Join(n.Spec.PodCIDRs, " ")] = string(text)
	}
	return all, nil
}

// AuditLog is what flannel asked it for, a JSON object on each line. It takes KubeArgs -audit.
func (k *Kube) AuditLog() (string, error) {
	text, err := k.lab.Infra.ReadFile(filepath.Join(kubeDir, "audit.log"))
	return string(text), err
}

// Kill ends it as a crash would. There is no Stop: an orderly end would wait for every watch.
func (k *Kube) Kill() error {
	_, err := k.proc.Stop(context.Background(), syscall.SIGKILL)
	return err
}

// Pause makes it deaf with its connections open.
func (k *Kube) Pause() error { return k.proc.Signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (k *Kube) Resume() error { return k.proc.Signal(syscall.SIGCONT) }

// Log is what it has written so far.
func (k *Kube) Log() string { return k.proc.Log() }

func (k *Kube) close() error {
	if k.proc == nil {
		return nil
	}
	return k.Kill()
}
