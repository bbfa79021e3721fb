package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/underlay"
	"flannel/subnet"
)

// editedStore gives the node one subnet after the other, if it is in the network, and has a configuration that changes.
type editedStore struct {
	movingManager
	changed              func([]byte)
	inPublicIPs, inLease string // the configuration that arrives while the node waits in PublicIPs or Acquire, once; "": none
}

// arrive has a configuration arrive, once.
func (s *editedStore) arrive(config *string) {
	if *config != "" {
		s.changed([]byte(*config))
		*config = ""
	}
}

func (s *editedStore) PublicIPs(context.Context) (none subnet.PublicIPs, _ error) {
	s.arrive(&s.inPublicIPs)
	return none, nil
}

func (s *editedStore) Acquire(_ context.Context, c subnet.Config, _ subnet.Lease) (l subnet.Lease, _ error) {
	s.arrive(&s.inLease)
	if next := s.subnets[0]; !c.V4.Prefix.Contains(next.Addr()) {
		return l, fmt.Errorf("%s is not in %s", next, c.V4.Prefix)
	}
	s.acquired++
	l.V4.Subnet = s.subnets[0]
	return l, nil
}

// troubledUnderlay has trouble at the second choice, which ends before the third.
type troubledUnderlay struct {
	*fixedUnderlay
	trouble string // "underlay": there is none. "file": the subnet file cannot be read. "": nothing
	file    string // the subnet file
	chosen  int
}

func (u *troubledUnderlay) Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error) {
	u.chosen++
	u.err = nil
	switch {
	case u.trouble == "underlay" && u.chosen == 2:
		u.err = errors.New("no interface")
	case u.trouble == "file" && u.chosen == 2:
		u.err = os.Mkdir(u.file, 0o700)
	case u.trouble == "file" && u.chosen == 3:
		u.err = os.Remove(u.file)
	}
	return u.fixedUnderlay.Choose(v4, v6, operator)
}

// A node joins with the configuration that the store has when it gets its subnet: a running node would refuse another
// network. A change is no failure, even if the subnet is not in the former network. If the node cannot join with the latest
// configuration, it joins with the one before, and the loop refuses the latest. It waits for the end of a failure that is
// not one of the configuration.
func TestConfigurationChangesWhileJoining(t *testing.T) {
	const former, wider = "10.5.0.0/16", "10.4.0.0/14"
	for _, c := range []struct {
		inPublicIPs, inLease string
		subnet, network      string
		acquired             int
		refused              bool
		trouble              string // see troubledUnderlay
	}{
		{"one " + wider, "", "10.5.7.0/24", wider, 1, false, ""},
		{"one " + wider, "", "10.4.7.0/24", wider, 1, false, ""},
		{"", "one " + wider, "10.5.7.0/24", wider, 2, false, ""},
		{"", "one " + wider, "10.4.7.0/24", wider, 1, false, ""},
		{"invalid", "", "10.5.7.0/24", former, 1, true, ""},
		{"", "invalid", "10.5.7.0/24", former, 2, true, ""},
		{"impossible " + former, "", "10.5.7.0/24", former, 1, true, ""},
		{"", "impossible " + former, "10.5.7.0/24", former, 2, true, ""},
		{"one 10.6.0.0/16", "", "10.5.7.0/24", former, 1, true, ""}, // without the subnet
		{"invalid", "one " + wider, "10.5.7.0/24", wider, 2, false, ""},
		{"one " + wider, "", "10.5.7.0/24", wider, 1, false, "underlay"},
		{"one " + wider, "", "10.5.7.0/24", wider, 1, false, "file"},
		{"", "one " + wider, "10.5.7.0/24", wider, 2, false, "underlay"},
		{"", "one " + wider, "10.5.7.0/24", wider, 2, false, "file"},
		{"one 10.6.0.0/16", "", "10.5.7.0/24", former, 1, true, "underlay"}, // without the subnet, as is known later
	} {
		synctest.Test(t, func(t *testing.T) {
			d, u, log := newDaemon(t)
			in := newInbox()
			s := &editedStore{movingManager: movingManager{subnets: []netip.Prefix{netip.MustParsePrefix(c.subnet)}}, changed: in.setConfig,
				inPublicIPs: c.inPublicIPs, inLease: c.inLease}
			d.Manager, d.Settings.SubnetFile = s, t.TempDir()+"/subnet.env"
			d.Underlay = &troubledUnderlay{fixedUnderlay: u, trouble: c.trouble, file: d.Settings.SubnetFile}
			in.setConfig([]byte("one " + former))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			n := d.join(ctx, in)
			if n == nil || n.config.V4.Prefix.String() != c.network || n.lease.V4.Subnet != s.subnets[0] || s.acquired != c.acquired {
				t.Errorf("%+v: joined with %+v after %d leases\n%s", c, n, s.acquired, log)
				return
			}
			// Two in a row: that the first one is invalid is logged, since the node still waits.
			waited := c.inPublicIPs != "" && c.inLease != "" || c.trouble != ""
			if (log.Count("cause="+causeCannotStart)+log.Count("cause="+causeConfigRefused) > 0) != waited {
				t.Errorf("%+v:\n%s", c, log)
			}
			log.Reset()
			_ = d.newLoop(n, in).reconfigured(t, false)
			if (log.Count("cause="+causeConfigRefused) > 0) != c.refused || n.config.V4.Prefix.String() != c.network {
				t.Errorf("%+v: the loop has %s\n%s", c, n.config.V4.Prefix, log)
			}
		})
	}
}
