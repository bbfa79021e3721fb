package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/logtest"
)

// TestHandback prepares nodes for flannel. No packet is lost, and flannel can
// delete the route of a peer that is removed.
func TestHandback(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"host-gw", "vxlan"} {
		t.Run(backend, func(t *testing.T) {
			l := testHandback(t, backend, lab.Dual, "route 10.5.", "route fd05:")
			for _, n := range l.Nodes {
				waitSynced(t, l, n)
			}
		})
	}
}

// testHandback tests handback with a backend, and starts flanneld again. names
// are in the output of handback.
func testHandback(t *testing.T, backend string, family lab.Family, names ...string) *lab.Lab {
	t.Helper()
	l := start(t, lab.Options{Nodes: 2, Family: family}, `{"Type":"`+backend+`"}`)
	a, b := pair(t, l)
	n := l.Nodes[0]
	command := l.Flanneld() + " handback"
	if out, code := exitStatus(t, n, command); code != 6 || !strings.Contains(out, "/run/flannel/subnet.env") {
		t.Errorf("while flanneld runs, it exits with %d and prints\n%s", code, out)
	}
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	flow := flood(t, a, b)
	for _, n := range l.Nodes {
		stopped(t, n)
		planned := in(t, n.Namespaces, command+" --dry-run")
		done := in(t, n.Namespaces, command)
		if done != strings.ReplaceAll(planned, "would ", "") || !logtest.Names(done, names...) {
			t.Errorf("it prints\n%s\nand the dry run printed\n%s", done, planned)
		}
		if own := in(t, n.Namespaces, "ip route show proto 70; ip -6 route show proto 70; ip nexthop show proto 70"); own != "" {
			t.Errorf("entries still in our format:\n%s", own)
		}
		if again := in(t, n.Namespaces, command+" --json"); !strings.Contains(again, `"done": []`) {
			t.Errorf("a second run prints\n%s", again)
		}
	}
	time.Sleep(100 * time.Millisecond) // an outage would show now
	flow.checkNoLoss(t, "from ours to flannel's form")
	must(t, l.StartAll(t.Context()))
	must(t, reach(t.Context(), a, b))
	return l
}
