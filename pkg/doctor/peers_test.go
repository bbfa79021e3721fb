package doctor

import (
	"strings"
	"testing"

	"flannel/pkg/status"
)

// The doctor advises to delete the leases of rejected peers only. If the peer of a refused entry lost
// its lease, its flanneld would end (with etcd).
func TestRejectedAndRefused(t *testing.T) {
	const deletes = "delete the lease"
	rejected := status.Peer{Name: "bad", State: status.Rejected, Reason: "malformed"}
	refused := status.Peer{Name: "good", State: status.Behind, Reason: "unreachable"}
	failed := status.Peer{Name: "any", State: status.Behind} // because the pass failed: FL101
	for _, c := range []struct {
		peers   []status.Peer
		verdict Verdict
		seen    string
		deletes bool
	}{
		{[]status.Peer{failed}, OK, "2 peers", false},
		{[]status.Peer{rejected, failed}, Warn, "1 3 rejected bad: malformed", true},
		{[]status.Peer{refused, failed}, Warn, "1 3 refuses good: unreachable", false},
		{[]status.Peer{refused, rejected, refused}, Warn, "1 4 rejected bad: malformed 2 refuses good: unreachable", true},
	} {
		s := healthy()
		reportOf(&s).Peers = append(reportOf(&s).Peers, c.peers...)
		check(t, s, "FL104", c.verdict, c.seen)
		fix := find(t, Examine(s), "FL104").Fix
		if strings.Contains(fix, deletes) != c.deletes || strings.Contains(c.seen, "refuses") != strings.Contains(fix, "keep") {
			t.Errorf("%v: the fix is %q", c.peers, fix)
		}
	}
}
