package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/pkg/windows/hns"
)

// Two Linux and two Windows nodes with both families and host-gw: bridges and
// routes of the host. Then the backend is changed to one without a network, and
// to an overlay, while flanneld.exe runs.
func TestWindowsHostGW(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4, Windows: 2, Family: lab.Dual},
		`{"Type":"host-gw"},"SubnetMin":"10.5.128.0","IPv6SubnetMin":"fd05:0:0:8000::"`, atOnce)
	w, other := l.Nodes[2], l.Nodes[3]
	waitBridgeSynced(t, l, "host-gw")
	var pods []*lab.Pod
	for i, n := range l.Nodes {
		pods = append(pods, pod(t, n, fmt.Sprintf("pod%d", i+1)))
	}
	reachAllPods(t, pods)
	_, err := w.Reach(t.Context(), pods[0].IP6, long) // the host itself
	must(t, err)
	unchanged(t, l, w, "-iface=Ethernet", atOnce)
	t.Run("drift", func(t *testing.T) { routesDrift(t, l, w) })
	t.Run("moved while down", func(t *testing.T) { routesWhileDown(t, l, w) })
	reachAllPods(t, pods)
	for _, p := range pods[2:] {
		must(t, p.Delete(t.Context()))
	}
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"alloc"}`)))
	for _, n := range []*lab.Node{w, other} {
		withinOf(t, long, "alloc: nothing is left on "+n.Name, func() error {
			got, err := hnsEntries(n)
			if err == nil && got != "" {
				err = fmt.Errorf("it has\n%s", got)
			}
			return err
		})
		withinOf(t, long, "ready", func() error { return ready(t, n) })
		if env, err := n.SubnetEnv(); err != nil || env["FLANNEL_MTU"] != "1500" {
			t.Errorf("subnet.env is %v %v", env, err)
		}
	}
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","VNI":4096,"Port":4789}`)))
	for _, n := range []*lab.Node{w, other} { // which does not support IPv6
		withinOf(t, long, "the change is refused", func() error {
			if len(n.Records(0).With("cause=config-refused").Naming("error", "vxlan", "IPv6")) == 0 {
				return fmt.Errorf("the log is\n%s", n.Log())
			}
			return nil
		})
		stoppedByCtrlC(t, n)
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
	}
	a, b := pod(t, w, "a"), pod(t, other, "b")
	for _, to := range []*lab.Pod{b, pods[0]} {
		_, err := a.Reach(t.Context(), to.IP4, long)
		must(t, err)
	}
	for _, n := range []*lab.Node{w, other} {
		// Such as routes of peers, which look like those of the host.
		for _, what := range []string{"address", "route", "dns"} {
			if restored := n.Records(0).With("cause=" + what + "-restored"); len(restored) > 0 { // with the zero Knobs, nothing is away for a moment
				t.Errorf("%s: something was restored although nothing was lost:\n%s", n.Name, restored)
			}
		}
	}
	checkMachine(t, w)
}

// waitBridgeSynced waits until each node matches the leases.
func waitBridgeSynced(t *testing.T, l *lab.Lab, what string) {
	t.Helper()
	for _, n := range l.Nodes {
		if n.Windows != nil {
			withinOf(t, long, what+": "+n.Name+" synced", func() error {
				got, err := hnsEntries(n)
				if want := hnsEntriesOf(t, l, n); err == nil && got != want {
					err = fmt.Errorf("it has\n%s\nwant\n%s", got, want)
				}
				return err
			})
			continue
		}
		peers := slices.DeleteFunc(slices.Clone(l.Nodes), func(p *lab.Node) bool { return p == n })
		eventually(t, what+": "+n.Name, wantRoutes(t, l, n, false, peers...),
			func(ctx context.Context) (string, error) { return routes(ctx, n) })
	}
}

// routesDrift: changes by somebody else to routes, the host endpoint and
// forwarding are repaired within seconds.
func routesDrift(t *testing.T, l *lab.Lab, w *lab.Node) {
	keys, _ := leaseOf(t, l, l.Nodes[0])
	four, six, _ := strings.Cut(keys, "&")
	adapter := hostOn(t, w, "vEthernet (Ethernet)").index
	wrong := hns.Route{Dst: netip.MustParsePrefix(strings.Replace(four, "-", "/", 1)),
		NextHop: netip.MustParseAddr("192.168.100.99"), Index: adapter, Metric: 256}
	for _, c := range []struct {
		what string
		do   windows.Order
	}{
		{"a route deleted", windows.Order{DeleteRoutes: strings.Replace(four, "-", "/", 1)}},
		{"an IPv6 route deleted", windows.Order{DeleteRoutes: strings.Replace(six, "-", "/", 1)}},
		{"a wrong route added", windows.Order{AddRoute: &wrong}},
		{"the endpoint deleted", windows.Order{DeleteEndpoint: "cbr0_ep"}},
		{"forwarding off", windows.Order{StopForwarding: "vEthernet (Ethernet)"}},
		{"HNS restarted", windows.Order{Restart: true}},
	} {
		what := c.what
		c.do.ForgetLog = true
		order(t, w, c.do)
		withinOf(t, long, what+": noticed", func() error {
			if len(hnsChanges(t, w)) == 0 {
				return fmt.Errorf("nothing was changed")
			}
			return nil
		})
		waitBridgeSynced(t, l, what)
		withinOf(t, long, "ready", func() error { return ready(t, w) })
	}
	// The restart deleted the endpoints of the pods with the network.
	p := w.Pods()["pod3"]
	must(t, p.Delete(t.Context()))
	pod(t, w, "pod3")
	*p = *w.Pods()["pod3"]
}

// routesWhileDown: a lease that changed while flanneld.exe was not running
// leaves no old next hop.
func routesWhileDown(t *testing.T, l *lab.Lab, w *lab.Node) {
	lease := func(last int) *value {
		six := fmt.Sprintf("fd00:100::%x", last)
		return &value{PublicIP: fmt.Sprintf("192.168.100.%d", last), PublicIPv6: &six, BackendType: "host-gw"}
	}
	keys := []string{"10.5.50.0-24&fd05:0:0:50::-64", "10.5.51.0-24&fd05:0:0:51::-64"}
	putLease(t, l, keys[0], lease(150))
	putLease(t, l, keys[1], lease(151))
	withinOf(t, long, "two leases", func() error { return has(t, w, "flanneld_peers 5") })
	stoppedByCtrlC(t, w)
	putLease(t, l, keys[0], lease(160))
	putLease(t, l, keys[1], nil)
	order(t, w, windows.Order{ForgetLog: true})
	must(t, w.Start(atOnce))
	must(t, w.Ready(t.Context()))
	withinOf(t, long, "synced", func() error {
		got, err := hnsEntries(w)
		if want := hnsEntriesOf(t, l, w); err == nil && got != want {
			err = fmt.Errorf("it has\n%s\nwant\n%s", got, want)
		}
		return err
	})
	if got := hnsChanges(t, w); len(got) != 6 { // in each family one added and two removed
		t.Errorf("the start changed\n%s", strings.Join(got, "\n"))
	}
	putLease(t, l, keys[0], nil)
}
