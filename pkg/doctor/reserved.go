package doctor

import (
	"net/netip"
	"slices"
)

// addressesLeft finds reservations of host-local that leave no address for a new pod. They
// stay when pods end without a DEL of their network, such as when the runtime is killed, or
// the machine is. A pod has a port of the bridge, so that a reservation more than there
// are ports is of none. confCallsBridge keeps the check from nodes whose pods have none.
func addressesLeft(s Snapshot) Finding {
	const fix = "The names of the files in /var/lib/cni/networks/<network> are addresses; the first line of each is the container. Delete those of containers " +
		"that do not exist (crictl pods -q --no-trunc); after a boot, before the runtime starts, all. A runtime that calls CNI's GC does it itself."
	ports := 0
	for _, b := range s.bridges() {
		for _, d := range s.Linux.Devices.Value {
			if d.Master == b.Index {
				ports++
			}
		}
	}
	for _, subnet := range s.subnets() {
		bits := subnet.Addr().BitLen() - subnet.Bits()
		if bits > 16 { // nobody reserves that many
			continue
		}
		reserved := countIn(s.Linux.Reserved.Value, subnet)
		most := max(1<<bits-3, 0) // without the first one, the bridge's, and the last one
		dead := max(reserved-ports, 0)
		switch {
		case reserved < most && dead <= most/2:
		case dead > 0 && reserved >= most:
			return fail(fix, "all %d addresses of %s are reserved, and the pods' bridge has %d ports", most, subnet, ports)
		case reserved >= most:
			return fail("Give nodes larger subnets (SubnetLen, or the cluster's node CIDR mask), or place fewer pods on this one.",
				"all %d addresses of %s are in use", most, subnet)
		default:
			return warn(fix, "%d of %d addresses of %s are reserved, and the pods' bridge has %d ports", reserved, most, subnet, ports)
		}
	}
	return ok("%d are reserved, and the pods' bridge has %d ports", countIn(s.Linux.Reserved.Value, s.subnets()...), ports)
}

// countIn returns how many of the addresses are in one of the prefixes.
func countIn(addrs []netip.Addr, prefixes ...netip.Prefix) (n int) {
	for _, a := range addrs {
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			n++
		}
	}
	return n
}
