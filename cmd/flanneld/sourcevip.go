package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"flannel/pkg/flags"
	"flannel/pkg/sourcevip"
	"flannel/pkg/winnode"
)

const aboutSourceVIP = `Reserves the address from which Windows' kube-proxy sends on an overlay (its --source-vip), and
publishes it in source-vip.json beside the subnet file. Once it is there, the daemon keeps it: it looks
at each start, and when the node has got another subnet it reserves another and publishes that.

The address is the first of the node's subnet, from the second on, that no pod has, and it is reserved
in the store of the CNI plugin host-local as kube-proxy's. On an L2Bridge kube-proxy needs none.

It also says which flags kube-proxy needs for this node's network and for what its HNS can do. Whoever
starts kube-proxy adds --proxy-mode=kernelspace, --hostname-override and --kubeconfig.

  flanneld [--subnet-file=FILE] source-vip [flags]
`

// usualDataDir is host-local's own default.
func usualDataDir() string { return systemPath("/var/lib/cni/networks") }

// vipAnswer is what source-vip answers with --json.
type vipAnswer struct {
	winnode.SourceVIP
	Released []string `json:"released,omitempty"`
	Problem  string   `json:"problem,omitempty"`
}

// sourceVIP is the command that reserves, or releases, kube-proxy's source VIP, and tells kube-proxy's flags.
func sourceVIP(c *call) func(context.Context) int {
	var proxy sourcevip.Proxy
	dataDir := c.flags.String("data-dir", usualDataDir(), "host-local's dataDir, as the CNI configuration has it; the `directory` with one for each network")
	limit := c.limitFlag("timeout", time.Minute, "how long to wait for the daemon to make the `network`")
	release := c.flags.Bool("release", false, "end the reservation, its endpoint and the file; the daemon keeps none then")
	c.flags.Func("kube-proxy-version", "kube-proxy's `version`, such as v1.33.1, or as its --version says it; default: a current one", func(text string) (err error) {
		proxy.Minor, err = sourcevip.ParseMinor(text)
		return err
	})
	c.flags.Func("kube-proxy-feature-gates", "feature gates that kube-proxy shall have, as `NAME=true,...`", func(text string) error {
		proxy.Gates = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	})
	c.flags.Func("cluster-cidr", "pod `network` for kube-proxy; default: what the subnet file says", flags.ListOf(&proxy.Cluster, flags.ParseNetwork))
	c.jsonFlag("print one JSON document: needed, dsr (whether HNS can do kube-proxy's --enable-dsr), sourceVIP, subnet, network, store, kubeProxyFlags, file, problem")
	return func(ctx context.Context) int {
		if runtime.GOOS != "windows" {
			return c.fail(errors.New("source-vip: this is for Windows, whose kube-proxy wants an address of its own on an overlay; that of " + runtime.GOOS + " does not"))
		}
		k, err := winnode.OpenVIP(c.SubnetFile, *dataDir, c.log)
		if err != nil {
			return c.fail(fmt.Errorf("source-vip: %w", err))
		}
		if *release {
			removed, err := k.Release(ctx)
			text := "there is no source VIP"
			if len(removed) > 0 {
				text = "removed " + strings.Join(removed, "\nremoved ")
			}
			return c.answer(vipAnswer{Released: removed, Problem: problem(err)}, text, err)
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		told, text, err := winnode.ReserveVIP(ctx, k, c.SubnetFile, proxy)
		if err != nil {
			err = fmt.Errorf("source-vip: %w", err)
		}
		return c.answer(vipAnswer{SourceVIP: told, Problem: problem(err)}, text, err)
	}
}
