package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
)

// Options configure a cluster. Each field's comment ends with its default, which
// its zero value stands for.
type Options struct {
	Nodes     int    // number of nodes, at most 50; 2
	Dual      bool   // IPv4 and IPv6; IPv4 alone
	IPv6Only  bool   // IPv6 alone, for nodes, pods and Services; IPv4 alone
	ProxyMode string // of kube-proxy: iptables or nftables; iptables
	BinDir    string // directory of the programs, which has kube, cni/ and cluster/; see lab.BinDir
}

// Cluster is a running cluster. The embedded Cluster has the client of its administrator, for
// this process: its connections begin in the network namespace of Infra.
type Cluster struct {
	*cluster.Cluster // nil until Ready has returned for the first time
	Nodes            []*Node
	// Infra is the machine around the nodes, with the bridge, the router and the
	// control plane.
	Infra *machine.Machine

	opts     Options
	group    string                      // name of the control groups
	lock     *os.File                    // of the control groups: see mountGroups; nil before, and after Close
	tokens   map[string]string           // of the programs, by their user: see makeTokens
	ca       []byte                      // certificate of the authority that signed the API server's; set by Ready
	services map[string]*machine.Process // programs of the control plane, by name
}

// New starts a cluster, and returns when all nodes have registered. They are not
// ready before a pod network is installed. The process must have called Init.
// The caller must call Close.
func New(ctx context.Context, o Options) (*Cluster, error) {
	if !machine.Inside() {
		return nil, errors.New("cluster.Init was not called: the cluster would change the host's own network")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, services: map[string]*machine.Process{}}
	if err := c.build(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// complete sets defaults and checks for the programs.
func (o *Options) complete() (err error) {
	if o.BinDir == "" {
		if o.BinDir, err = lab.BinDir(); err != nil {
			return err
		}
	}
	o.Nodes, o.ProxyMode = cmp.Or(o.Nodes, 2), cmp.Or(o.ProxyMode, "iptables")
	if o.Dual && o.IPv6Only {
		return errors.New("IPv4 and IPv6, or IPv6 alone: both were requested")
	}
	if o.Nodes > 50 {
		return fmt.Errorf("%d nodes: one machine has room for 50", o.Nodes)
	}
	lab.SetPath(o.BinDir)
	var missing []string
	for _, name := range []string{"kube", "kubectl", "cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap", "cluster/containerd",
		"cluster/containerd-shim-runc-v2", "cluster/ctr", runc, "cluster/flanneld.tar", "cluster/flanneld-nftables.tar", "cluster/pod.tar"} {
		if _, err := os.Stat(filepath.Join(o.BinDir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return fmt.Errorf("missing in %s: %s: run 'make cluster'", o.BinDir, strings.Join(missing, ", "))
	}
	return nil
}

// runc is a path below BinDir, in a package of Debian that is unpacked there.
const runc = "runc/usr/sbin/runc"

// file returns the path of a program or an image that is for clusters only.
func (o Options) file(name string) string { return filepath.Join(o.BinDir, "cluster", name) }

// kubernetes returns a command of a program of Kubernetes. bin/kube contains all
// of them.
func (o Options) kubernetes(program string, args ...string) []string {
	return append([]string{filepath.Join(o.BinDir, "kube"), program}, args...)
}

func (o Options) underlay() lab.Underlay {
	return lab.Underlay{Family: o.family(), Subnets: 1, MTU: 1500}
}

func (o Options) family() lab.Family {
	switch {
	case o.IPv6Only:
		return lab.V6
	case o.Dual:
		return lab.Dual
	}
	return lab.V4
}

// build starts everything. The API server starts while the nodes boot and load their
// images; kubelet and kube-proxy start when it is ready. After an error, Close ends what
// was started.
func (c *Cluster) build(ctx context.Context) (err error) {
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil { // base: see cgroups.go
		return fmt.Errorf("mount %s: %w", base, err)
	}
	if c.lock, err = mountGroups(); err != nil {
		return err
	}
	c.group = filepath.Base(c.lock.Name())
	if c.Infra, err = machine.New("infra"); err != nil {
		return err
	}
	if err := c.Infra.Do(c.opts.underlay().Create); err != nil {
		return err
	}
	if err := c.makeTokens(); err != nil { // before the API server, which reads them when it starts
		return err
	}
	if err := c.StartAPIServer(); err != nil {
		return err
	}
	c.Nodes = make([]*Node, c.opts.Nodes)
	for i := range c.Nodes {
		if c.Nodes[i], err = c.newNode(i); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := c.Ready(gctx); err != nil {
			return err
		}
		return c.startControllers()
	})
	for _, n := range c.Nodes {
		g.Go(func() error { return n.loadImages(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.startKubernetes(ctx); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := n.Registered(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close kills every process of the cluster, and removes its control groups. A second call
// does no harm, but returns an error.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		if n != nil && n.Machine != nil {
			errs = append(errs, n.Machine.PowerOff())
		}
	}
	if c.Infra != nil {
		errs = append(errs, c.Infra.PowerOff())
	}
	if c.lock != nil {
		errs = append(errs, removeGroups(c.group), c.lock.Close())
		c.lock = nil
	}
	return errors.Join(errs...)
}

// Sweep removes the control groups of clusters that were killed, without starting a cluster.
// mountGroups removes them, and creates a group for a new cluster, which Sweep removes, too.
// The process must have called Init.
func Sweep() error {
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", base, err)
	}
	group, err := mountGroups()
	if err != nil {
		return err
	}
	defer group.Close()
	return removeGroups(filepath.Base(group.Name()))
}

// Node returns the node with that name.
func (c *Cluster) Node(name string) (*Node, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no node %q: the nodes are node1 to node%d", name, len(c.Nodes))
}
