// The checks in this file find what is left on a Windows node from before, and
// what it has lost. Their rows are in windows.go.

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	leftovers := slices.Clone(s.Windows.LeftFiles.Value)
	var missing Finding // without which no network can be compared; zero if there is none to compare
	for _, n := range s.otherNetworks() {
		if missing = firstReason(hnsNetworkExists(s), podNetworksKnown(s)); missing.Verdict != "" {
			break
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
	if missing = firstReason(leftFilesKnown(s), networksKnown(s), missing); missing.Verdict != "" {
		return missing
	}
	return ok("none found")
}

// restoreTime is how long Windows and flanneld may take to restore an adapter's
// settings: a choice, longer than DHCP usually takes.
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

// Categories of networks, as Get-NetConnectionProfile prints them.
const (
	publicNetwork = "Public"
	domainNetwork = "DomainAuthenticated"
)

// categoryRestored compares the category of the host's network with the one that
// flanneld saved before it created the vSwitch. A public network that is not
// being restored, and was restored before, is somebody's decision.
func categoryRestored(s Snapshot) Finding {
	c := s.Windows.Category.Value
	switch {
	case c.Saved == "":
		return ok("flanneld has saved none: the network was public, or flanneld created no vSwitch")
	case c.Now != publicNetwork, c.Done && c.Problem == "":
		return ok("the network of %s is %s", c.Adapter, c.Now)
	case c.Saved == domainNetwork:
		return warn("Only Windows can set it: see why it does not reach a domain controller.",
			"the network of %s is public and was %s: firewall rules for the domain, such as those of remote management, do not apply",
			c.Adapter, c.Saved)
	case !c.Done:
		return warn("flanneld restores it: start flanneld if it does not run.", "the network of %s is public and was %s", c.Adapter, c.Saved)
	}
	return warn(fmt.Sprintf("Run Set-NetConnectionProfile -InterfaceAlias %q -NetworkCategory %s. If that is refused, look at "+
		"the Network List Manager Policies of the group policy.", c.Adapter, c.Saved),
		"the network of %s is public and was %s: firewall rules for %s networks, such as those of remote management, do not apply: %s",
		c.Adapter, c.Saved, strings.ToLower(c.Saved), c.Problem)
}
