package firewall

import (
	"errors"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
	"flannel/pkg/linux/rtnetlink"
)

// Check asks for an Apply if another program has changed our rules, and only then, with and without notifications.
func TestCheck(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, c := range []struct {
			name, setup, damage, foreign string
			writer                       firewall.Writer
		}{
			{"nft", "true", "iptables-nft -t nat -F FLANNEL-POSTRTG", "iptables-nft -N OTHER", firewall.IPTables},
			{"nftables", "true", "nft flush chain ip flannel-ipv4 forward", "nft add table ip other", firewall.NFTables},
			{"legacy", "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", "iptables-legacy -D FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD",
				"iptables-legacy -t mangle -N OTHER", firewall.IPTables},
		} {
			sh(t, c.setup)
			f := open(t, time.Millisecond)
			if !f.Check() {
				t.Errorf("%s: before the first Apply, nothing has changed", c.name)
			}
			apply(t, f, both(c.writer))
			check := func() (changed bool) {
				time.Sleep(2 * time.Millisecond) // the resync is due
				return f.Check()
			}
			if !check() {
				t.Errorf("%s: what was written is not read once more", c.name)
			}
			apply(t, f, both(c.writer))
			sh(t, c.foreign)
			if check() {
				t.Errorf("%s: changed by another program's own rules", c.name)
			}
			sh(t, c.damage)
			if !check() {
				t.Errorf("%s: a change of our rules is not seen", c.name)
			}
			if n := apply(t, f, both(c.writer)); n == 0 {
				t.Errorf("%s: the change is not repaired", c.name)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if _, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil {
				t.Error(err)
			}
		}
	})
}

// While nothing changes in nf_tables, a check is cheap; whatever system call of a check fails, it hides no change.
func TestCheckWithFailedCalls(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		faults := nstest.NewFaults(t)
		for _, c := range []struct {
			writer firewall.Writer
			damage string
		}{{firewall.IPTables, "iptables-nft -t nat -F FLANNEL-POSTRTG"}, {firewall.NFTables, "nft flush chain ip flannel-ipv4 forward"}} {
			writer, damage := c.writer, c.damage
			f := open(t, time.Millisecond)
			check := func() (changed bool, calls int) {
				time.Sleep(2 * time.Millisecond) // the resync is due
				faults.Fail(0, 0)
				changed = f.Check()
				return changed, faults.Fail(0, 0)
			}
			settle := func() { // writes, and reads once more what was written
				for changed := true; changed; changed, _ = check() {
					apply(t, f, both(writer))
				}
			}
			settle()
			_, quiet := check()
			for range 10 { // a notification of what was written may come late, and costs a look
				if _, calls := check(); calls < quiet {
					quiet = calls
				}
			}
			sh(t, damage)
			changed, busy := check()
			if !changed || quiet == 0 || 3*quiet > busy {
				t.Errorf("%s: %d calls while nothing changes; after a change %d, seen: %t", writer, quiet, busy, changed)
			}
			for n := 1; n <= busy; n++ {
				settle()
				sh(t, damage)
				time.Sleep(2 * time.Millisecond) // the resync is due
				faults.Fail(n, unix.EMFILE)
				changed := f.Check()
				faults.Fail(0, 0)
				if !changed {
					t.Errorf("%s: after call %d failed, nothing has changed", writer, n)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A notification makes a check look at the rules, although the generation is still that of the last check.
func TestNotificationOutvotesGeneration(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, 0)
		for changed := true; changed; changed = f.Check() { // writes, and reads once more what was written
			apply(t, f, both(firewall.NFTables))
			f.pending.Or(uint32(topicNFT4))
		}
		sh(t, "nft flush chain ip flannel-ipv4 forward")
		for _, s := range f.places {
			s.generation = rtnetlink.TablesGeneration()
		}
		f.pending.Or(uint32(topicNFT4))
		if !f.Check() {
			t.Error("a change of our rules is not seen")
		}
	})
}

// A check asks for no Apply that would only wait until a place may be tried again.
func TestCheckDuringPause(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, time.Millisecond)
		check := func() (changed bool) {
			time.Sleep(2 * time.Millisecond) // the resync is due
			return f.Check()
		}
		for changed := true; changed; changed = check() { // writes, and reads once more what was written
			apply(t, f, both(firewall.NFTables))
		}
		sh(t, "nft flush chain ip flannel-ipv4 forward")
		each := func(do func(s *placeState)) {
			for _, s := range f.places {
				do(s)
			}
		}
		each(func(s *placeState) { s.retry.Fail(errors.New("no")) })
		if check() {
			t.Error("backed off: there would be an Apply")
		}
		each(func(s *placeState) { s.retry.Clear(); s.throttled = time.Now().Add(time.Hour) })
		if check() {
			t.Error("throttled: there would be an Apply")
		}
		each(func(s *placeState) { s.throttled = time.Time{} })
		if !check() {
			t.Error("after the pause, the change is not seen")
		}
	})
}

// After an error, a place is read again, although nothing has changed in nf_tables since it was last found as wanted.
func TestUnchangedAfterAnError(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := &placeState{place: nftPlace{family: nftables.TableFamilyIPv4}, topics: topicNFT4}
		s.syncedDigest = s.digest()
		if !s.unchanged(rtnetlink.TablesGeneration) || s.generation == 0 || !s.unchanged(rtnetlink.TablesGeneration) {
			t.Errorf("a place in which nothing happens has changed; its generation is %d", s.generation)
		}
		s.syncedDigest = 0 // as reconcile sets it
		if s.unchanged(rtnetlink.TablesGeneration) {
			t.Error("a place that could not be read is unchanged")
		}
	})
}
