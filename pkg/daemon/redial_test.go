package daemon

import (
	"net/netip"
	"testing"

	"flannel/subnet"
)

// redialed is a Manager that counts how often its connections are dropped.
type redialed struct {
	subnet.Manager
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
	if err := d.prepare(n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
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
		n.underlayMoved = true
		if err := d.reconfigure(t.Context(), n, in); err != nil || m.times != step.times {
			t.Errorf("%s: dialled anew %d times (%v), want %d", step.name, m.times, err, step.times)
		}
	}
}
