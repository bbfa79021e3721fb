// Package winnode is what a Windows node needs before, and beside, the daemon's own work: the virtual switch of its adapter,
// kube-proxy's source VIP, and what its CNI configuration must say.
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

// Network is the HNS network that a configuration's backend wants on a Windows node.
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
	return dataplane.Device{}, errors.New("its backend makes no HNS network; Windows has vxlan and host-gw")
}

// Underlay is daemon.Underlay.
type Underlay interface {
	Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error)
	Changes() <-chan struct{}
}

// Prepare asks the backend, as the daemon would, for its network on the underlay, and has that made as a switch alone. What
// it waits for is told.
func Prepare(ctx context.Context, o system.Options, config subnet.Config, maker backend.Maker, choice Underlay, told func(error)) (dataplane.Prepared, error) {
	link, err := awaitUnderlay(ctx, choice, config, told)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	dev, err := Network(maker, backend.Node{OS: runtime.GOOS, Underlay: link, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return dataplane.Prepared{}, err
	}
	return system.Prepare(ctx, o, dataplane.SwitchFor(dev), told)
}

// awaitUnderlay waits for an adapter that the node can be reached by: at boot it may not be up yet.
func awaitUnderlay(ctx context.Context, choice Underlay, config subnet.Config, told func(error)) (underlay.Link, error) {
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
			return underlay.Link{}, fmt.Errorf("%s: %w", gaveUp(ctx), err)
		case <-choice.Changes():
		case <-time.After(time.Second):
		}
	}
}

// gaveUp says how a wait has ended: by its own time, or by a signal.
func gaveUp(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return "gave up"
}
