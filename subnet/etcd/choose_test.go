package etcd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/logtest"
	"flannel/subnet"
)

func network(prefix string, length int, first, last string) subnet.Network {
	return subnet.Network{Prefix: netip.MustParsePrefix(prefix), SubnetLen: length,
		Min: netip.MustParseAddr(first), Max: netip.MustParseAddr(last)}
}

func lease4(p string) *subnet.Lease {
	return &subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix(p)}}
}

func lease6(p string) *subnet.Lease {
	return &subnet.Lease{V6: subnet.Endpoint{Subnet: netip.MustParsePrefix(p)}}
}

var (
	ten  = network("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0")
	cafe = network("2001:cafe:42::/56", 64, "2001:cafe:42:1::", "2001:cafe:42:ff::")
)

// Every free subnet is handed out once, whatever has the others, and then the network is full.
func TestChooseUntilFull(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	cfg := subnet.Config{V4: ten, V6: cafe}
	taken := []*subnet.Lease{
		lease4("10.5.8.0/21"),         // 8 subnets at once
		lease4("10.5.9.0/24"),         // one of these again
		lease4("10.5.200.128/25"),     // half of one
		lease4("10.5.0.0/24"),         // below Min
		lease4("172.16.0.0/12"),       // elsewhere
		lease6("2001:cafe:42:1::/64"), // the other family
	}
	seen := map[netip.Prefix]bool{}
	for range 255 - 8 - 1 {
		v4, v6, err := chooseFree(cfg, taken, rnd)
		if err != nil {
			t.Fatalf("after %d: %v", len(seen), err)
		}
		l := &subnet.Lease{V4: subnet.Endpoint{Subnet: v4}, V6: subnet.Endpoint{Subnet: v6}}
		if err := subnet.Fits(cfg, l); err != nil || seen[v4] || seen[v6] || !isFree(l, taken) {
			t.Fatalf("chose %v and %v: fits: %v, seen before: %v, free: %v", v4, v6, err, seen[v4], isFree(l, taken))
		}
		seen[v4], seen[v6] = true, true
		taken = append(taken, l)
	}
	_, _, err := chooseFree(cfg, taken, rnd)
	if !errors.Is(err, errFull) || !logtest.Names(err.Error(), "255", "10.5.0.0/16") {
		t.Errorf("full network: %v", err)
	}
}

func TestChooseHuge(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	huge := subnet.Config{V6: network("fd00::/8", 126, "fd00::4", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:fffc")}
	taken := []*subnet.Lease{lease6("fd00::/9")} // the first half, more than 2^64 subnets
	start := time.Now()
	for i := range 10_000 {
		taken = append(taken, lease6(fmt.Sprintf("fd80:%x::/64", i)))
	}
	for range 20 {
		_, v6, err := chooseFree(huge, taken, rnd)
		if err != nil {
			t.Fatal(err)
		}
		l := &subnet.Lease{V6: subnet.Endpoint{Subnet: v6}}
		if err := subnet.Fits(huge, l); err != nil || !isFree(l, taken) {
			t.Fatalf("chose %v: %v, free: %v", v6, err, isFree(l, taken))
		}
	}
	t.Logf("20 choices among 2^118 subnets, 10,000 taken: %v", time.Since(start))
}

// All free subnets come up, and about equally often.
func TestChooseIsEven(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	small := subnet.Config{V4: network("10.5.0.0/28", 30, "10.5.0.0", "10.5.0.12")}
	count := map[netip.Prefix]int{}
	for range 3000 {
		v4, _, err := chooseFree(small, []*subnet.Lease{lease4("10.5.0.4/30")}, rnd)
		if err != nil {
			t.Fatal(err)
		}
		count[v4]++
	}
	for _, p := range []string{"10.5.0.0/30", "10.5.0.8/30", "10.5.0.12/30"} {
		if n := count[netip.MustParsePrefix(p)]; n < 850 || n > 1150 {
			t.Errorf("%s came up %d times of 3000, want about 1000 (%v)", p, n, count)
		}
	}
}

// A subnet that overlaps the underlay is the last that a node should take, unless all are within it.
func TestChooseBesideTheUnderlay(t *testing.T) {
	cfg := subnet.Config{V4: network("10.0.0.0/8", 24, "10.1.0.0", "10.1.3.0"), V6: network("fd05::/48", 64, "fd05:0:0:1::", "fd05:0:0:2::")}
	cfg.Underlay = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/23"), netip.MustParsePrefix("10.1.3.7/32"), netip.MustParsePrefix("fd05:0:0:1::7/128")}
	for range 20 {
		v4, v6, err := chooseFree(cfg, nil, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())))
		if err != nil || v4.String() != "10.1.2.0/24" || v6.String() != "fd05:0:0:2::/64" {
			t.Fatalf("chose %s and %s (%v)", v4, v6, err)
		}
	}
	cfg.Underlay = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.7/32")}
	v4, _, err := chooseFree(cfg, nil, rand.New(rand.NewPCG(1, 2)))
	if err != nil || v4.String() == "10.1.0.0/24" {
		t.Errorf("on an underlay as wide as the network: %s (%v)", v4, err)
	}
	if err := subnet.Fits(cfg, &subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.1.0.0/24")}, V6: subnet.Endpoint{Subnet: netip.MustParsePrefix("fd05:0:0:1::/64")}}); err == nil {
		t.Error("a subnet with this node's address fits")
	}
}
