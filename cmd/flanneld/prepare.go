package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/system"
	"flannel/pkg/winnode"
)

const aboutPrepare = `Takes the outage of a Windows node once, before anything depends on its network.

The first HNS network on an adapter binds a virtual switch to it: the host's address is away for 5 to
25 seconds, and every connection ends. prepare makes a network without pods, named External, that
holds the switch from then on, over reboots too, and waits until addresses, routes and DNS servers
are back, or puts them back. The daemon then makes its own network on that switch, without an outage.
It needs neither a lease nor the Kubernetes API. Where the adapter has a switch it only waits for the
addresses. flanneld cleanup takes External away. Do not run prepare beside a daemon that starts.

  flanneld [flags of the daemon, such as --iface] prepare [flags]
`

// prepared is what prepare answers with --json.
type prepared struct {
	dataplane.Prepared
	Problem string `json:"problem,omitempty"`
}

// prepare is the command that binds the adapter's switch.
func prepare(c *call) func(context.Context) int {
	mode := c.flags.String("network-mode", "", "overlay or l2bridge; default: what the network configuration's backend needs")
	limit := c.limitFlag("timeout", 5*time.Minute, "give up after this `time`, with the reason; run again, it goes on from there")
	c.jsonFlag("print one JSON document: adapter, network, whether it was made, interface, addresses, problem")
	return func(ctx context.Context) int {
		if runtime.GOOS != "windows" {
			return c.fail(errors.New("prepare: this is for Windows, where making a network takes the host's address away for a while; " + runtime.GOOS + " needs no such thing"))
		}
		var raw []byte
		if *mode != "" {
			var err error
			if raw, err = backends().Compose(*mode, anyNetwork); err != nil {
				return c.refuse(fmt.Errorf("prepare: %w", err))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		p, err := c.bindSwitch(ctx, raw)
		p.Addresses = append([]netip.Prefix{}, p.Addresses...) // in JSON a list, also where there is none
		if err != nil {
			err = fmt.Errorf("prepare: %w", err)
			return c.answer(prepared{p, err.Error()}, "", err)
		}
		has := "has had a virtual switch already"
		if p.Made {
			has = "has a virtual switch now"
		}
		return c.answer(prepared{p, ""}, fmt.Sprintf("%s %s, by the HNS network %s; the host's addresses %v are on %s", p.Adapter, has, p.Network, p.Addresses, p.Interface), nil)
	}
}

// bindSwitch has the switch made that the network configuration asks for: raw, or if that is empty the daemon's.
func (c *call) bindSwitch(ctx context.Context, raw []byte) (dataplane.Prepared, error) {
	var err error
	if len(raw) == 0 {
		if raw, err = readNetConf(ctx, c.options, c.log); err != nil {
			return dataplane.Prepared{}, fmt.Errorf("%w; or say --network-mode", err)
		}
	}
	config, maker, _, err := parseConfig(raw)
	if err != nil {
		return dataplane.Prepared{}, fmt.Errorf("%s cannot work: %w", netConfName(c.options), err)
	}
	choice, err := newUnderlay(ctx, c.Underlay)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	told := func(why error) { c.log.Info("preparing the adapter", "state", why) }
	return winnode.Prepare(ctx, system.Options{Log: c.log, StateDir: filepath.Dir(c.SubnetFile)}, config, maker, choice, told)
}
