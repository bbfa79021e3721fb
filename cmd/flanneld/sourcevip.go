package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"flannel/pkg/conf"
	"flannel/pkg/windows/node"
)

const aboutSourceVIP = `Reserves the source address of kube-proxy on a Windows overlay (its --source-vip), and publishes it in
source-vip.json in the directory of the subnet file. Once the file exists, the daemon maintains it: it
checks it at each start, and if the node has a new subnet, it reserves and publishes a new address.

The address is the first one of the node's subnet, starting at the second, that no pod has. It is
reserved for kube-proxy in the store of the CNI plugin host-local. An L2Bridge needs no source VIP; there
it reserves the address of the host's own endpoint, the second one of the subnet.

It also prints the flags that kube-proxy needs for this node's network and for the features of its HNS.
kube-proxy additionally needs --proxy-mode=kernelspace, --hostname-override and --kubeconfig.`

// podResults returns the directory in which the CNI library keeps the results of plugins
// by default.
func podResults() string { return systemPath("/var/lib/cni/results") }

// usualDataDir returns the default dataDir of host-local.
func usualDataDir() string { return systemPath("/var/lib/cni/networks") }

// vipAnswer is the JSON document of source-vip.
type vipAnswer struct {
	node.SourceVIP
	Released []string `json:"released,omitempty"`
	Problem  string   `json:"problem,omitempty"`
}

// sourceVIP is the command source-vip.
func sourceVIP(c *call) func(context.Context) int {
	var proxy node.KubeProxy
	dataDir := c.flags.String("data-dir", usualDataDir(), "host-local's dataDir as in the CNI configuration: the `directory` with a subdirectory for each network")
	limit := c.limitFlag("timeout", time.Minute, "how long to wait for the daemon to create the network")
	release := c.flags.Bool("release", false, "delete the reservation, its endpoint and the file, so that the daemon does not maintain it")
	c.flags.Func("kube-proxy-version", "kube-proxy's `version`, such as v1.33.1, or the output of its --version; default: a current version", func(text string) (err error) {
		proxy.Minor, err = node.ParseKubeMinor(text)
		return err
	})
	c.flags.Func("kube-proxy-feature-gates", "feature gates to set in kube-proxy, as `NAME=true,...`", func(text string) error {
		proxy.Gates = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	})
	c.flags.Func("cluster-cidr", "pod `network` for kube-proxy; default: as in the subnet file", conf.ListOf(&proxy.Cluster, conf.ParseNetwork))
	c.jsonFlag("print one JSON document: needed, dsr (whether HNS can do kube-proxy's --enable-dsr), sourceVIP, subnet, network, store, kubeProxyFlags, file, problem")
	return func(ctx context.Context) int {
		keeper, err := node.OpenVIP(c.SubnetFile, *dataDir, c.log)
		if err != nil {
			return c.fail(fmt.Errorf("source-vip: %w", err))
		}
		if *release { // the daemon may be stopped, so it is not waited for
			removed, err := keeper.Release(ctx, false)
			text := "there is no source VIP"
			if len(removed) > 0 {
				text = "removed " + strings.Join(removed, "\nremoved ")
			}
			return c.answer(vipAnswer{Released: removed, Problem: problem(err)}, text, err)
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		reserved, text, err := node.ReserveVIP(ctx, keeper, c.SubnetFile, proxy)
		if err != nil {
			err = fmt.Errorf("source-vip: %w", err)
		}
		if reserved.Warning != nil {
			c.log.Warn("could not do all for the source VIP", "error", reserved.Warning)
		}
		return c.answer(vipAnswer{SourceVIP: reserved, Problem: problem(err)}, text, err)
	}
}
