package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"flannel/pkg/flags"
	"flannel/pkg/health"
	"flannel/pkg/netconf"
)

const aboutNetConf = `Writes the network configuration of a Windows node that joins a cluster without the manifest: the file
--net-config-path. One that is there already counts, whatever it says; in what it differs from what is
asked for is told. It must say the same as the ConfigMap kube-flannel-cfg of the cluster.

  flanneld --kube-subnet-mgr [--net-config-path=FILE] net-conf [flags]
`

// netConfAnswer is what net-conf answers with --json.
type netConfAnswer struct {
	netconf.Written
	Problem string `json:"problem,omitempty"`
}

// makeNetConf is the command that writes the network configuration where there is none.
func makeNetConf(c *call) func(context.Context) int {
	var cluster []netip.Prefix
	mode := c.flags.String("network-mode", "overlay", "overlay (vxlan) or l2bridge (host-gw)")
	c.flags.Func("cluster-cidr", "pod `network`, one of each family at most (default 10.244.0.0/16)", flags.ListOf(&cluster, flags.ParseNetwork))
	c.jsonFlag("print one JSON document: path, result (written or kept), differs, problem")
	return func(context.Context) int {
		if !c.Kube.On || c.Kube.NetConfPath == "" {
			return c.refuse(errors.New("net-conf: the file is read with leases in Kubernetes alone: give --kube-subnet-mgr, before net-conf, and a --net-config-path that is not empty"))
		}
		if len(cluster) == 0 {
			cluster = anyNetwork
		}
		want, err := backends().Compose(*mode, cluster)
		if err != nil {
			return c.refuse(fmt.Errorf("net-conf: %w", err))
		}
		done, err := backends().Put(c.Kube.NetConfPath, want)
		if err != nil {
			err = fmt.Errorf("net-conf: %w", err)
			return c.answer(netConfAnswer{done, err.Error()}, "", err)
		}
		text := done.Path + ": " + done.Result
		if len(done.Differs) > 0 {
			text += ", and it counts, though it says something else than asked for:\n  " + strings.Join(done.Differs, "\n  ")
		}
		return c.answer(netConfAnswer{done, ""}, text, nil)
	}
}

// anyNetwork stands for the pod network where that is not known yet: of such a configuration only what the backend makes of
// the adapter counts.
var anyNetwork = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

// netConfName says which configuration an error is about.
func netConfName(o options) string {
	if o.Kube.On {
		return "the network configuration in " + o.Kube.NetConfPath
	}
	return "the network configuration in etcd, at " + o.Etcd.Prefix + "/config,"
}

// readNetConf is the raw configuration where the daemon would have it from. etcd is waited for until ctx ends.
func readNetConf(ctx context.Context, o options, log *slog.Logger) (raw []byte, err error) {
	if o.Kube.On {
		if raw, err = os.ReadFile(o.Kube.NetConfPath); err != nil {
			return nil, fmt.Errorf("read the network configuration: %w", err)
		}
		return raw, nil
	}
	m, err := newManager(ctx, o, &health.Status{}, log)
	if err != nil {
		return nil, err
	}
	defer m.Close() //nolint:errcheck // what is read is read
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	err = m.WatchConfig(ctx, func(found []byte) { raw = found; enough() })
	if raw != nil {
		return raw, nil
	}
	return nil, fmt.Errorf("no network configuration in etcd within the time (--kube-subnet-mgr is for that of Kubernetes): %w", errors.Join(err, ctx.Err()))
}
