package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/logtest"
)

// exitStatus runs a shell script on a node, and returns its output and exit
// status.
func exitStatus(t *testing.T, n *lab.Node, script string) (out string, code int) {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-c", script+" 2>&1")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return out, exit.ExitCode()
	}
	must(t, err)
	return out, 0
}

// TestOneDaemonForASubnetFile starts a second flanneld with the subnet file of
// a running one.
func TestOneDaemonForASubnetFile(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
	n := l.Nodes[0]
	// No link-local addresses, which change by themselves.
	in(t, n.Namespaces, "echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode")
	must(t, l.StartAll(t.Context()))
	hasPeers(t, n, 1)
	pid := in(t, n.Namespaces, "pgrep -x flanneld")
	second := l.Flanneld() + " " + strings.Join(n.Args()[:3], " ")
	before := in(t, n.Namespaces, lab.NetworkState+"; stat -c %y%i /run/flannel/subnet.env")

	out, code := exitStatus(t, n, "timeout 100 "+second)
	if code != 6 || !strings.Contains(out, "PID "+strings.TrimSpace(pid)) ||
		!strings.Contains(out, "/run/flannel/subnet.env") {
		t.Errorf("the second exited with %d and printed\n%s", code, out)
	}
	if out, code := exitStatus(t, n, l.Flanneld()+" cleanup --json"); code != 6 ||
		!logtest.Names(out, `"problem": "`, "/run/flannel/subnet.env") {
		t.Errorf("cleanup exited with %d and printed\n%s", code, out)
	}
	if out, code := exitStatus(t, n, l.Flanneld()+" cleanup --dry-run"); code != 0 ||
		!strings.Contains(out, "device flannel.1") {
		t.Errorf("cleanup --dry-run exited with %d and printed\n%s", code, out)
	}
	must(t, same(before, in(t, n.Namespaces, lab.NetworkState+"; stat -c %y%i /run/flannel/subnet.env")))
	becomesReady(t, n)

	// A waiting daemon takes over as soon as the first one has ended.
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_, _ = n.Run(ctx, "sh", "-c", "exec "+second+" >/run/second.log 2>&1")
		close(ended)
	}()
	within(t, "the second waits", func() error {
		return says(t, n, "cause=file-held", "cat", "/run/second.log")
	})
	must(t, n.Kill())
	within(t, "the second takes over", func() error {
		return says(t, n, `"ready": true`, l.Flanneld(), "status", "--json")
	})
	stop()
	<-ended
	must(t, n.Start()) // must not wait
	must(t, n.Ready(t.Context()))
}
