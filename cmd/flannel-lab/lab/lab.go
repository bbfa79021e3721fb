// Package lab makes several nodes on one machine: network namespaces joined by a bridge, a real etcd, a flanneld in
// each node, and pods made by the real CNI plugins.
//
// All of it lives below one process in a PID namespace of its own (see Init). When that process ends, however it
// ends, the kernel ends everything else: no process, namespace, device or file is left, and the machine's own network
// has not been touched.
package lab

import (
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

// Options say what the lab shall be. The zero value of each is a sensible default.
type Options struct {
	Nodes   int // 3
	Windows int // how many of them, the last ones, are (simulated) Windows machines
	Subnets int // networks that the nodes are on in turn, joined by a router: 1 or 2; 1
	MTU     int // of the underlay, in bytes; 1500
	Family  Family

	BinDir   string   // where flanneld, etcd and cni/ are: bin/ of the repository, or where this program lies
	Flanneld string   // any flannel-compatible binary; BinDir/flanneld
	Kube     bool     // leases in Kubernetes: a real API server instead of etcd
	KubeArgs []string // further arguments for bin/kube
	Manifest string   // what is applied to it; Documentation/kube-flannel.yml beside BinDir
	Etcd     string   // any etcd; BinDir/etcd
	EtcdArgs []string // further arguments for etcd
	Prefix   string   // --etcd-prefix; /coreos.com/network
	Retain   int      // --retain-peers, in seconds; 0, since who tries things takes most peers away again and again
}

// Family says which addresses the underlay and the pods have.
type Family int

const (
	V4   Family = iota // IPv4 only
	Dual               // both
	V6                 // IPv6 only
)

// Has4 tells whether IPv4 is in use.
func (f Family) Has4() bool { return f != V6 }

// Has6 tells whether IPv6 is in use.
func (f Family) Has6() bool { return f != V4 }

// Lab is a running lab.
type Lab struct {
	Nodes []*Node
	// Infra is what is around the nodes: the bridges, etcd, the router, and Outside, a place that is neither node nor pod.
	Infra *machine.Machine
	Etcd  *Etcd // nil with Options.Kube
	Kube  *Kube // nil without
	opts  Options

	podsMu sync.Mutex // every node's pods
}

// roles are those that the program has beside machine's own.
var roles = machine.Roles{roleWindows: windowsMain}

// Init must be called first in main or TestMain: see machine.Init.
func Init() { machine.Init(roles) }

// Continue must be called first in a program that does not always call Init: see machine.Continue.
func Continue() { machine.Continue(roles) }

// Outside are addresses on the other side of the nodes' default route: what masquerading is for.
var (
	Outside4 = netip.MustParseAddr("203.0.113.1")
	Outside6 = netip.MustParseAddr("2001:db8:ffff::1")
)

// New makes the machines, their network, and starts etcd, or the API server with the nodes registered. No flanneld
// runs yet and there is no configuration.
// The process must have called Init. Close ends the lab.
func New(ctx context.Context, o Options) (*Lab, error) {
	if !machine.Inside() {
		return nil, errors.New("lab.Init was not called: the lab would touch the machine's own network")
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

func (l *Lab) build(ctx context.Context) (err error) {
	if l.Infra, err = machine.New("infra"); err != nil {
		return err
	}
	if err := l.Infra.Do(l.connectInfra); err != nil {
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
	if l.Kube != nil {
		if err := l.Kube.register(ctx); err != nil {
			return err
		}
	}
	return l.writeHosts()
}

// store is what holds the leases.
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

// Close ends every process of the lab; their namespaces, devices and files go with them.
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

// SetConfig writes the network configuration to etcd; with Options.Kube to the file on every node.
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

// The pod networks.
const (
	Network4 = "10.5.0.0/16"
	Network6 = "fd05::/48"
)

// Config is a network configuration for the lab's family: Network4, Network6, and the backend, a JSON object such as {"Type":"vxlan"}.
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

// Leases returns the keys (without the prefix) and values of the leases in etcd; with Options.Kube the nodes and their
// subnets and annotations.
func (l *Lab) Leases(ctx context.Context) (map[string]string, error) {
	if l.Kube != nil {
		return l.Kube.leases(ctx)
	}
	return l.Etcd.list(ctx, l.opts.Prefix+"/subnets/")
}

// Flanneld is the path of the binary that the nodes run.
func (l *Lab) Flanneld() string { return l.opts.Flanneld }

// Node returns the node of that name.
func (l *Lab) Node(name string) (*Node, error) {
	for _, n := range l.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q (nodes are node1 to node%d)", name, len(l.Nodes))
}

func (o *Options) complete() error {
	o.Nodes = max(o.Nodes, 0)
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Windows > o.Nodes || o.Windows > 0 && o.Family == V6 {
		return fmt.Errorf("%d Windows nodes of %d: there are not so many, or they have no IPv4", o.Windows, o.Nodes)
	}
	if o.Nodes > 200 {
		return fmt.Errorf("%d nodes: the lab's network has room for 200", o.Nodes)
	}
	o.Subnets = max(o.Subnets, 1)
	if o.Subnets > 2 {
		return fmt.Errorf("%d subnets: the lab has one or two", o.Subnets)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Prefix == "" {
		o.Prefix = "/coreos.com/network"
	}
	if o.BinDir == "" {
		dir, err := BinDir()
		if err != nil {
			return err
		}
		o.BinDir = dir
	}
	for _, b := range []struct {
		path *string
		name string
	}{{&o.Flanneld, "flanneld"}, {&o.Etcd, "etcd"}} {
		if *b.path == "" {
			*b.path = filepath.Join(o.BinDir, b.name)
		}
		abs, err := filepath.Abs(*b.path)
		if err != nil {
			return err
		}
		*b.path = abs
	}
	if o.Manifest == "" {
		o.Manifest = filepath.Join(o.BinDir, "..", "Documentation", "kube-flannel.yml")
	}
	return CheckTools(*o)
}

// BinDir finds the directory of the built programs: bin beside the go.mod of module flannel, at or above the working
// directory, or else the directory of the running program.
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
