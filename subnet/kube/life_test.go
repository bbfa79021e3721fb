package kube

import (
	"strings"
	"testing"
	"time"

	"flannel/subnet"
	"flannel/subnet/kube/kubetest"
)

func TestLife(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t, kubetest.PodCIDRs("10.244.0.0/16", "fd00:244::/48"))
	o := outside{t, s}
	cidrs := s.AddNode("one")
	s.AddNode("two")
	one, two := start(t, s, "one", nil), start(t, s, "two", nil)
	l := one.join(dualNet, "192.168.0.1", mac1)
	if l.V4.Subnet != cidrs[0] || l.V6.Subnet != cidrs[1] || l.Name != "one" {
		t.Errorf("acquired %v, not %v", &l, cidrs)
	}
	if got, want := o.ours("one"), `kube-subnet-manager=true
backend-type=vxlan
backend-data=`+mac1+`
backend-v6-data=`+mac1+`
public-ip=192.168.0.1
public-ipv6=2001:db8::1`; got != want {
		t.Errorf("annotations are\n%s\nwant\n%s", got, want)
	}
	two.join(dualNet, "192.168.0.2", mac2)
	two.run()
	one.run()
	two.sees("one", 5*time.Second)
	one.sees("two", 5*time.Second)

	if err := one.Publish(t.Context(), l); err != nil || one.traffic.count("PATCH") != 1 {
		t.Errorf("published the same: %v, %v", err, one.traffic.requests)
	}
	l.V6.Data = []byte(mac2) // one family of two
	if err := one.Publish(t.Context(), l); err != nil {
		t.Error(err)
	}
	eventually(t, "a change of one family is seen", 5*time.Second, func() bool {
		s, _ := two.last()
		return len(s.Leases) == 1 && string(s.Leases[0].V6.Data) == mac2
	})
	if n := one.traffic.count("PATCH"); n != 2 {
		t.Errorf("%d patches for two changes", n)
	}

	// Another start of the same node writes nothing.
	again := start(t, s, "one", nil)
	found, err := again.Acquire(t.Context(), dualNet, subnet.Lease{})
	if err != nil || !found.Equal(&l) {
		t.Errorf("found %v, %v, want %v", &found, err, &l)
	}
	if err := again.Publish(t.Context(), l); err != nil || again.traffic.count("PATCH") != 0 {
		t.Errorf("a restart patched: %v, %v", err, again.traffic.requests)
	}
	s.DeleteNode("two")
	one.sees("", 5*time.Second)
	if !strings.Contains(one.logs.String(), "") || one.logs.count("level=WARN") != 0 {
		t.Errorf("warnings in a quiet life:\n%s", one.logs)
	}
}
