package cluster

import (
	"context"
	_ "embed" // pods.yaml
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vishvananda/netlink"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
)

//go:embed pods.yaml
var podsManifest []byte

// Selectors of pods.
const (
	WebPods     = "app=web"
	FlannelPods = "app=flannel"
)

// Pod is a pod. Its Namespaces are those of its node except for the network, which is the
// pod's own unless the pod uses that of the node (hostNetwork): commands run in the pod's
// network with the node's files, not in its container.
type Pod struct {
	machine.Namespaces
	Name     string
	Node     *Node
	IP4, IP6 netip.Addr  // one of them may be invalid
	Object   *corev1.Pod // as Pods has read it
}

// IP returns an address of the pod, of the family that comes first.
func (p *Pod) IP() netip.Addr { return firstValid(p.IP4, p.IP6) }

// firstValid returns a, or b if a is invalid.
func firstValid(a, b netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return b
}

// ApplyPods creates a web server on each node and the Service web, and waits until
// they are ready.
func (c *Cluster) ApplyPods(ctx context.Context) error {
	objects, err := cluster.Objects(podsManifest)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, false, objects...); err != nil {
		return err
	}
	return c.PodsReady(ctx, metav1.NamespaceDefault, WebPods)
}

// until calls f until it returns nil, or an error made by machine.Fatal, for machine.Longest
// at most. The error is the last one of f.
func until(ctx context.Context, f func(context.Context) error) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		err := f(ctx)
		if err != nil {
			time.Sleep(50 * time.Millisecond) // the API server and the nodes have more important work
		}
		return err
	})
	return err
}

// Registered waits until the node's kubelet has registered it. It fails if kubelet
// has exited.
func (n *Node) Registered(ctx context.Context) error {
	return until(ctx, func(ctx context.Context) error {
		if p := n.services[Kubelet]; !p.Running() {
			return machine.Fatal(fmt.Errorf("kubelet of %s exited: %s", n.Name, machine.LastLine(p.Log())))
		}
		_, err := n.Object(ctx)
		return err
	})
}

// Object returns the Node in the API.
func (n *Node) Object(ctx context.Context) (*corev1.Node, error) {
	return n.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
}

