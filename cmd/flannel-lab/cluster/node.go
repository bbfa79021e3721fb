package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// Node is a node of the cluster. It outlives its machine: a boot makes another Machine
// with the same name and disk.
type Node struct {
	*machine.Machine // of the last boot
	Name             string
	IP4, IP6         netip.Addr // one of them is invalid without Options.Dual

	cluster  *Cluster
	host     int                         // last number of its underlay addresses, see lab.Underlay.Address
	services map[string]*machine.Process // those started since the last boot, by name; one that has ended stays
}

func nodeName(i int) string { return fmt.Sprintf("node%d", i+1) }

// newNode creates the node with index i, connects it, and starts containerd.
func (c *Cluster) newNode(i int) (*Node, error) {
	n := &Node{Name: nodeName(i), cluster: c, host: 11 + i}
	u := c.opts.underlay()
	if u.Family.Has4() {
		n.IP4 = u.Address(false, 0, n.host).Addr()
	}
	if u.Family.Has6() {
		n.IP6 = u.Address(true, 0, n.host).Addr()
	}
	if err := n.installPlugins(); err != nil {
		return nil, err
	}
	return n, n.boot() // n also after an error, for Close
}

// installPlugins copies the CNI plugins that a distribution's package would
// install to the node's disk: all but flannel, which the pod network brings.
func (n *Node) installPlugins() error {
	dir := filepath.Join(diskOf(n.Name), "opt", "cni", "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bridge", "host-local", "loopback", "portmap"} {
		program, err := os.ReadFile(filepath.Join(n.cluster.opts.BinDir, "cni", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), program, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// boot starts the machine, with its disk as it is, and containerd.
func (n *Node) boot() (err error) {
	n.services = map[string]*machine.Process{}
	if n.Machine, err = machine.Boot(n.Name, machine.InRole(roleJoin, n.Name, n.cluster.group)); err != nil {
		return err
	}
	u := n.cluster.opts.underlay()
	if err := n.cluster.Infra.Do(func() error { return u.Plug(n.Machine, 0, n.host) }); err != nil {
		return err
	}
	if err := n.Do(func() error { return u.Configure(0, n.host) }); err != nil {
		return err
	}
	if err := n.WriteFile("/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", firstValid(n.IP4, n.IP6), n.Name)); err != nil {
		return err
	}
	return n.StartService(context.Background(), Containerd) // which waits for machine.Longest at most
}

// Reboot turns the node off and on again: its processes, network and memory are
// gone, its disk is as it was.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.PowerOff(); err != nil {
		return err
	}
	return n.PowerOn(ctx)
}

// PowerOff turns the node off.
func (n *Node) PowerOff() error {
	if err := n.Machine.PowerOff(); err != nil {
		return err
	}
	return errors.Join(n.cluster.Infra.Do(func() error {
		link, err := netlink.LinkByName(n.Name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil // the kernel has deleted it with the node's end
		}
		if err != nil {
			return err
		}
		err = netlink.LinkDel(link)
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EINVAL) {
			err = nil // it has done so now
		}
		return err
	}), removeGroups(filepath.Join(n.cluster.group, n.Name)))
}

// PowerOn starts the node after PowerOff.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.boot(); err != nil {
		return err
	}
	return n.startKubernetes(ctx)
}

// The services of a node, in the order in which they start.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
	KubeProxy  = "kube-proxy"
)

// startKubernetes starts kubelet and kube-proxy, and does not wait.
func (n *Node) startKubernetes(ctx context.Context) error {
	return errors.Join(n.StartService(ctx, Kubelet), n.StartService(ctx, KubeProxy))
}

// StartService starts a service. It returns when containerd answers; for the
// others it does not wait.
func (n *Node) StartService(ctx context.Context, name string) error {
	if p := n.services[name]; p != nil && p.Running() {
		return fmt.Errorf("%s is already running on %s", name, n.Name)
	}
	command, err := n.configure(name)
	if err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	// The service moves itself into its control group: a shell does, and becomes the service.
	// The paths are those of cgroup v1 (a directory for each hierarchy) and v2.
	const enter = `for f in /sys/fs/cgroup/*/` + servicesGroup + `/cgroup.procs /sys/fs/cgroup/` + servicesGroup + `/cgroup.procs; do
	[ ! -e "$f" ] || echo $$ >"$f" || exit; done; exec "$@"`
	cmd := exec.Command("sh", append([]string{"-c", enter, name}, command...)...)
	cmd.Env = []string{"PATH=" + n.cluster.opts.file("") + ":" + os.Getenv("PATH"), "TMPDIR=/run"}
	p, err := machine.StartProcess(n.Machine, cmd, name+".log")
	if err != nil {
		return err
	}
	n.services[name] = p
	if name != Containerd {
		return nil
	}
	_, err = machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		if !p.Running() {
			return machine.Fatal(fmt.Errorf("containerd exited: %s", machine.LastLine(p.Log())))
		}
		_, err := n.Run(ctx, n.cluster.opts.file("ctr"), "version")
		return err
	})
	return err
}

// StopService ends a service with a signal, and waits until it has ended. StartService
// starts it again.
func (n *Node) StopService(ctx context.Context, name string, s syscall.Signal) error {
	p := n.services[name]
	if p == nil {
		return fmt.Errorf("%s is not running on %s", name, n.Name)
	}
	_, err := p.Stop(ctx, s)
	return err
}

// Log returns the log of a service since the node was turned on.
func (n *Node) Log(name string) string {
	if p := n.services[name]; p != nil {
		return p.Log()
	}
	return ""
}

// loadImages imports the images of this tree.
func (n *Node) loadImages(ctx context.Context) error {
	for _, name := range []string{"pod.tar", "flanneld.tar", "flanneld-nftables.tar"} {
		if err := n.Load(ctx, n.cluster.opts.file(name)); err != nil {
			return err
		}
	}
	return nil
}

// Load imports an archive of images into containerd. Further arguments are those
// of `ctr images import`.
func (n *Node) Load(ctx context.Context, file string, args ...string) error {
	_, err := n.Ctr(ctx, append(append([]string{"images", "import"}, args...), file)...)
	return err
}

// Ctr runs ctr, containerd's client, on the images and containers of kubelet, which are in
// containerd's namespace k8s.io.
func (n *Node) Ctr(ctx context.Context, args ...string) (string, error) {
	return n.Run(ctx, append([]string{n.cluster.opts.file("ctr"), "-n", "k8s.io"}, args...)...)
}

// addresses returns the node's addresses, separated by commas.
func (n *Node) addresses() string { return strings.ReplaceAll(lab.Join(n.IP4, n.IP6), " ", ",") }
