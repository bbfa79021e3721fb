// Package winnode sets up what a Windows node needs besides the daemon's loop: the
// virtual switch of its adapter, kube-proxy's source VIP, and the values in its CNI
// configuration.
package winnode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/system"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Network returns the HNS network that the backend needs on a Windows node.
func Network(maker backend.Maker, n backend.Node) (dataplane.Device, error) {
	b, _, err := maker(n)
	if err != nil {
		return dataplane.Device{}, err
	}
	for _, dev := range b.Devices(subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("192.168.255.0/30")}}) {
		if _, ok := dev.Kind.(dataplane.HNS); ok {
			return dev, nil
		}
	}
	return dataplane.Device{}, errors.New("its backend does not use HNS; the backends for Windows are vxlan and host-gw")
}

// Underlay is daemon.Underlay.
type Underlay interface {
	Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error)
	Changes() <-chan struct{}
}

// Prepare creates the virtual switch for the network that the backend will create on
// the underlay. It waits for the underlay, and calls waiting with each new reason.
func Prepare(ctx context.Context, o system.Options, config subnet.Config, maker backend.Maker, choice Underlay, waiting func(error)) (dataplane.Prepared, error) {
	link, err := awaitUnderlay(ctx, choice, config, waiting)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	dev, err := Network(maker, backend.Node{OS: runtime.GOOS, Underlay: link, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return dataplane.Prepared{}, err
	}
	return system.Prepare(ctx, o, dataplane.SwitchFor(dev), waiting)
}

// awaitUnderlay waits until an adapter can be chosen: during boot none may be up yet.
func awaitUnderlay(ctx context.Context, choice Underlay, config subnet.Config, waiting func(error)) (underlay.Link, error) {
	last := "" // reason
	for {
		link, _, err := choice.Choose(config.V4.On(), config.V6.On(), subnet.PublicIPs{})
		if err == nil {
			return link, nil
		}
		if err.Error() != last {
			waiting(err)
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return underlay.Link{}, fmt.Errorf("%s: %w", gaveUp(ctx), err)
		case <-choice.Changes():
		case <-time.After(time.Second):
		}
	}
}

// gaveUp describes how ctx ended: by its timeout or by a signal.
func gaveUp(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return "gave up"
}
