package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// switchNetwork holds an adapter's switch and never a pod: flanneld prepare and the usual scripts make it, and give it a
// subnet for form's sake, which may be one of the pod network.
const switchNetwork = "External"

// nothingLeft finds what outlives the scripts that made it: the file by which kube-proxy is given the address of a former
// subnet for ever, and the network of an earlier life, whose pods' packets go its way.
func nothingLeft(s Snapshot) Finding {
	ours, _, found := s.hns()
	if !s.Windows.Left.Known {
		return s.Windows.Left.missing()
	}
	left := slices.Clone(s.Windows.Left.Value)
	for _, n := range s.Windows.Networks.Value {
		if !found || n.Name == ours.Name || n.Name == switchNetwork || n.Type != hnsOverlay && n.Type != hnsBridge {
			continue
		}
		for _, p := range n.Subnets {
			if slices.ContainsFunc(s.podNetworks(), func(pods netip.Prefix) bool { return pods.Overlaps(p) }) {
				left = append(left, fmt.Sprintf("the HNS network %s with %s of the pod network", n.Name, p))
			}
		}
	}
	if len(left) > 0 {
		return warn("Delete the files, and take kube-proxy's address from flanneld source-vip; delete such a network (Remove-HnsNetwork), or name it by Backend.Name to keep it. Its pods must be made anew.",
			"%s", several(left))
	}
	return ok("nothing is seen")
}

// backWithin is how long Windows and flanneld may take to give an adapter back what it had.
const backWithin = 2 * time.Minute

// allBack goes by what flanneld wrote down before the switch came: address, static or by DHCP, routes with their
// metrics, that to the cloud's metadata among them, and DNS servers.
func allBack(s Snapshot) Finding {
	if !s.Windows.Lost.Known {
		return s.Windows.Lost.missing()
	}
	l := s.Windows.Lost.Value
	const fix = "flanneld puts it back: start it if it does not run, and see its log for why it cannot; else set it by hand on the vEthernet adapter."
	switch {
	case l.Since.IsZero():
		return ok("nothing is waited for")
	case len(l.What) == 0:
		return ok("all that was written down of %s is there", l.Adapter)
	case s.At.Sub(l.Since) < backWithin:
		return warn(fix, "on %s is still to come: %s", l.Adapter, several(l.What))
	}
	return fail(fix, "%s lost, and has not got back since %s: %s", l.Adapter, l.Since.UTC().Format("2006-01-02 15:04:05Z"), several(l.What))
}
