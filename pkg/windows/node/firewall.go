package node

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// Causes in the log.
const (
	causePortAllowed     = "vxlan-port-allowed"
	causeFirewallUnknown = "firewall-unknown"
)

// firewallLimit bounds the calls of the Windows Firewall, which takes milliseconds
// if it works.
const firewallLimit = 10 * time.Second

// openFirewall returns the Windows Firewall of this machine.
func openFirewall() (*hns.FirewallClient, error) {
	calls, err := hns.OpenFirewall()
	if err != nil {
		return nil, err
	}
	return hns.NewFirewallClient(calls, firewallLimit), nil
}

// allowVXLAN makes the Windows Firewall accept the packets of an overlay. Without
// the rule, other nodes do not reach this one's pods, but the node needs the rest of
// its network nevertheless: an error is logged.
func allowVXLAN(ctx context.Context, log *slog.Logger, dev dataplane.Device, open func() (*hns.FirewallClient, error)) {
	overlay, ok := dev.Kind.(dataplane.Overlay)
	if !ok {
		return
	}
	port := cmp.Or(overlay.Port, hns.DefaultVxlanPort)
	changed, err := false, error(nil)
	firewall, err := open()
	if err == nil {
		changed, err = firewall.AllowVXLAN(ctx, port)
	}
	switch {
	case err != nil:
		log.Warn("could not make the Windows Firewall accept packets of the overlay; if it is on, allow inbound UDP to this port", "cause", causeFirewallUnknown, "port", port, "error", err)
	case changed:
		log.Info("the Windows Firewall accepts packets of the overlay", "cause", causePortAllowed, "port", port, "rule", hns.VXLANRuleName)
	}
}

// RemoveFirewallRule removes the rule that Prepare added, and returns its
// description; with dryRun it removes nothing. A firewall that does not answer is
// logged: the rule accepts packets that nobody receives.
func RemoveFirewallRule(ctx context.Context, log *slog.Logger, dryRun bool) (removed []string) {
	return removeRule(ctx, log, dryRun, openFirewall)
}

// removeRule is RemoveFirewallRule for the firewall that open returns.
func removeRule(ctx context.Context, log *slog.Logger, dryRun bool, open func() (*hns.FirewallClient, error)) (removed []string) {
	firewall, err := open()
	exists := false
	if err == nil && dryRun {
		exists, err = firewall.HasVXLANRule(ctx)
	} else if err == nil {
		exists, err = firewall.RemoveVXLANRule(ctx)
	}
	if err != nil {
		log.Warn("could not remove flanneld's rule from the Windows Firewall", "cause", causeFirewallUnknown, "rule", hns.VXLANRuleName, "error", err)
	}
	if exists {
		removed = append(removed, "Windows Firewall rule "+hns.VXLANRuleName)
	}
	return removed
}
