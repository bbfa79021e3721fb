// Package node sets up what a Windows node needs besides the daemon's loop: the
// virtual switch of its adapter, kube-proxy's source VIP, the file with the network
// configuration, and the values in its CNI configuration.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// hnsNetwork returns the HNS network that the backend needs on a Windows node. maker makes
// the backend of the configuration for the node n. The backend is only asked for its devices,
// with the lease of a subnet that no node has.
func hnsNetwork(maker backend.Maker, n backend.Node) (dataplane.Device, error) {
	b, _, err := maker(n)
	if err != nil {
		return dataplane.Device{}, err
	}
	for _, dev := range b.Devices(subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("192.168.255.0/30")}}) {
		if _, ok := dataplane.NetworkOf(dev.Kind); ok {
			return dev, nil
		}
	}
	return dataplane.Device{}, errors.New("its backend does not use HNS; the backends for Windows are vxlan and host-gw")
}

// Underlay is the part of daemon.Underlay that Prepare needs.
type Underlay interface {
	// Choose chooses the adapter to the other nodes, for the families in use.
	Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error)
	// Changes receives a value when Choose may choose another one.
	Changes() <-chan struct{}
}

// Prepare makes the Windows Firewall accept the packets of an overlay, and returns the
// virtual switch (a Switch) for the network that the backend will create on the underlay.
// The caller creates the switch (windows.Prepare). Prepare waits for the underlay until ctx
// ends, and calls waiting with each new reason. The command prepare calls it.
func Prepare(
	ctx context.Context, log *slog.Logger, config subnet.Config, maker backend.Maker, interfaces Underlay, waiting func(error),
) (dataplane.Device, error) {
	var link underlay.Link
	// During boot, no adapter may be up yet.
	err := retry(ctx, time.Second, interfaces.Changes(), waiting, func() (err error) {
		link, _, err = interfaces.Choose(config.V4.On(), config.V6.On(), subnet.PublicIPs{}) // the store is not asked
		return err
	})
	if err != nil {
		return dataplane.Device{}, err
	}
	dev, err := hnsNetwork(maker, backend.Node{Underlay: link, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return dataplane.Device{}, err
	}
	allowVXLAN(ctx, log, dev, openFirewall)
	return dataplane.SwitchFor(dev), nil
}

// retry calls try until it succeeds or ctx ends: at every notification, and after each
// interval. It calls waiting with each new reason for which try fails.
func retry(
	ctx context.Context, interval time.Duration, notifications <-chan struct{}, waiting func(reason error), try func() error,
) error {
	r := reconcile.Runner{
		News:  []<-chan struct{}{notifications},
		Retry: reconcile.Backoff{First: interval},
		Work:  func(context.Context) (time.Duration, error) { return 0, try() },
		Tell: func(reason error) {
			if reason != nil {
				waiting(reason)
			}
		},
	}
	if err := r.Until(ctx); err != nil {
		ended := "gave up" // by the timeout
		if errors.Is(ctx.Err(), context.Canceled) {
			ended = "interrupted"
		}
		return fmt.Errorf("%s: %w", ended, err)
	}
	return nil
}
