package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/file"
	"flannel/pkg/status"
	"flannel/pkg/windows/node"
	"flannel/subnet"
)

const aboutNetConf = `Writes the network configuration, the file --net-config-path, of a Windows node that joins a cluster
without the manifest. An existing file is kept, and its differences from the requested configuration are
printed. The configuration must be the same as in the cluster's ConfigMap kube-flannel-cfg.`

// netConfAnswer is the JSON document of net-conf.
type netConfAnswer struct {
	node.NetConfOutcome
	Problem string `json:"problem,omitempty"`
}

// makeNetConf is the command net-conf: it declares the flags, and what it returns runs when
// they are parsed.
func makeNetConf(c *call) func(context.Context) int {
	var cluster []netip.Prefix
	mode := c.flags.String("network-mode", "overlay", "overlay (vxlan) or l2bridge (host-gw)")
	c.flags.Func("cluster-cidr", "pod `network`, at most one per family (default 10.244.0.0/16)", conf.ListOf(&cluster, conf.ParseNetwork))
	c.jsonFlag("print one JSON document: path, result (written or kept), differs, problem")
	return func(context.Context) int {
		if !c.Kube.On || c.Kube.NetConfPath == "" {
			return c.reportUsage(errors.New("net-conf: the file is only used with leases in Kubernetes; give --kube-subnet-mgr before net-conf, and a --net-config-path that is not empty"))
		}
		if len(cluster) == 0 {
			cluster = anyNetwork
		}
		want, err := node.ComposeNetConf(*mode, cluster)
		if err != nil {
			return c.reportUsage(fmt.Errorf("net-conf: %w", err))
		}
		done, err := node.PutNetConf(c.Kube.NetConfPath, want)
		if err != nil {
			err = fmt.Errorf("net-conf: %w", err)
			// With --json, the document has the path and the problem; without, only stderr has the
			// error. The exit status is exitError.
			return c.answer(netConfAnswer{done, err.Error()}, "", err)
		}
		text := done.Path + ": " + done.Result
		if len(done.Differs) > 0 {
			text += ", although it differs from the requested configuration:\n  " + strings.Join(done.Differs, "\n  ")
		}
		return c.answer(netConfAnswer{done, ""}, text, nil)
	}
}

// anyNetwork is the default pod network. prepare also uses it as a placeholder,
// because the virtual switch does not depend on the pod network.
var anyNetwork = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

// netConfName names the network configuration in errors. The name in etcd is long, and ends
// its apposition with a comma: "the network configuration in etcd, at K, is invalid".
func netConfName(o options) string {
	if o.Kube.On {
		return "the network configuration in " + o.Kube.NetConfPath
	}
	return "the network configuration in etcd, at " + o.Etcd.Prefix + "/config,"
}

// parseConfig validates a raw network configuration for this node. It is the Parse of
// daemon.Daemon.
func (o *options) parseConfig(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	config, maker, warnings, err := backend.ParseConfig(runtime.GOOS, raw)
	config.Assigned = o.Kube.On
	return config, maker, warnings, err
}

// readNetConf reads the raw network configuration from where the daemon reads
// it, for the commands check-config, prepare, cni-conf and doctor --bundle. It
// waits for etcd, and for the key there, until ctx ends; every caller gives ctx a deadline.
func readNetConf(ctx context.Context, o options, log *slog.Logger) (raw []byte, err error) {
	if o.Kube.On {
		// An empty path is no file. A file of another owner is refused (file.UntrustedError).
		if raw, err = file.ReadTrusted(o.Kube.NetConfPath); err != nil {
			return nil, fmt.Errorf("read the network configuration: %w", err)
		}
		return raw, nil
	}
	board := &status.Board{}
	m, err := newManager(ctx, o, board, log) // with a user name, it logs in to etcd, until ctx ends
	if err != nil {
		return nil, err
	}
	defer m.Close() //nolint:errcheck // does not affect what was read
	// WatchConfig follows changes until its context ends, and then returns nil. The first
	// value cancels the context. The end of ctx does not: the outage of the store, which
	// says why there is no value, must be read first, because it ends with WatchConfig.
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan error, 1)
	found := false
	go func() {
		ended <- m.WatchConfig(watching, func(value []byte) { raw, found = value, true; cancel() }) // raw may be empty
	}()
	var why error
	select {
	case err = <-ended:
	case <-ctx.Done():
		why = m.ConfigMissing() // etcd has answered that there is no such key
		// newManager has added the outage to the board.
		if text := board.Now(status.OfStore).Outage; text != "" {
			why = errors.New(text)
		}
		cancel()
		err = <-ended
	}
	if found {
		return raw, nil
	}
	// Without a value, ctx has ended, or err is the permanent error of WatchConfig.
	return nil, fmt.Errorf("read the network configuration from etcd at %s (give --kube-subnet-mgr if it is in Kubernetes): %w",
		strings.Join(o.Etcd.Endpoints, ","), cmp.Or(why, err, fmt.Errorf("no answer in time: %w", ctx.Err())))
}
