//go:build kernels

package linux

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"flannel/internal/test/nstest"
)

// The test of this file needs ESP in the kernel.

// Policies and security associations of others stay, as do those that another of our policies uses.
func TestIPsecPolicies(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const others = `ip xfrm policy add src 10.5.1.0/24 dst 10.5.7.0/24 dir out tmpl src 192.168.0.2 dst 192.168.0.7 proto esp reqid 12 mode tunnel
			ip xfrm policy add src 10.5.1.0/24 dst 10.5.8.0/24 dir out tmpl src 192.168.0.2 dst 192.168.0.8 proto esp reqid 11 mode transport
			ip xfrm policy add src 10.5.1.0/24 dst 10.5.9.0/24 dir out mark 1 mask 1 tmpl src 192.168.0.2 dst 192.168.0.9 proto esp reqid 11 mode tunnel
			ip xfrm policy add src 10.6.1.0/24 dst 10.6.2.0/24 dir out tmpl src 192.168.0.2 dst 192.168.0.3 proto esp reqid 11 mode tunnel
			ip xfrm policy add src 10.5.1.0/24 dst 10.5.10.0/24 dir out action block
			ip xfrm policy add src 10.5.11.0/24 dst 10.5.0.0/16 dir out
			state() { ip xfrm state add src $1 dst $2 proto esp spi $3 reqid $4 mode tunnel aead 'rfc4106(gcm(aes))' 0x0102030405060708090a0b0c0d0e0f1011121314 128; }
			state 192.168.0.2 192.168.0.3 0x1001 12; state 192.168.0.2 192.168.0.4 0x1002 11`
		run(t, others)
		kernel := func() string {
			return run(t, "ip xfrm policy | grep -v '^\t\t' ; ip xfrm policy | grep reqid; ip xfrm state | grep -E '^src|spi'")
		}
		before := kernel()

		s := &xfrmStore{scope: &scopePointer{}}
		s.scope.Store(&scope{networks: []netip.Prefix{v4Network}})
		defer s.close()
		if err := s.require(); err != nil {
			t.Fatal(err)
		}
		own, peer := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.2.0/24")
		me, him := netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3")
		entries := []policyEntry{
			{Key: policyKey{netlink.XFRM_DIR_OUT, own, peer}, Value: policy{Src: me, Dst: him}},
			{Key: policyKey{netlink.XFRM_DIR_IN, peer, own}, Value: policy{Src: him, Dst: me}},
			{Key: policyKey{netlink.XFRM_DIR_FWD, peer, own}, Value: policy{Src: him, Dst: me}},
			{Key: policyKey{netlink.XFRM_DIR_OUT, own, netip.MustParsePrefix("10.5.3.0/24")}, Value: policy{Src: me, Dst: him}}, // of the same peer
		}
		for range 2 { // the second time, they exist
			if err := errors.Join(s.Set(t.Context(), entries)...); err != nil {
				t.Fatal(err)
			}
		}
		check := func(want ...policyEntry) {
			t.Helper()
			have, err := s.List(context.Background())
			if err != nil || len(have) != len(want) {
				t.Fatalf("%v, %v, want %v", have, err, want)
			}
			for _, e := range want {
				if have[e.Key] != e.Value {
					t.Errorf("%s is %s, want %s", e.Key, have[e.Key], e.Value)
				}
			}
		}
		check(entries...)
		run(t, `state() { ip xfrm state add src $1 dst $2 proto esp spi $3 reqid 11 mode tunnel aead 'rfc4106(gcm(aes))' 0x0102030405060708090a0b0c0d0e0f1011121314 128; }
			state 192.168.0.2 192.168.0.3 0x2001; state 192.168.0.3 192.168.0.2 0x2002`)
		if spis, err := s.spis(); err != nil || len(spis) != 3 || !spis[0x1002] || !spis[0x2001] || !spis[0x2002] {
			t.Errorf("%v, %v", spis, err)
		}
		if err := errors.Join(s.Delete(t.Context(), entries[:3])...); err != nil {
			t.Error(err)
		}
		check(entries[3])
		if out := run(t, "ip xfrm state"); !strings.Contains(out, "0x00002001") || strings.Contains(out, "0x00002002") {
			t.Errorf("a policy uses the first of the security associations, and none the second one:\n%s", out)
		}
		for range 2 { // the second time, they do not exist
			if err := errors.Join(s.Delete(t.Context(), entries[3:])...); err != nil {
				t.Error(err)
			}
		}
		// Only 10.6.1.0/24 belongs to another flanneld. What charon itself makes has a priority.
		run(t, `for subnet in 8 9; do
			ip xfrm policy add src 10.7.$subnet.0/24 dst 10.7.1.0/24 dir in priority 375423 tmpl src 192.168.0.7 dst 192.168.0.2 proto esp reqid 11 mode tunnel; done`)
		for _, c := range []struct {
			networks []netip.Prefix
			ours     bool
			other    string
		}{
			{[]netip.Prefix{v4Network}, false, "10.6.1.0/24"},
			{[]netip.Prefix{v4Network, netip.MustParsePrefix("10.6.0.0/16")}, true, ""}, // a former one
			{nil, false, ""},
		} {
			ours, err := s.checkNetwork(c.networks)
			other, ok := errors.AsType[*otherPolicyError](err)
			if ours != c.ours || ok != (c.other != "") || ok && other.Subnet.String() != c.other || !ok && err != nil {
				t.Errorf("%v: ours %t, %v", c.networks, ours, err)
			}
			if ok && !strings.Contains(run(t, "ip xfrm policy"), "10.6.1.0/24") {
				t.Error("the policy is gone")
			}
		}
		run(t, "ip xfrm policy deleteall src 10.7.8.0/24; ip xfrm policy deleteall src 10.7.9.0/24")
		if after := kernel(); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
		// What the error says to do.
		run(t, "ip xfrm policy deleteall src 10.6.1.0/24; ip xfrm policy deleteall dst 10.6.1.0/24")
		if _, err := s.checkNetwork([]netip.Prefix{v4Network}); err != nil {
			t.Error(err)
		}
		// Another flanneld has no peer yet.
		block := policyEntry{Key: policyKey{netlink.XFRM_DIR_OUT, netip.MustParsePrefix("10.8.1.0/24"), netip.MustParsePrefix("10.8.0.0/16")}, Value: policy{Priority: blockPriority}}
		if err := errors.Join(s.Set(t.Context(), []policyEntry{block})...); err != nil {
			t.Error(err)
		}
		_, err := s.checkNetwork([]netip.Prefix{v4Network})
		if other, ok := errors.AsType[*otherPolicyError](err); !ok || other.Subnet != block.Key.Src {
			t.Error(err)
		}
	})
}
