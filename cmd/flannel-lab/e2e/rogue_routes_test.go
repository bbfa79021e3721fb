package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/status"
)

// routed reports whether flanneld adds a route of its own for each peer.
func (s *rogueTest) routed() bool { return s.backend == "vxlan" || s.backend == "host-gw" }

// routes returns where a node sends the packets to the subnets of its peers. With
// udp, one route leads to flanneld, which says where it sends them.
func (s *rogueTest) routes(t *testing.T, n *lab.Node) (string, error) {
	switch s.backend {
	case "udp":
		r, err := reportOf(t, n)
		var lines []string
		for _, p := range r.Peers {
			if p.State == status.UpToDate {
				lines = append(lines, fmt.Sprintf("%s via %s", p.Subnets[0], p.PublicIPs[0]))
			}
		}
		return words(strings.Join(lines, "\n")), err
	case "extension":
		out, err := try(t.Context(), n.Namespaces, "ip route show root 10.5.0.0/16 | grep -v cni0")
		return words(out), err
	}
	return routes(t.Context(), n)
}

// leadsTo returns an error unless routes leads to a subnet or, if unwanted, does not.
func (s *rogueTest) leadsTo(t *testing.T, n *lab.Node, subnet string, wanted bool) error {
	got, err := s.routes(t, n)
	if err == nil && strings.Contains(got, subnet) != wanted {
		err = fmt.Errorf("leads to %s: %t; there are\n%s", subnet, !wanted, got)
	}
	return err
}

// latency returns the median time from the lease of a valid peer to the route
// in the kernel of the first node, and how many routes were set for 21 of them.
func (s *rogueTest) latency(t *testing.T, generation int) (median time.Duration, set float64) {
	t.Helper()
	const routesSet = `flanneld_changes_total{op="set",table="routes"}`
	before := numbers(t, s.l.Nodes[0])[routesSet]
	var handle *netlink.Handle
	must(t, s.l.Nodes[0].Do(func() (err error) { handle, err = netlink.NewHandle(); return err }))
	defer handle.Close()
	hasRoute := func(i int) bool {
		dst := &net.IPNet{IP: net.IPv4(10, 5, byte(i), 0).To4(), Mask: net.CIDRMask(24, 32)}
		got, err := handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
		return err == nil && len(got) > 0
	}
	var took []time.Duration
	for i := 101; i < 122; i++ {
		key, v := s.fakeLease(i, generation)
		began := time.Now()
		putLease(t, s.l, key, v)
		_, err := machine.Until(t.Context(), timeout, func(context.Context) error {
			if !hasRoute(i) {
				return fmt.Errorf("no route to %s", key)
			}
			return nil
		})
		must(t, err)
		took = append(took, time.Since(began))
		putLease(t, s.l, key, nil)
	}
	within(t, "valid peers are removed", func() error {
		for i := 101; i < 122; i++ {
			if hasRoute(i) {
				return fmt.Errorf("10.5.%d.0/24 still has a route", i)
			}
		}
		return nil
	})
	within(t, "routes of valid peers are counted", func() error {
		if set = numbers(t, s.l.Nodes[0])[routesSet] - before; set < float64(len(took)) {
			return fmt.Errorf("%v routes were set, want %d", set, len(took))
		}
		return nil
	})
	slices.Sort(took)
	return took[len(took)/2], set
}

// expectedRoutes returns the current routes of a node, and those of the rogues
// that it should accept.
func (s *rogueTest) expectedRoutes(t *testing.T, n *lab.Node) string {
	t.Helper()
	text, err := s.routes(t, n)
	must(t, err)
	for _, r := range s.all {
		if r.rejectedBy(slices.Index(s.l.Nodes, n)) || r.silent {
			continue
		}
		dst := strings.Replace(r.key, "-", "/", 1)
		base, _, _ := strings.Cut(r.key, "-")
		switch s.backend {
		case "vxlan":
			text += fmt.Sprintf("\n%s via %s dev flannel.1 onlink", dst, base)
		case "udp":
			text += fmt.Sprintf("\n%s via %s", dst, r.public)
		default:
			text += fmt.Sprintf("\n%s via %s dev eth0", dst, r.public)
		}
	}
	return words(text)
}
