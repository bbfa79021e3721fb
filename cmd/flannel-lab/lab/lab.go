// Package lab runs several nodes on one machine: network namespaces joined by a
// bridge, a real etcd or kube-apiserver, a flanneld in each node, and pods that
// the real CNI plugins connect.
//
// Every process of the lab is a descendant of one process in a PID namespace of
// its own (see Init). When that process ends, for whatever reason, the kernel
// kills the others. With them go their namespaces, devices and files. The
// host's own network is never changed.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"flannel/cmd/flannel-lab/machine"
)

// Options configure a lab. Each field's comment ends with its default, which
// its zero value stands for.
type Options struct {
	Nodes   int // number of nodes, at most 200; 3
	Windows int // how many of them, counted from the last, are simulated Windows machines; 0
	Subnets int // underlay networks, 1 or 2: with 2, odd nodes are on one, even nodes on the other, and a router joins them; 1
	MTU     int // of the underlay, in bytes; 1500
	Family  Family

	BinDir   string   // directory of flanneld, etcd and cni/; see the function BinDir
	Flanneld string   // any flannel-compatible binary; BinDir/flanneld
	Kube     bool     // store leases in Kubernetes: run a real API server instead of etcd
	KubeArgs []string // further arguments for bin/kube
	Manifest string   // manifest that is applied to the API server; Documentation/kube-flannel.yml beside BinDir
	Etcd     string   // any etcd binary; BinDir/etcd
	EtcdArgs []string // further arguments for etcd
	Prefix   string   // --etcd-prefix; /coreos.com/network
	Retain   int      // --retain-peers, in seconds; 0, because experiments often remove most peers at once
}

// Family says which addresses the underlay and the pods have.
type Family int

const (
	V4   Family = iota // IPv4 only
	Dual               // IPv4 and IPv6
	V6                 // IPv6 only
)

// Has4 reports whether IPv4 is in use.
func (f Family) Has4() bool { return f != V6 }

// Has6 reports whether IPv6 is in use.
func (f Family) Has6() bool { return f != V4 }

// Lab is a running lab. Several goroutines may add and delete pods at once, and use
// the nodes: each node belongs to one of them.
type Lab struct {
	Nodes []*Node
	// Infra is the machine around the nodes. It holds the bridges, and is the
	// router between them. It runs etcd or the API server, and has the addresses
	// Outside4 and Outside6, which belong to neither a node nor a pod.
	Infra *machine.Machine
	Etcd  *Etcd // nil with Options.Kube
	Kube  *Kube // nil without Options.Kube
	opts  Options

	podsMu sync.Mutex // guards Node.pods of every node
}

// roles are the roles of this program beside those of package machine.
var roles = machine.Roles{roleWindows: windowsMain}

// Init must be called first in main or TestMain: see machine.Init.
func Init() { machine.Init(roles) }

// Continue must be called first in a program that does not always call Init:
// see machine.Continue.
func Continue() { machine.Continue(roles) }

// Outside4 and Outside6 are addresses of Infra that stand for a server outside of
// the cluster. Nodes reach them by their default route. The server has no route
// to pods, so flanneld must masquerade connections from pods to it.
var (
	Outside4 = netip.MustParseAddr("203.0.113.1")
	Outside6 = netip.MustParseAddr("2001:db8:ffff::1")
)

