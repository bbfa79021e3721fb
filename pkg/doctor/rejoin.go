package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// switchNetwork is a network that flanneld prepare and common scripts create so
// that a vSwitch exists. It never has pods. Its subnet is a dummy, which may be
// in the pod network.
const switchNetwork = "External"

// noLeftovers finds what earlier scripts left: files from which kube-proxy gets
// a source VIP of a former subnet, and an HNS network with a subnet of the pod
// network, which receives packets that are for pods of flanneld's network.
func noLeftovers(s Snapshot) Finding {
	network, _, found := s.hns()
	leftovers := slices.Clone(s.Windows.LeftFiles.Value)
	for _, n := range s.Windows.Networks.Value {
		if !found || n.Name == network.Name || n.Name == switchNetwork || n.Type != hnsOverlay && n.Type != hnsBridge {
			continue
		}
		for _, p := range n.Subnets {
			if slices.ContainsFunc(s.podNetworks(), func(pods netip.Prefix) bool { return pods.Overlaps(p) }) {
				leftovers = append(leftovers, fmt.Sprintf("the HNS network %s with %s of the pod network", n.Name, p))
			}
		}
	}
	if len(leftovers) > 0 {
		return warn("Delete the files, and get kube-proxy's source VIP from flanneld source-vip. Delete the "+
			"network (Remove-HnsNetwork) and recreate its pods, or set Backend.Name to its name to use it.",
			"%s", several(leftovers))
	}
	return ok("none found")
}

// restoreTime is how long Windows and flanneld may take to restore an adapter's
// settings.
const restoreTime = 2 * time.Minute

// settingsRestored compares the host's settings with those that flanneld saved
// before it created the vSwitch: addresses (static or by DHCP), routes with
// their metrics, including the one to the cloud's metadata service, and DNS
// servers.
func settingsRestored(s Snapshot) Finding {
	l := s.Windows.Lost.Value
	const fix = "flanneld restores it: start flanneld if it does not run, and see in its log why it cannot. " +
		"Otherwise set it on the vEthernet adapter yourself."
	switch {
	case l.Since.IsZero():
		return ok("flanneld has saved no settings, or all were restored")
	case len(l.Settings) == 0:
		return ok("%s has all saved settings", l.Adapter)
	case s.At.Sub(l.Since) < restoreTime:
		return warn(fix, "%s does not have yet: %s", l.Adapter, several(l.Settings))
	}
	return fail(fix, "%s does not have, of what was saved at %s: %s", l.Adapter,
		utc(l.Since), several(l.Settings))
}
