package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/plan"
	"flannel/pkg/rollout"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// node is what the loop knows: the configuration in force, where we are, and what follows from both.
type node struct {
	config  subnet.Config
	maker   backend.Maker
	refused error // why the only configuration that there was cannot work
	link    underlay.Link
	addrs   []netip.Addr // the node's own
	backend backend.Backend
	lease   subnet.Lease // as described last
	plan    *plan.Plan
	former  []netip.Prefix // networks that the subnet file remembers, other than the configuration's
	warned  []string       // what the backend had to say of the configuration

	readdressed map[string]bool // devices that take the MAC address that the backend derives, whatever they had
	duplicate   string          // the lease that has our MAC address before us, where we cannot take another; "": none

	underlayMoved bool // the underlay may be another; look again
	links         dataplane.Links
	known         bool // the peers are
	peers         []*subnet.Lease
	valid         int
	rejects       []subnet.Rejected
	pending       string            // what the configuration that was offered last waits for; "": it is in force
	behind        []subnet.Rejected // peers of which the system refuses an entry
	windows       string            // a node that runs Windows; "": none is known
	retained      []*subnet.Retained
	ownWithdrawn  bool              // the store lacks our own lease, which is about to be put back
	judged        bool              // what the system had at the start
	orphans       []*dataplane.Path // retained without a lease; a slice that is never written to again
	orphansUntil  time.Time
	report        reported
}

var (
	errNoPeers      = errors.New("the set of peers is not complete yet")
	errNotPublished = errors.New("the others do not know yet how to reach this node")
)

// reconfigure follows the underlay and the configuration. What cannot work is refused, and the last good state kept.
func (d *Daemon) reconfigure(ctx context.Context, n *node, in *inbox) error {
	err := d.followUnderlay(ctx, n)
	raw, fresh := in.newConfig()
	switch {
	case fresh && d.Settings.KeepConfig:
		d.Log.Info("the network configuration changed; it takes effect when flanneld is restarted (--config-follow=false)", "cause", causeConfigKept)
	case fresh:
		if err := d.followConfig(n, raw); err != nil {
			d.Log.Error("refused the changed network configuration; the last good one stays in force", "cause", causeConfigRefused, "error", err)
			d.View.note("config", fmt.Errorf("refused the changed network configuration: %w", err))
			if d.adoption.rollout.State() == rollout.Waiting { // for what the store no longer offers
				d.withdraw()
			}
		}
	}
	return errors.Join(err, d.roll(ctx, n, in))
}

func (d *Daemon) followUnderlay(ctx context.Context, n *node) error {
	if !n.underlayMoved {
		return nil
	}
	link, addrs, err := d.chooseUnderlay(ctx, n)
	if err != nil {
		return err
	}
	n.addrs, n.underlayMoved = addrs, false
	next := *n
	if link.Equal(n.link) {
		return nil
	}
	next.link = link
	if err := d.build(&next); err != nil {
		return err
	}
	d.Log.Info("the underlay changed", "cause", causeUnderlayChanged, "to", link, "what", link.Since(n.link))
	if r, ok := d.Manager.(subnet.Redialer); ok && (link.Index != n.link.Index || link.V4 != n.link.V4 || link.V6 != n.link.V6) {
		r.Redial()
	}
	*n = next
	return nil
}

// chooseUnderlay chooses the interface to the other nodes, with regard to what an operator says in the store.
func (d *Daemon) chooseUnderlay(ctx context.Context, n *node) (underlay.Link, []netip.Addr, error) {
	var operator subnet.PublicIPs
	if a, ok := d.Manager.(subnet.Addresser); ok {
		var err error
		if operator, err = a.PublicIPs(ctx); err != nil {
			return underlay.Link{}, nil, err
		}
	}
	return d.Underlay.Choose(n.config.V4.On(), n.config.V6.On(), operator)
}

// publicIPsChanged is nil, which never receives, where an operator cannot say anything in the store.
func (d *Daemon) publicIPsChanged() <-chan struct{} {
	if a, ok := d.Manager.(subnet.Addresser); ok {
		return a.PublicIPsChanged()
	}
	return nil
}

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

// readConfig validates a raw configuration into n.
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

// build makes what follows from configuration, underlay and lease.
func (d *Daemon) build(n *node) error {
	n.config.Underlay = n.link.Prefixes()
	if err := n.config.CheckUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet); err != nil {
		return err
	}
	b, warnings, err := n.maker(backend.Node{OS: d.Settings.OS, Underlay: n.link, V4: n.config.V4.On(), V6: n.config.V6.On()})
	if err != nil {
		return err
	}
	warnings = append(warnings, n.config.InsideNetwork()...)
	if !slices.Equal(warnings, n.warned) { // a node that waits builds again and again
		for _, w := range warnings {
			d.Log.Warn("network configuration: "+w, "cause", causeConfigWarning)
		}
	}
	n.backend, n.warned = b, warnings
	n.lease.V4.PublicIP, n.lease.V6.PublicIP = netip.Addr{}, netip.Addr{}
	if n.config.V4.On() {
		n.lease.V4.PublicIP = n.link.PublicV4
	}
	if n.config.V6.On() {
		n.lease.V6.PublicIP = n.link.PublicV6
	}
	n.plan = plan.New(n.config, n.lease, b)
	return nil
}

// describe has the lease published if the devices make it another.
func (d *Daemon) describe(n *node, in *inbox, links dataplane.Links) error {
	described, err := n.backend.Describe(n.lease, links)
	if err != nil {
		return err
	}
	described = withMark(described, d.adoption.rollout.Mark())
	if !n.lease.Equal(&described) {
		n.lease, n.plan = described, plan.New(n.config, described, n.backend)
	}
	seen, refused := in.tell(described)
	switch {
	case refused != nil:
		return fmt.Errorf("publish the lease: %w", refused)
	case !seen:
		return errNotPublished
	}
	return nil
}

func (n *node) networks() []netip.Prefix {
	var on []netip.Prefix
	for _, net := range []subnet.Network{n.config.V4, n.config.V6} {
		if net.On() {
			on = append(on, net.Prefix)
		}
	}
	return on
}

// state is what the dataplane shall hold; with keep it deletes nothing.
func (n *node) state(paths []*dataplane.Path, s Settings, keep bool) dataplane.State {
	state := dataplane.State{Networks: n.networks(), Former: n.former, Unrouted: len(n.backend.Devices(n.lease)) == 0, Paths: paths, Keep: keep}
	if s.BlackholeOwn {
		for _, e := range n.lease.Endpoints() {
			state.Blackholes = append(state.Blackholes, e.Subnet)
		}
	}
	return state
}

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

func (d *Daemon) writeEnv(n *node) error {
	changed, err := subnet.WriteEnv(d.Settings.SubnetFile, subnet.Env{
		V4Network: n.config.V4.Prefix, V4Subnet: n.lease.V4.Subnet,
		V6Network: n.config.V6.Prefix, V6Subnet: n.lease.V6.Subnet,
		MTU: n.backend.MTU(), IPMasq: d.Settings.IPMasq,
	})
	if changed {
		d.Log.Info("wrote the subnet file", "path", d.Settings.SubnetFile, "mtu", n.backend.MTU())
	}
	return err
}
