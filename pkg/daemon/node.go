package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/backend"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// node is the state of the loop. Only the loop uses it; view keeps copies of
// it. The zero node has not joined.
//
// A change of configuration or underlay is tried on a copy: next := *n, change
// it, build it, and only then *n = next. If one of these steps fails, the node
// in force stays as it was. The copy is shallow, therefore slices and maps of a
// node are replaced and not modified. The exceptions are identity.readdressed, to
// which devices are only added while a lease lasts, and plan, which build replaces.
type node struct {
	// The inputs, and what build makes of them.
	config    subnet.Config // in force
	maker     backend.Maker // of config; nil: no configuration was valid yet
	configErr error         // why the configuration is invalid; only before joining
	host      host
	former    former
	backend   backend.Backend
	lease     subnet.Lease // this node's, as updateLease has set it last
	plan      *plan.Plan
	judged    *plan.Plan // whose rules the lease manager has

	identity identity
	last     outcome
	logged   logState
}

// host is what the loop knows about the machine.
type host struct {
	link     underlay.Link
	addrs    []netip.Addr // of this node, sorted
	operator subnet.PublicIPs
	stale    bool // link and addrs must be chosen again
}

// former is what the subnet file names of earlier runs.
type former struct {
	networks []netip.Prefix // in the subnet file, but not in the configuration
	v4, v6   []netip.Prefix // this node's last subnets, for the subnet file and the pods' bridge
}

// outcome has the results of the last pass. A part that could not read something, or that
// waits, leaves those of an earlier pass.
type outcome struct {
	links         dataplane.Links
	rulesChanged  int             // of the firewall
	peersKnown    bool            // peers is complete
	peers         []*subnet.Lease // with the rejected ones
	validPeers    int             // those with paths
	rejects       []subnet.Rejected
	twins         []string          // the leases with this node's public IP; all of them are rejected
	refused       []subnet.Rejected // peers for which the operating system refused an entry
	pendingConfig string            // why the latest configuration is not in force; "": it is
	configRefused bool              // it is pendingConfig, and not waiting or being tried
	windows       string            // the name of a node that runs Windows; "": none is known
	retained      []*subnet.Retained
	ownWithdrawn  bool // the store lacks this node's lease, which is about to be restored
	orphansKnown  bool // see type orphans
	orphans       []*dataplane.Path
	orphansUntil  time.Time
}

var (
	errNoPeers      = errors.New("waiting for the complete set of peers")
	errNotPublished = errors.New("this node's lease is not published yet")
)

// reconfigure applies changes of the underlay and of the configuration. If a
// new configuration is invalid, the one in force stays.
func (d *Daemon) reconfigure(ctx context.Context, n *node, in *inbox) error {
	err := d.followUnderlay(ctx, n, in)
	raw, unread := in.takeConfig()
	switch {
	case unread && d.Settings.KeepConfig:
		d.Log.Info("network configuration changed, will take effect at the next start of flanneld (--config-follow=false)", "cause", causeConfigKept)
		_, _, _, err := d.Parse(raw)
		if d.adoption.refuse(err); err != nil {
			d.Log.Error("changed network configuration is invalid, flanneld would not start with it", "cause", causeConfigRefused, "error", err)
		}
	case unread:
		err := d.followConfig(n, raw)
		d.adoption.refuse(err)
		if err != nil {
			d.Log.Error("changed network configuration refused, keeping the former one", "cause", causeConfigRefused, "error", err)
			d.view.addError("config", fmt.Errorf("changed network configuration refused: %w", err))
			if d.adoption.rollout.State() == rollout.Waiting { // with a configuration that is no longer in the store
				d.withdraw(n.validConfig())
			}
		}
	}
	err = errors.Join(err, d.stepRollout(n, in))
	n.last.pendingConfig, n.last.configRefused = d.adoption.pendingReason()
	return err
}

// followConfig validates a new configuration, and puts it in force or has
// package rollout decide when.
func (d *Daemon) followConfig(n *node, raw []byte) error {
	next := *n
	if err := d.readConfig(&next, raw); err != nil {
		return err
	}
	if err := n.config.CanBecome(next.config); err != nil {
		return err
	}
	if err := d.build(&next); err != nil {
		return err
	}
	return d.offer(n, next)
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
	n.config, n.maker = config, maker
	return nil
}

// build makes the backend and the plan from configuration, underlay and lease,
// and sets the public IPs of the lease. If it fails, n may be changed in part;
// callers that need the state before pass a copy.
func (d *Daemon) build(n *node) error {
	n.config.Underlay = n.host.link.Prefixes()
	if err := n.config.CheckUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet); err != nil {
		return err
	}
	b, warnings, err := d.newBackend(n)
	if err != nil {
		return err
	}
	warnings = append(warnings, n.config.InsideNetwork()...)
	warnings = append(warnings, n.config.InsideUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet)...)
	if !slices.Equal(warnings, n.logged.warnings) { // join calls build with every retry
		for _, w := range warnings {
			d.Log.Warn("network configuration: "+w, "cause", causeConfigWarning)
		}
	}
	n.backend, n.logged.warnings = b, warnings
	n.lease.V4.PublicIP, n.lease.V6.PublicIP = netip.Addr{}, netip.Addr{}
	if n.config.V4.On() {
		n.lease.V4.PublicIP = n.host.link.PublicV4
	}
	if n.config.V6.On() {
		n.lease.V6.PublicIP = n.host.link.PublicV6
	}
	n.plan = plan.New(n.config, n.lease, b)
	return nil
}

