package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// atOnce makes nodes adopt a disruptive configuration immediately.
const atOnce = "--config-stagger=0"

// TestDisruptiveConfigTakenBack sets a configuration that would separate nodes,
// and soon after the former one. No node adopts it, and no packet is lost.
// alloc, which has no routes, may stay.
func TestDisruptiveConfigTakenBack(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4}, `{"Type":"vxlan"}`, "--config-stagger=60s") // no node acts for 15 s
	pods := podEach(t, l)
	var stops []func()
	for i, p := range pods {
		stops = append(stops, expectNoLoss(t, p, pods[(i+1)%len(pods)].IP4))
	}
	for _, backend := range []string{`{"Type":"vxlan","VNI":77}`, `{"Type":"host-gw"}`, `{"Type":"vxlan","Port":9999}`,
		`{"Type":"alloc"}`} {
		offered(t, l, backend)
		if !strings.Contains(backend, "alloc") {
			must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
		}
	}
	time.Sleep(16 * time.Second) // until the turn of the last node is over
	inForce(t, l, "vxlan id 1 ")
	for _, stop := range stops {
		stop()
	}
}

// podEach creates a pod on each node and waits until each reaches the next one.
func podEach(t *testing.T, l *lab.Lab) (pods []*lab.Pod) {
	t.Helper()
	for _, n := range l.Nodes {
		pods = append(pods, pod(t, n, "a"))
	}
	for i, p := range pods {
		reaches(t, "at first", p, pods[(i+1)%len(pods)].IP4)
	}
	return pods
}

// TestDisruptiveConfig changes settings that all nodes must share, to values
// that work and to values that do not.
func TestDisruptiveConfig(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4}, `{"Type":"vxlan"}`, "--config-stagger=8s")
	pods := podEach(t, l)
	t.Run("another VNI spreads", func(t *testing.T) {
		must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","VNI":77}`)))
		inForce(t, l, "vxlan id 77 ")
		for _, n := range l.Nodes {
			within(t, "nothing is pending", func() error { return has(t, n, "flanneld_config_pending 0") })
			becomesReady(t, n)
		}
		for i, p := range pods {
			reaches(t, "with another VNI", p, pods[(i+1)%len(pods)].IP4)
		}
	})
	t.Run("a port that nothing passes goes back", func(t *testing.T) {
		for _, n := range l.Nodes {
			in(t, n.Namespaces, `nft 'add table inet faulty; add chain inet faulty underlay { type filter hook prerouting priority -300; }; add rule inet faulty underlay udp dport 9999 drop'`)
		}
		mark := make([]int, len(l.Nodes))
		for i, n := range l.Nodes {
			mark[i] = len(n.Log())
		}
		must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","VNI":77,"Port":9999}`)))
		for i, n := range l.Nodes {
			within(t, n.Name+" has decided", func() error {
				records := n.Records(mark[i])
				if len(records.With("cause=config-unproven"))+len(records.With("cause=config-reverted")) == 0 {
					return fmt.Errorf("the log is:\n%s", records)
				}
				return says(t, n, "dstport 8472", "ip", "-d", "link", "show", "flannel.77")
			})
			within(t, "it stays pending", func() error { return has(t, n, "flanneld_config_pending 1") })
		}
		for i, p := range pods {
			reaches(t, "after it went back", p, pods[(i+1)%len(pods)].IP4)
		}
	})
}

// TestDisruptiveConfigHostGW changes to a backend without a tunnel, in which no
// address of a peer would answer.
func TestDisruptiveConfigHostGW(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 3}, `{"Type":"vxlan"}`, "--config-stagger=4s")
	a, b := pod(t, l.Nodes[0], "a"), pod(t, l.Nodes[2], "b")
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"host-gw"}`)))
	for _, n := range l.Nodes {
		within(t, n.Name+" has adopted it", func() error { return silent(t, n, "flannel", "ip", "link") })
		within(t, "nothing is pending", func() error { return has(t, n, "flanneld_config_pending 0") })
	}
	reaches(t, "over host-gw", a, b.IP4)
}

// portSecurity makes the underlay drop all packets with an address of the pod
// network, as that of many clouds does.
func portSecurity(t *testing.T, l *lab.Lab) {
	t.Helper()
	in(t, l.Infra.Namespaces, `nft 'add table bridge port; add chain bridge port security { type filter hook forward priority 0; }
		add rule bridge port security ip saddr `+lab.Network4+` drop; add rule bridge port security ip daddr `+lab.Network4+` drop'`)
}