// NodesReady waits until all nodes are ready.
func (c *Cluster) NodesReady(ctx context.Context) error {
	for _, n := range c.Nodes {
		err := until(ctx, func(ctx context.Context) error {
			object, err := n.Object(ctx)
			if err != nil {
				return err
			}
			for _, condition := range object.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
					return fmt.Errorf("%s is not ready: %s", n.Name, condition.Message)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// PodsReady waits until each node has a pod that matches the selector, and all of
// them are ready.
func (c *Cluster) PodsReady(ctx context.Context, namespace, selector string) error {
	return until(ctx, func(ctx context.Context) error {
		list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		on := map[string]bool{}
		for _, p := range list.Items {
			if why := unready(&p); why != "" {
				return fmt.Errorf("%s on %s: %s", p.Name, p.Spec.NodeName, why)
			}
			on[p.Spec.NodeName] = true // a ready pod is on some node
		}
		if len(on) < len(c.Nodes) {
			return fmt.Errorf("pods %s are on %d of %d nodes", selector, len(on), len(c.Nodes))
		}
		return nil
	})
}

// unready says why a pod is not ready; "": it is.
func unready(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "is being deleted"
	}
	// Before the condition, because a container that waits has a reason to show.
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			return s.Name + ": " + w.Reason + " " + w.Message
		}
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "is not ready"
}

// Pods returns the pods that match the selector, in the order of their nodes, without those
// that are being deleted. It fails if one has no network namespace (yet).
func (c *Cluster) Pods(ctx context.Context, namespace, selector string) (pods []*Pod, err error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		for _, object := range list.Items {
			if object.Spec.NodeName != n.Name || object.DeletionTimestamp != nil {
				continue
			}
			p := &Pod{Name: object.Name, Node: n, Object: &object}
			for _, ip := range object.Status.PodIPs {
				if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() {
					p.IP4 = a
				} else if err == nil {
					p.IP6 = a
				}
			}
			if p.Namespaces, err = n.namespacesOf(object.Spec.HostNetwork, p.IP()); err != nil {
				return nil, fmt.Errorf("pod %s: %w", p.Name, err)
			}
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// namespacesOf returns the namespaces of a pod on the node. It finds the pod's network
// namespace by the pod's address, among those that containerd keeps in /run/netns.
func (n *Node) namespacesOf(hostNetwork bool, address netip.Addr) (ns machine.Namespaces, err error) {
	if hostNetwork {
		return n.Namespaces, nil
	}
	var files []string
	if err := n.Do(func() (err error) {
		files, err = filepath.Glob("/run/netns/cni-*")
		return err
	}); err != nil {
		return ns, err
	}
	for _, name := range files {
		var f *os.File
		if err := n.Do(func() (err error) {
			f, err = os.Open(name)
			return err
		}); err != nil {
			return ns, err
		}
		ns = n.WithNet(f)
		if has, err := hasAddress(ns, address); err == nil && has {
			return ns, nil
		}
		f.Close()
	}
	return ns, fmt.Errorf("no network namespace on %s has %s", n.Name, address)
}

// hasAddress reports whether a device in the namespaces has the address.
func hasAddress(ns machine.Namespaces, address netip.Addr) (has bool, err error) {
	err = ns.Do(func() error {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		has = slices.ContainsFunc(all, func(a netlink.Addr) bool {
			ip, ok := netip.AddrFromSlice(a.IP)
			return ok && ip.Unmap() == address
		})
		return err
	})
	return has, err
}

// ServiceIP returns the address of a Service in the namespace default.
func (c *Cluster) ServiceIP(ctx context.Context, name string) (netip.Addr, error) {
	s, err := c.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(s.Spec.ClusterIP)
}

// Daemon returns the PID of flanneld on the node, in the PID namespace of this
// process. The containers that install CNI files run the same program, but without
// --kube-subnet-mgr.
func (n *Node) Daemon() (pid int, err error) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.PID())) // flanneld uses the network of the node
	if err != nil {
		return 0, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range processes {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // the process may have ended
		net, _ := os.Readlink(filepath.Join(dir, "ns", "net"))
		if net == own && slices.Contains(strings.Split(string(command), "\x00"), "--kube-subnet-mgr") {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("flanneld is not running on %s", n.Name)
}

// KillDaemon sends flanneld on the node a signal that ends it, and waits until
// kubelet has started it again and it is ready.
func (n *Node) KillDaemon(ctx context.Context, s syscall.Signal) error {
	pid, err := n.Daemon()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, s); err != nil {
		return fmt.Errorf("end flanneld: %w", err)
	}
	if err := until(ctx, func(context.Context) error {
		now, err := n.Daemon()
		if err == nil && now == pid {
			return errors.New("flanneld has not ended")
		}
		return err
	}); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) error {
		code, body, err := n.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", lab.HealthPort)) // as in the manifest
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("flanneld on %s is not ready: %s", n.Name, body)
		}
		return err
	})
}

// Rebooted waits until a node that was turned on again is ready, and its pods are
// those of this boot: kubelet has started all of them again.
func (c *Cluster) Rebooted(ctx context.Context, n *Node) error {
	if err := until(ctx, func(ctx context.Context) error {
		id, err := n.ReadFile("/run/boot_id")
		if err != nil {
			return err
		}
		object, err := n.Object(ctx)
		if err == nil && object.Status.NodeInfo.BootID != strings.TrimSpace(string(id)) {
			err = fmt.Errorf("kubelet of %s has not reported the new boot", n.Name)
		}
		return err
	}); err != nil {
		return err
	}
	if err := c.NodesReady(ctx); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) error {
		_, err := n.Daemon()
		if err != nil {
			return err
		}
		// Fails while a pod has the address of the former boot, which no network namespace has now.
		_, err = c.Pods(ctx, metav1.NamespaceDefault, WebPods)
		return err
	})
}
