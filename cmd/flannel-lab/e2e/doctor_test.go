package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// linkLocals prints the number of interfaces that are up, and the numbers of
// their non-tentative link-local addresses and routes. They are equal once
// duplicate address detection is over.
const linkLocals = `ip -o link show up | grep -vc ' lo:'; ip -6 -o address show scope link -tentative | wc -l
	ip -6 route show table local | grep -c '^local fe80' || true; ip -6 route show table local | grep -c '^anycast fe80' || true`

// TestDoctor runs the doctor on a healthy node, and then on the same node with
// common problems. The kernel of the lab has no br_netfilter, so FL202 has its
// own verdict there.
func TestDoctor(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	pod(t, n, "a")
	for _, n := range l.Nodes {
		hasPeers(t, n, 1)
	}
	ask := func() map[string]string {
		t.Helper()
		out, err := n.Run(t.Context(), "sh", "-c",
			l.Flanneld()+" doctor --json --timeout=1m; true")
		must(t, err)
		var all []struct{ Code, Verdict, Seen string }
		must(t, json.Unmarshal([]byte(out), &all))
		verdicts := map[string]string{}
		for _, r := range all {
			verdicts[r.Code] = r.Verdict + " " + r.Seen
		}
		return verdicts
	}
	within(t, "no link-local address is tentative", func() error {
		if all := in(t, n.Namespaces, linkLocals); len(slices.Compact(strings.Fields(all))) != 1 {
			return fmt.Errorf("interfaces, addresses, local and anycast routes: %s", all)
		}
		return nil
	})
	before := in(t, n.Namespaces, lab.NetworkState)
	healthy := ask()
	if change := lab.Changes(before, in(t, n.Namespaces, lab.NetworkState)); change != "" {
		t.Errorf("the doctor changed\n%s", change)
	}
	for code, verdict := range healthy {
		if (strings.HasPrefix(verdict, "fail") || strings.HasPrefix(verdict, "warn")) && code != "FL202" &&
			code != "FL302" {
			t.Errorf("on a healthy node, %s: %s", code, verdict)
		}
	}
	for _, code := range []string{"FL101", "FL102", "FL103", "FL104", "FL105", "FL106", "FL201", "FL203", "FL204",
		"FL205", "FL206", "FL207", "FL208", "FL301", "FL402", "FL403"} {
		if !strings.HasPrefix(healthy[code], "ok") {
			t.Errorf("%s has no verdict: %s", code, healthy[code])
		}
	}
	in(t, n.Namespaces, `ip address add 10.5.251.1/24 dev cni0; ip link set cni0 mtu 1300; ip6tables -I INPUT -p udp --dport 8472 -j DROP
		echo '{}' > /etc/cni/net.d/05-other.conf; echo '{"type":"other"}' > /etc/cni/net.d/05-other.conf
		ln -s "$(command -v sleep)" /run/flanneld; nohup /run/flanneld infinity > /run/second.log 2>&1 &`) // as flannel, without a lock
	putLease(t, l, "10.5.250.0-24", &value{PublicIP: "192.168.100.99", BackendType: "udp"})
	// A lease of a Windows node, recognized by its MAC. Our configuration does not
	// allow Windows nodes, which only the daemon knows.
	putLease(t, l, "10.5.249.0-24", &value{PublicIP: "192.168.100.98", BackendType: "vxlan",
		BackendData: &vtep{4096, "00:15:5d:00:00:01"}})
	for code, want := range map[string]string{"FL403": "fail " + leasePrefix + "10.5.249.0-24", "FL102": "fail",
		"FL104": "warn", "FL204": "fail", "FL207": "warn", "FL208": "warn", "FL301": "fail"} {
		within(t, code, func() error {
			if got := ask()[code]; !strings.HasPrefix(got, want) {
				return fmt.Errorf("%s: %s, want %s", code, got, want)
			}
			return nil
		})
	}
	logged(t, n, 0, "cause=windows-mismatch")
	stopped(t, n)
	if got := ask()["FL101"]; !strings.HasPrefix(got, "fail "+status.ErrNotRunning.Error()) {
		t.Errorf("with a stopped daemon: %s", got)
	}
}
