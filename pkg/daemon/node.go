package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"flannel/backend"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// node is what is in force: configuration, underlay, lease, and what build makes of
// them. join fills a zero node; afterwards, only the loop uses the node.
//
// A change of configuration or underlay is tried on a copy: next := *n, change
// it, build it, and only then *n = next. If one of these steps fails, the node
// in force stays as it was. The copy is shallow: slices and maps of a node are
// replaced, and never modified. Only readdressed is shared by all copies.
type node struct {
	raw       []byte // what readConfig has read config from; for Settings.KeepConfig only, since activate does not set it
	config    subnet.Config
	maker     backend.Maker // makes backend for config; nil: no configuration was valid yet
	configErr error         // why the configuration is invalid; only before joining
	host      host
	former    former
	lease     subnet.Lease // this node's; each pass adds the data of the devices (updateLease)

	backend  backend.Backend
	plan     *plan.Plan // build and updateLease make one without peers; planPeers, later in the pass, gives it all leases
	warnings []string   // of build, as logged

	judged *plan.Plan // the plan by whose rules the lease manager validates leases (updateRules); nil: none yet
	// readdressed has the devices whose MAC address must become the one that the backend
	// derives from the subnet, or whose key must be replaced. acquire makes the map;
	// duplicates.resolve adds devices. None is removed before the daemon joins again.
	readdressed map[string]bool
}

// host is what the node knows about the machine. chooseUnderlay sets it.
type host struct {
	link     underlay.Link
	addrs    []netip.Addr     // of this node, sorted
	operator subnet.PublicIPs // which an operator has set in the store, and link has, too; zero: none
}

// former is what the subnet file names of earlier runs; formerOf makes it.
type former struct {
	networks []netip.Prefix // in the subnet file, but not in the configuration: the kernel may have our routes into them
	v4, v6   []netip.Prefix // this node's last subnets, for the subnet file and the pods' bridge
}

// readConfig validates a raw configuration and sets it in n.
func (d *Daemon) readConfig(n *node, raw []byte) error {
	config, maker, warnings, err := d.Parse(raw)
	for _, w := range warnings {
		d.Log.Warn("network configuration: "+w, "cause", causeConfigWarning)
	}
	if err != nil {
		return err
	}
	n.raw, n.config, n.maker = raw, config, maker
	return nil
}

// build makes the backend and the plan from configuration, underlay and lease,
// and sets the public IPs of the lease. If it fails, n may be changed in part;
// callers that need the state before pass a copy. The maker is not nil: prepare, which
// calls build first, looks for that.
func (d *Daemon) build(n *node) error {
	n.config.Underlay = n.host.link.Prefixes()
	// A subnet with an address of the underlay in it would cut this node off. Before Acquire, the subnets are zero and fit.
	if err := n.config.CheckUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet); err != nil {
		return err
	}
	b, warnings, err := d.newBackend(n)
	if err != nil {
		return err
	}
	n.lease.V4.PublicIP, n.lease.V6.PublicIP = netip.Addr{}, netip.Addr{}
	if n.config.V4.On() {
		n.lease.V4.PublicIP = n.host.link.PublicV4
	}
	if n.config.V6.On() {
		n.lease.V6.PublicIP = n.host.link.PublicV6
	}
	// An address of this node in the pod network; a subnet of this node in a network of the underlay.
	warnings = append(warnings, n.config.InsideNetwork()...)
	warnings = append(warnings, n.config.InsideUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet)...)
	for i := range warnings {
		warnings[i] = "network configuration: " + warnings[i]
	}
	warnings = append(warnings, n.uselessPublicIPs()...)
	for _, w := range warnings {
		if !slices.Contains(n.warnings, w) { // join calls build with every retry
			d.Log.Warn(w, "cause", causeConfigWarning)
		}
	}
	n.backend, n.warnings = b, warnings
	n.plan = plan.New(n.config, n.lease, b)
	return nil
}

// uselessPublicIPs returns a warning for each public IP of the lease with which peers reject this node, such as a
// link-local address of the interface. If an operator overwrites the public IP in the store, peers do not get it.
func (n *node) uselessPublicIPs() (warnings []string) {
	for _, family := range []struct {
		public      netip.Addr
		overwritten bool
		flag        string
	}{{n.lease.V4.PublicIP, n.host.operator.Overwritten4, "--public-ip"}, {n.lease.V6.PublicIP, n.host.operator.Overwritten6, "--public-ipv6"}} {
		if !family.public.IsValid() || family.overwritten {
			continue
		}
		if err := subnet.CheckNodeAddress(family.public); err != nil {
			warnings = append(warnings, fmt.Sprintf("public address %v, so nodes with flanneld reject this node; set %s to an address at which they reach it",
				err, family.flag))
		}
	}
	return warnings
}

// newBackend makes the backend for the configuration and the underlay of a node. The
// warnings are those of the maker, and about addresses of --tunnel-source. The error is the
// maker's: this node does not support the configuration.
func (d *Daemon) newBackend(n *node) (b backend.Backend, warnings []string, err error) {
	sources, sourceWarnings := n.tunnelSources(d.Settings.TunnelSources)
	b, warnings, err = n.maker(backend.Node{Underlay: n.host.link, V4: n.config.V4.On(), V6: n.config.V6.On(), Sources: sources})
	return b, slices.Concat(warnings, sourceWarnings), err
}

// networks returns the pod networks of the enabled families.
func (n *node) networks() (networks []netip.Prefix) {
	for _, network := range []subnet.Network{n.config.V4, n.config.V6} {
		if network.On() {
			networks = append(networks, network.Prefix)
		}
	}
	return networks
}
