package daemon

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"flannel/subnet"
)

// redialed is a Manager that counts how often its connections are dropped.
type redialed struct {
	plainManager
	times int
}

func (r *redialed) Redial() { r.times++ }

// Connections to the store are dropped when our address is another, and only then.
func TestRedialsFromAnotherAddress(t *testing.T) {
	d, u, _ := newDaemon(t)
	m := &redialed{}
	d.Manager = m
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	l := d.newLoop(n, in)
	for _, step := range []struct {
		name   string
		change func()
		times  int
	}{
		{"nothing", func() {}, 0},
		{"MTU", func() { u.link.MTU = 1400 }, 0},
		{"another address", func() { u.link.V4 = netip.MustParseAddr("192.168.0.2") }, 1},
		{"another interface", func() { u.link.Index = 7 }, 2},
		{"nothing again", func() {}, 2},
	} {
		step.change()
		if err := l.reconfigured(t, true); err != nil || m.times != step.times {
			t.Errorf("%s: dialled anew %d times (%v), want %d", step.name, m.times, err, step.times)
		}
	}
}

// addressed is a Manager in which an operator sets this node's address.
type addressed struct {
	plainManager
	public  subnet.PublicIPs
	changed chan struct{}
}

func (a *addressed) PublicIPs(context.Context) (subnet.PublicIPs, error) { return a.public, nil }
func (a *addressed) PublicIPsChanged() <-chan struct{}                   { return a.changed }

// What an operator sets in the store counts from before the underlay is chosen first, and wakes the loop. The lease is
// published again even if it stays the same.
func TestFollowsTheOperator(t *testing.T) {
	d, _, _ := newDaemon(t)
	m := &addressed{changed: make(chan struct{}, 1), public: subnet.PublicIPs{V4: netip.MustParseAddr("203.0.113.1")}}
	d.Manager, d.Dataplane, d.Firewall = m, countedKernel{}, noFirewall{}
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	if got := n.lease.V4.PublicIP; got != m.public.V4 {
		t.Errorf("joins as %s", got)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	<-in.changed
	l := d.newLoop(n, in)
	for _, want := range []string{"203.0.113.2", "192.168.0.1"} {
		if m.public = (subnet.PublicIPs{}); want != "192.168.0.1" {
			m.public.V4 = netip.MustParseAddr(want)
		}
		m.changed <- struct{}{}
		l.wait(t.Context(), time.Time{})
		if err := l.reconfigured(t, false); err != nil || n.lease.V4.PublicIP.String() != want {
			t.Errorf("follows to %s (%v), want %s", n.lease.V4.PublicIP, err, want)
		}
	}
	for _, overwritten := range []bool{true, false} {
		in.desired, in.published = &n.lease, &n.lease
		m.public.Overwritten4 = overwritten
		if err := l.reconfigured(t, true); err != nil {
			t.Fatal(err)
		}
		if published, _ := in.requestPublish(n.lease); published {
			t.Errorf("overwritten: %t, and the lease is not published again", overwritten)
		}
	}
}

func (a *addressed) SetJudge(subnet.Judge) {}

// Acquire returns the lease as a run before this one has published it.
func (a *addressed) Acquire(context.Context, subnet.Config, subnet.Lease) (subnet.Lease, error) {
	return subnet.Lease{Backend: "one", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: netip.MustParseAddr("192.168.0.1")}}, nil
}

// A lease that the store has already is published again if an operator overwrites its address: the overwrite may be newer
// than the lease.
func TestPublishesUnderAnOverwrittenAddress(t *testing.T) {
	for _, operator := range []subnet.PublicIPs{{}, {Overwritten4: true}, {Overwritten6: true}} {
		d, _, _ := newDaemon(t)
		d.Manager, d.Dataplane, d.Settings.SubnetFile = &addressed{public: operator}, countedKernel{}, t.TempDir()+"/subnet.env"
		in := newInbox()
		in.setConfig([]byte("one 10.5.0.0/16"))
		l := d.newLoop(d.join(t.Context(), in), in)
		_ = l.only(t, l.newPass(), "publish")
		if l := in.unpublished(); (l != nil) != (operator != subnet.PublicIPs{}) {
			t.Errorf("with %+v, the lease to publish is %v", operator, l)
		}
	}
}