// TestDisruptiveConfigPortSecurity changes to host-gw where the underlay lets no
// packet of pods through. Every lease is valid, and all nodes reach each other's
// own addresses.
func TestDisruptiveConfigPortSecurity(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4}, `{"Type":"vxlan"}`, "--config-stagger=4s")
	pods := podEach(t, l)
	portSecurity(t, l)
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"host-gw"}`)))
	reverted := 0
	for _, n := range l.Nodes {
		within(t, n.Name+" has refused it", func() error {
			records := n.Records(0)
			if len(records.With("cause=config-unproven"))+len(records.With("cause=config-reverted")) == 0 {
				return fmt.Errorf("the log is:\n%s", records)
			}
			return says(t, n, "vxlan id 1 ", "ip", "-d", "link", "show", "flannel.1")
		})
		within(t, n.Name+" says so", func() error { return has(t, n, "flanneld_config_pending 1") })
		if len(n.Records(0).With("cause=config-proven")) > 0 { // no packet of pods passes
			t.Errorf("%s says that it was answered:\n%s", n.Name, n.Log())
		}
		reverted += len(n.Records(0).With("cause=config-reverted"))
	}
	if reverted == 0 {
		t.Error("no node has tried it")
	}
	for i, p := range pods {
		reaches(t, "after all went back", p, pods[(i+1)%len(pods)].IP4)
	}
}

// TestDisruptiveConfigUnproven changes to host-gw on nodes where no pod has ever
// run, so that nothing there could answer by the new way.
func TestDisruptiveConfigUnproven(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 3}, `{"Type":"vxlan"}`, "--config-stagger=4s")
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"host-gw"}`)))
	for _, n := range l.Nodes {
		logged(t, n, 0, "cause=config-no-evidence")
		within(t, n.Name+" has adopted it", func() error { return silent(t, n, "flannel", "ip", "link") })
		within(t, n.Name+" says that it is unproven", func() error {
			if err := has(t, n, "flanneld_config_pending 1"); err != nil {
				return err
			}
			return says(t, n, "unproven", l.Flanneld(), "status")
		})
		if len(n.Records(0).With("cause=config-proven")) > 0 { // there is nobody to answer
			t.Errorf("%s says that it was answered:\n%s", n.Name, n.Log())
		}
	}
	a, b := pod(t, l.Nodes[0], "a"), pod(t, l.Nodes[2], "b")
	reaches(t, "over host-gw", a, b.IP4)
	for _, n := range l.Nodes { // the one without a pod hears of the others' proof
		withinOf(t, long, "nothing is pending", func() error { return has(t, n, "flanneld_config_pending 0") })
	}
}

// TestConfigIsNotFollowed checks that a node keeps the configuration of its
// start until the next start.
func TestConfigIsNotFollowed(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`, "--config-follow=false")
	n := l.Nodes[0]
	mark := len(n.Log())
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","MTU":1400}`)))
	logged(t, n, mark, "cause=config-kept")
	within(t, "it is pending", func() error { return has(t, n, "flanneld_config_pending 1") })
	must(t, says(t, n, "mtu 1450", "ip", "link", "show", "flannel.1")) // as before
	stopped(t, n)
	must(t, n.Start("--config-follow=false"))
	within(t, "adopted at the start", func() error { return says(t, n, "mtu 1350", "ip", "link", "show", "flannel.1") })
	within(t, "nothing is pending", func() error { return has(t, n, "flanneld_config_pending 0") })
}

// offered sets a configuration and waits until every node has seen it and none
// has adopted it.
func offered(t *testing.T, l *lab.Lab, backend string) {
	t.Helper()
	mark := make([]int, len(l.Nodes))
	for i, n := range l.Nodes {
		mark[i] = len(n.Log())
	}
	must(t, l.SetConfig(t.Context(), l.Config(backend)))
	for i, n := range l.Nodes {
		within(t, n.Name+" has seen "+backend, func() error {
			if records := n.Records(mark[i]); len(records.With("cause=config-disruptive"))+len(records.With("cause=config-refused")) == 0 {
				return fmt.Errorf("the log is:\n%s", records)
			}
			return nil
		})
	}
}

// inForce waits until every node has a tunnel of that kind and no other.
func inForce(t *testing.T, l *lab.Lab, kind string) {
	t.Helper()
	for _, n := range l.Nodes {
		within(t, n.Name+" has "+kind, func() error {
			if text := in(t, n.Namespaces, "ip -d -o link show type vxlan"); strings.Count(text, "vxlan id") != 1 ||
				!strings.Contains(text, kind) {
				return fmt.Errorf("the device is %s", text)
			}
			return nil
		})
	}
}