// New creates the machines and their network, and starts etcd, or the API
// server with the nodes registered. It starts no flanneld and writes no network
// configuration. The process must have called Init. The caller must call Close.
func New(ctx context.Context, o Options) (*Lab, error) {
	if !machine.Inside() {
		return nil, errors.New("lab.Init was not called: the lab would change the host's own network")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Lab{opts: o}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// build starts everything, the bridges first, because the server and the nodes are
// connected to them. After an error, Close ends what was started.
func (l *Lab) build(ctx context.Context) (err error) {
	if l.Infra, err = machine.New("infra"); err != nil {
		return err
	}
	if err := l.Infra.Do(l.underlay().Create); err != nil {
		return err
	}
	store := l.newStore()
	if err := store.launch(); err != nil {
		return err
	}
	l.Nodes = make([]*Node, l.opts.Nodes)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range l.Nodes {
		g.Go(func() (err error) {
			l.Nodes[i], err = l.newNode(gctx, i)
			return err
		})
	}
	g.Go(func() error { return store.ready(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	if l.Kube != nil { // needs both the nodes and an API server that is ready
		if err := l.Kube.register(ctx); err != nil {
			return err
		}
	}
	return l.writeHosts()
}

func (l *Lab) underlay() Underlay { return Underlay{l.opts.Family, l.opts.Subnets, l.opts.MTU} }

// store is the server that stores the leases: Etcd or Kube. launch starts its
// process, ready waits until it answers, and close kills it.
type store interface {
	launch() error
	ready(context.Context) error
	close() error
}

func (l *Lab) newStore() store {
	if l.opts.Kube {
		l.Kube = &Kube{lab: l}
		return l.Kube
	}
	l.Etcd = &Etcd{lab: l}
	return l.Etcd
}

// Close kills every process of the lab. Their namespaces, devices and files go
// with them.
func (l *Lab) Close() error {
	var errs []error
	if l.Etcd != nil {
		errs = append(errs, l.Etcd.close())
	}
	if l.Kube != nil {
		errs = append(errs, l.Kube.close())
	}
	for _, n := range l.Nodes {
		if n != nil {
			errs = append(errs, n.close())
		}
	}
	if l.Infra != nil {
		errs = append(errs, l.Infra.PowerOff())
	}
	return errors.Join(errs...)
}

// SetConfig writes the network configuration, a JSON object: to etcd, or with
// Options.Kube to the configuration file of every node.
func (l *Lab) SetConfig(ctx context.Context, json string) error {
	if l.Kube != nil {
		return l.Kube.setConfig(json)
	}
	c, err := l.Etcd.Client()
	if err != nil {
		return err
	}
	_, err = c.Put(ctx, l.opts.Prefix+"/config", json)
	return err
}

// Network4 and Network6 are the networks that pods get addresses from.
const (
	Network4 = "10.5.0.0/16"
	Network6 = "fd05::/48"
)

// Config returns a network configuration for the lab's address families.
// backend is the JSON object of its Backend, such as {"Type":"vxlan"}.
func (l *Lab) Config(backend string) string {
	var b strings.Builder
	b.WriteString("{")
	if l.opts.Family.Has4() {
		b.WriteString(`"Network":"` + Network4 + `",`)
	} else {
		b.WriteString(`"EnableIPv4":false,`)
	}
	if l.opts.Family.Has6() {
		b.WriteString(`"EnableIPv6":true,"IPv6Network":"` + Network6 + `",`)
	}
	return b.String() + `"Backend":` + backend + "}"
}

// Leases returns the leases: key (without the prefix) to value in etcd, or with
// Options.Kube node name and podCIDRs ("node1 10.5.0.0/24") to the JSON of the
// node's flannel annotations.
func (l *Lab) Leases(ctx context.Context) (map[string]string, error) {
	if l.Kube != nil {
		return l.Kube.leases(ctx)
	}
	return l.Etcd.list(ctx, l.opts.Prefix+"/subnets/")
}

// Flanneld returns the path of the binary that Linux nodes run.
func (l *Lab) Flanneld() string { return l.opts.Flanneld }

// Node returns the node with that name.
func (l *Lab) Node(name string) (*Node, error) {
	for _, n := range l.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no node %q: the nodes are node1 to node%d", name, len(l.Nodes))
}

// complete sets defaults, validates the options, and looks for the programs.
func (o *Options) complete() error {
	if o.Nodes <= 0 {
		o.Nodes = 3
	}
	if o.Windows > o.Nodes || o.Windows > 0 && o.Family == V6 {
		return fmt.Errorf("%d of %d nodes cannot be Windows nodes: too many, or the lab has no IPv4", o.Windows,
			o.Nodes)
	}
	if o.Nodes > 200 {
		return fmt.Errorf("%d nodes: the lab's network has room for 200", o.Nodes)
	}
	o.Subnets = max(o.Subnets, 1)
	if o.Subnets > 2 {
		return fmt.Errorf("%d subnets: the lab has one or two", o.Subnets)
	}
	o.MTU = cmp.Or(o.MTU, 1500)
	o.Prefix = cmp.Or(o.Prefix, "/coreos.com/network")
	if o.BinDir == "" {
		dir, err := BinDir()
		if err != nil {
			return err
		}
		o.BinDir = dir
	}
	for name, path := range map[string]*string{"flanneld": &o.Flanneld, "etcd": &o.Etcd} {
		abs, err := filepath.Abs(cmp.Or(*path, filepath.Join(o.BinDir, name)))
		if err != nil {
			return err
		}
		*path = abs
	}
	if o.Manifest == "" {
		o.Manifest = filepath.Join(o.BinDir, "..", "Documentation", "kube-flannel.yml")
	}
	return CheckTools(*o)
}

// BinDir returns the directory of the built programs: bin beside the go.mod of
// module flannel, which is searched for upwards from the working directory, or
// else the directory of the running program.
func BinDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		mod, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(mod), "module flannel\n") {
			return filepath.Join(dir, "bin"), nil
		}
	}
	exe, err := os.Executable()
	return filepath.Dir(exe), err
}
