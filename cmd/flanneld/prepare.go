package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/node"
)

const aboutPrepare = `Creates the virtual switch of a Windows node, before anything depends on the node's network.

The first HNS network on an adapter binds a virtual switch to it. During that, the host has no address
for 5 to 25 seconds, and all connections are closed. prepare creates a network without pods, named
External, which keeps the switch from then on, also over reboots. It waits until addresses, routes and
DNS servers are back, or restores them. The daemon can then create its own network on the same switch
without an outage. prepare needs neither a lease nor the Kubernetes API. If the adapter already has a
switch, it creates no network and waits for the addresses. If the host stays without addresses for two
minutes, it deletes flanneld's networks on the adapter again. For an overlay, it adds a Windows Firewall
rule for the overlay's UDP port. flanneld cleanup deletes External and the rule. Do not run prepare
while the daemon starts.`

// prepareAnswer is the JSON document of prepare.
type prepareAnswer struct {
	dataplane.Prepared
	Problem string `json:"problem,omitempty"`
}

// prepare is the command prepare: it declares the flags, and what it returns runs when they
// are parsed.
func prepare(c *call) func(context.Context) int {
	mode := c.flags.String("network-mode", "", "overlay or l2bridge; default: as the backend of the network configuration needs")
	limit := c.limitFlag("timeout", 5*time.Minute, "give up after this time; another run continues from there")
	c.jsonFlag("print one JSON document: adapter, network, whether it was created, interface, addresses, problem")
	return func(ctx context.Context) int {
		var netConf []byte // the network configuration; empty: the daemon's
		if *mode != "" {
			var err error
			if netConf, err = node.ComposeNetConf(*mode, anyNetwork); err != nil { // the switch does not depend on the network
				return c.reportUsage(fmt.Errorf("prepare: %w", err))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		done, err := c.bindSwitch(ctx, netConf)
		done.Addresses = append([]netip.Prefix{}, done.Addresses...) // in JSON an empty list instead of null
		if err != nil {
			err = fmt.Errorf("prepare: %w", err)
			return c.answer(prepareAnswer{done, err.Error()}, "", err)
		}
		has := "already had a virtual switch"
		if done.Made {
			has = "now has a virtual switch"
		}
		return c.answer(prepareAnswer{done, ""}, fmt.Sprintf("%s %s with HNS network %s; the host's addresses %v are on %s",
			done.Adapter, has, done.Network, done.Addresses, done.Interface), nil)
	}
}

// bindSwitch creates the switch for the network configuration raw. If raw is
// empty, it reads the daemon's configuration.
func (c *call) bindSwitch(ctx context.Context, raw []byte) (dataplane.Prepared, error) {
	var err error
	if len(raw) == 0 {
		if raw, err = readNetConf(ctx, c.options, c.log); err != nil {
			return dataplane.Prepared{}, fmt.Errorf("%w; or give --network-mode", err)
		}
	}
	config, maker, _, err := c.parseConfig(raw) // _: the daemon logs the warnings
	if err != nil {
		return dataplane.Prepared{}, fmt.Errorf("%s is invalid: %w", netConfName(c.options), err)
	}
	interfaces, err := newUnderlay(ctx, c.Underlay, c.log)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	onWaiting := func(why error) { c.log.Info("preparing the adapter", "state", why) }
	dev, err := node.Prepare(ctx, c.log, config, maker, interfaces, onWaiting) // dev: the switch that prepareSwitch creates
	if err != nil {
		return dataplane.Prepared{}, err
	}
	return prepareSwitch(ctx, dataplane.Options{Log: c.log, StateDir: filepath.Dir(c.SubnetFile)}, dev, onWaiting)
}
