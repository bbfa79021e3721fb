package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

const prepareUsage = `Takes the outage of a Windows node once, before anything depends on its network.

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
func prepare(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	mode := flags.String("network-mode", "", "overlay or l2bridge; default: what the network configuration's backend needs")
	limit := limitFlag(&flags, "timeout", 5*time.Minute, "give up after this `time`, with the reason; run again, it goes on from there")
	asJSON := flags.Bool("json", false, "print one JSON document: adapter, network, whether it was made, interface, addresses, problem")
	if done, code := parseCommand(&flags, prepareUsage, o, stdout, stderr); done {
		return code
	}
	if runtime.GOOS != "windows" {
		err := errors.New("prepare: this is for Windows, where making a network takes the host's address away for a while; " + runtime.GOOS + " needs no such thing")
		return answer(stdout, stderr, *asJSON, failure{err.Error()}, "", err)
	}
	var raw []byte
	if *mode != "" {
		var err error
		if raw, err = composeNetConf(*mode, anyNetwork); err != nil {
			return refuse(o.Args, fmt.Errorf("prepare: %w", err), stdout, stderr)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	told := func(why error) { log.Info("preparing the adapter", "state", why) }
	p, err := bindSwitch(ctx, o, raw, log, told)
	p.Addresses = append([]netip.Prefix{}, p.Addresses...) // in JSON a list, also where there is none
	if err != nil {
		err = fmt.Errorf("prepare: %w", err)
		return answer(stdout, stderr, *asJSON, prepared{p, err.Error()}, "", err)
	}
	text := fmt.Sprintf("%s has had a virtual switch already, by the HNS network %s; the host's addresses %v are on %s", p.Adapter, p.Network, p.Addresses, p.Interface)
	if p.Made {
		text = fmt.Sprintf("%s has a virtual switch now, by the HNS network %s; the host's addresses %v are on %s", p.Adapter, p.Network, p.Addresses, p.Interface)
	}
	return answer(stdout, stderr, *asJSON, prepared{p, ""}, text, nil)
}

// anyNetwork stands for the pod network where that is not known yet: of such a configuration only what the backend makes of
// the adapter counts.
var anyNetwork = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

// bindSwitch asks the backend, as the daemon would, for its device on the underlay, and has that made as a switch alone.
func bindSwitch(ctx context.Context, o options, raw []byte, log *slog.Logger, told func(error)) (dataplane.Prepared, error) {
	var err error
	if len(raw) == 0 {
		if raw, err = readNetConf(ctx, o, log); err != nil {
			return dataplane.Prepared{}, fmt.Errorf("%w; or say --network-mode", err)
		}
	}
	config, maker, _, err := parseConfig(raw)
	if err != nil {
		return dataplane.Prepared{}, fmt.Errorf("%s cannot work: %w", netConfName(o), err)
	}
	link, err := awaitUnderlay(ctx, o.Underlay, config, told)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	dev, err := networkFor(maker, backend.Node{OS: runtime.GOOS, Underlay: link, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return dataplane.Prepared{}, err
	}
	return dataplane.Prepare(ctx, dataplane.Options{Log: log, StateDir: filepath.Dir(o.SubnetFile)}, dataplane.SwitchFor(dev), told)
}

// awaitUnderlay waits for an adapter that the node can be reached by: at boot it may not be up yet.
func awaitUnderlay(ctx context.Context, o underlay.Options, config subnet.Config, told func(error)) (underlay.Link, error) {
	choice, err := newUnderlay(ctx, o)
	if err != nil {
		return underlay.Link{}, err
	}
	said := ""
	for {
		link, _, err := choice.Choose(config.V4.On(), config.V6.On(), subnet.PublicIPs{})
		if err == nil {
			return link, nil
		}
		if err.Error() != said {
			told(err)
			said = err.Error()
		}
		select {
		case <-ctx.Done():
			return underlay.Link{}, fmt.Errorf("%s: %w", ended(ctx, "gave up"), err)
		case <-choice.Changes():
		case <-time.After(time.Second):
		}
	}
}
