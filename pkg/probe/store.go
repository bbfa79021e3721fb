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

// Store is where this node's leases are.
type Store struct {
	SubnetFile string        // by which the daemon is asked where its own are
	Etcd       etcd.Options  // used if Kube is nil
	Kube       *kube.Options // nil if they are in etcd
}

// Look asks the store for what only it knows.
func (s Store) Look(ctx context.Context) doctor.Cluster {
	mine := "etcd"
	if s.Kube != nil {
		mine = "kubernetes"
	}
	r, err := status.Ask(ctx, status.Socket(s.SubnetFile))
	if err == nil && r.Store != mine {
		return noCluster(fmt.Sprintf("the daemon's leases are in %s: give this command the daemon's flags, as in flanneld --kube-subnet-mgr doctor", r.Store))
	}
	if s.Kube == nil {
		c := noCluster("leases are in etcd, so only Kubernetes itself could tell")
		c.Ahead = fact(etcd.Ahead(ctx, s.Etcd))
		return c
	}
	proxy := fact(kube.Proxy(*s.Kube))
	e, err := kube.Examine(ctx, *s.Kube)
	if err != nil {
		c := noCluster(err.Error())
		if c.Proxy = proxy; kube.Unheard(err) {
			c.Unheard = err.Error()
		}
		return c
	}
	c := doctor.Cluster{Node: e.Node, Ahead: doctor.Known(e.Ahead), PodCIDRs: doctor.Known(e.PodCIDRs), WindowsNodes: doctor.Known(e.Windows), Proxy: proxy}
	if runtime.GOOS == "windows" { // on Linux no check needs them, and flannel's own rights do not reach that far
		c.Services = fact(kube.ServiceNetworks(ctx, *s.Kube))
	}
	return c
}

func fact[T any](v T, err error) doctor.Fact[T] {
	if err != nil {
		return doctor.Unknown[T](err.Error())
	}
	return doctor.Known(v)
}

func noCluster(why string) doctor.Cluster {
	return doctor.Cluster{Ahead: doctor.Unknown[time.Duration](why), PodCIDRs: doctor.Unknown[[]string](why), WindowsNodes: doctor.Unknown[[]string](why),
		Proxy: doctor.Unknown[string](why), Services: doctor.Unknown[[]netip.Prefix](why)}
}