// newBackend makes the backend for the configuration and the underlay of a node.
func (d *Daemon) newBackend(n *node) (b backend.Backend, warnings []string, err error) {
	sources, ignored := n.tunnelSources(d.Settings.TunnelSources)
	b, warnings, err = n.maker(backend.Node{Underlay: n.host.link, V4: n.config.V4.On(), V6: n.config.V6.On(), Sources: sources})
	return b, slices.Concat(warnings, ignored), err
}

// updateLease completes this node's lease with the data of the devices, such as
// their MAC addresses, and requests that it is published. It fails as long as
// the store does not have it.
func (d *Daemon) updateLease(n *node, in *inbox, links dataplane.Links) error {
	described, err := n.backend.Describe(n.lease, links)
	if err != nil {
		return err
	}
	described = withMark(described, d.adoption.rollout.Mark())
	// A plan compares peers with our own lease, so it starts anew with a changed one.
	if !n.lease.Equal(&described) {
		n.lease, n.plan = described, plan.New(n.config, described, n.backend)
	}
	published, err := in.requestPublish(described)
	switch {
	case err != nil:
		return fmt.Errorf("publish the lease: %w", err)
	case !published:
		return errNotPublished
	}
	return nil
}

// updateRules sets the addresses of this node in the plan, and has the lease manager validate leases by the rules of
// the plan.
func (d *Daemon) updateRules(n *node) {
	if changed := n.plan.SetAddrs(n.host.addrs); changed || n.judged != n.plan {
		n.judged = n.plan
		d.Manager.SetJudge(n.plan.Judge())
	}
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

// state returns the desired state of the dataplane. With keep, the dataplane
// deletes nothing.
func (n *node) state(paths []*dataplane.Path, s Settings, keep bool) dataplane.State {
	// A backend without devices (alloc) leaves routing to somebody else.
	state := dataplane.State{Networks: n.networks(), Former: n.former.networks,
		Unrouted: !n.backend.Wire().Paths, Paths: paths, Underlay: n.config.Underlay, Keep: keep}
	for _, e := range n.lease.Endpoints() {
		state.Subnets = append(state.Subnets, e.Subnet)
	}
	if s.BlackholeOwn {
		state.Blackholes = state.Subnets
	}
	if mode := cmp.Or(s.Guard, n.config.Guard); mode != subnet.GuardOff {
		state.Guard = &dataplane.Guard{Enforce: mode == subnet.GuardEnforce, Trial: n.config.GuardTrial, Sources: n.config.GuardSources}
	}
	return state
}

// firewall returns the desired configuration of the firewall.
func (n *node) firewall(s Settings) firewall.Config {
	c := firewall.Config{
		Writer:     firewall.IPTables,
		V4:         firewall.Family{Network: n.config.V4.Prefix, Subnet: n.lease.V4.Subnet},
		V6:         firewall.Family{Network: n.config.V6.Prefix, Subnet: n.lease.V6.Subnet},
		Masquerade: s.IPMasq, Forward: s.ForwardRules, RandomFully: s.RandomFully,
	}
	if n.config.NFTables {
		c.Writer = firewall.NFTables
	}
	return c
}

// leaveFormerSubnets frees the pods' bridge of the gateways of this node's former
// subnets, of the families in use.
func (d *Daemon) leaveFormerSubnets(n *node) error {
	var former []netip.Prefix
	if n.lease.V4.On() {
		former = append(former, n.former.v4...)
	}
	if n.lease.V6.On() {
		former = append(former, n.former.v6...)
	}
	return d.Dataplane.LeaveSubnets(former, d.Manager.NodeName())
}

// writeEnv writes the subnet file if its content differs, also after another process
// changed or deleted it.
func (d *Daemon) writeEnv(n *node) error {
	changed, err := subnet.WriteEnv(d.Settings.SubnetFile, subnet.Env{
		V4Network: n.config.V4.Prefix, V4Subnet: n.lease.V4.Subnet,
		V6Network: n.config.V6.Prefix, V6Subnet: n.lease.V6.Subnet,
		MTU: n.backend.MTU(), IPMasq: d.Settings.IPMasq,
		FormerV4: n.former.v4, FormerV6: n.former.v6,
	})
	if changed {
		d.Log.Info("wrote the subnet file", "path", d.Settings.SubnetFile, "mtu", n.backend.MTU())
	}
	return err
}
