package windows

import (
	"fmt"

	"flannel/pkg/windows/hns"
)

// unsuitableAdapter means that no virtual switch works on an adapter. Retrying does not help.
type unsuitableAdapter struct {
	adapter string
	reason  string
	fix     string
}

func (u *unsuitableAdapter) Error() string {
	return fmt.Sprintf("the adapter %s %s: %s", u.adapter, u.reason, u.fix)
}

// checkAdapter returns an *unsuitableAdapter if a virtual switch would take the host off the
// network, or HNS would refuse it after all (0x803b0006). It warns where reports disagree, and
// on a node on which flanneld has had a network before, which shows more than what the
// adapter looks like. An adapter that has a switch is not checked.
func (d *Driver) checkAdapter(dev device, want hns.Network, physical hns.Adapter) error {
	const another = "select another adapter with --iface"
	warn := func(text string) {
		d.warnOnce(causeAdapterKind, "the adapter may not take a virtual switch: "+text, "adapter", physical.Name)
	}
	refuse := func(reason, fix string) error {
		if len(d.hostConfig.Owned(dev.Switch)) > 0 {
			warn("it " + reason)
			return nil
		}
		return &unsuitableAdapter{physical.Name, reason, fix}
	}
	// The switch sends without the tag (calico#4678).
	if vlan := d.stack.VLAN(physical.GUID); vlan != 0 {
		return refuse(fmt.Sprintf("has the VlanID %d, which is lost behind a virtual switch", vlan),
			"set VlanID to 0 and let the hypervisor or the port of the switch tag the packets, or "+another)
	}
	switch {
	case physical.Kind == hns.Tunnel: // microsoft/SDN#532
		return refuse("is a VPN or another tunnel, on which HNS makes no network", another)
	case physical.Kind == hns.WiFi && want.Type == hns.L2Bridge: // hcsshim#1477
		return refuse("is a Wi-Fi adapter, on which HNS makes no L2Bridge", "use vxlan, or "+another)
	case physical.Kind == hns.WiFi:
		warn("it is a Wi-Fi adapter, and access points drop packets with other MAC addresses")
	case physical.Kind == hns.Team: // rke2#3515, rke2#3517, eryph#139
		warn("it is a team of adapters (LBFO), which Windows Server 2022 and later refuse; use Switch Embedded Teaming or one adapter of it")
	}
	return nil
}
