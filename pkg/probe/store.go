package probe

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/subnet/etcd"
	"flannel/subnet/kube"
)

// Store is the store of leases.
type Store struct {
	SubnetFile string        // determines the socket of the daemon, which is asked for its store
	Etcd       etcd.Options  // used if Kube is nil
	Kube       *kube.Options // nil: the leases are in etcd
}

// Read reads the Cluster from the store. If the daemon uses another store,
// nothing is read.
func (s Store) Read(ctx context.Context) doctor.Cluster {
	store := "etcd"
	if s.Kube != nil {
		store = "kubernetes"
	}
	// With flags for the wrong store, everything would look missing. If no daemon
	// answers, the flags count.
	r, err := status.Ask(ctx, status.Socket(s.SubnetFile))
	if err == nil && r.Store != store {
		return unknownCluster(fmt.Sprintf("the daemon's leases are in %s: give the doctor no flags, "+
			"or the daemon's", r.Store))
	}
	return s.Examine(ctx)
}

// Examine is Read for the daemon itself, which does not ask itself for its store.
func (s Store) Examine(ctx context.Context) doctor.Cluster {
	if s.Kube == nil {
		const absent = "etcd does not have it, only the Kubernetes API"
		return doctor.Cluster{Ahead: known(etcd.Ahead(ctx, s.Etcd)), PodCIDRs: doctor.Absent[[]string](absent),
			WindowsNodes: doctor.Absent[[]string](absent), Proxy: doctor.Absent[string](absent),
			Services: doctor.Absent[[]netip.Prefix](absent)}
	}
	proxy := known(kube.Proxy(*s.Kube)) // needs no answer of the API server
	e, err := kube.Examine(ctx, *s.Kube)
	if err != nil {
		c := unknownCluster(err.Error())
		if c.Proxy = proxy; kube.Unreachable(err) { // it did not answer, or something else did
			c.Unreachable = err.Error()
		}
		return c
	}
	c := doctor.Cluster{Node: e.Node, Ahead: doctor.Known(e.Ahead), PodCIDRs: doctor.Known(e.PodCIDRs),
		WindowsNodes: doctor.Known(e.Windows), Proxy: proxy}
	if runtime.GOOS == "windows" { // on Linux no check needs them, and flannel's role does not permit reading them
		c.Services = known(kube.ServiceNetworks(ctx, *s.Kube))
	}
	return c
}

// known returns a known Fact. If err is not nil, the Fact is unknown, and v is the part that
// was read.
func known[T any](v T, err error) doctor.Fact[T] {
	if err != nil {
		return doctor.Fact[T]{Value: v, WhyNot: err.Error()}
	}
	return doctor.Known(v)
}

// unknownCluster returns a Cluster without any facts.
func unknownCluster(why string) doctor.Cluster {
	return doctor.Cluster{Ahead: doctor.Unknown[time.Duration](why), PodCIDRs: doctor.Unknown[[]string](why),
		WindowsNodes: doctor.Unknown[[]string](why), Proxy: doctor.Unknown[string](why),
		Services: doctor.Unknown[[]netip.Prefix](why)}
}
