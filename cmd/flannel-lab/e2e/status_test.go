package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// TestStatus runs the status command in every state of a daemon.
func TestStatus(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	// tells runs the command until it exits with code and its output contains
	// all of want.
	tells := func(what string, code int, args string, want ...string) (out string) {
		t.Helper()
		within(t, what, func() (err error) {
			out, err = n.Run(t.Context(), "sh", "-c", l.Flanneld()+" status "+args+" 2>&1")
			got := 0
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				got = exit.ExitCode()
			}
			for _, w := range want {
				if got != code || !strings.Contains(out, w) {
					return fmt.Errorf("status %d, want %d and %q: %s (%v)", got, code, w, out, err)
				}
			}
			return nil
		})
		return out
	}
	tells("synced", 0, "", "lease     10.5.", "underlay  eth0 (", "device    flannel.1 (")

	var r struct {
		Ready bool
		Node  struct{ Devices []struct{ Name string } }
		Peers []struct {
			State   string
			Subnets []string
		}
	}
	must(t, json.Unmarshal([]byte(tells("JSON", 0, "--json", `"in-step"`)), &r))
	if !r.Ready || len(r.Peers) != 1 || r.Peers[0].State != "in-step" || len(r.Node.Devices) != 2 {
		t.Errorf("the status is %+v", r)
	}
	putLease(t, l, "10.5.250.0-24", &value{PublicIP: "192.168.100.99", BackendType: "udp"})
	tells("a peer is left out", 0, "", "left-out  "+leasePrefix+"10.5.250.0-24: 10.5.250.0/24 at 192.168.100.99",
		`"udp"`)
	putLease(t, l, "10.5.250.0-24", nil)
	in(t, n.Namespaces, "ip link delete eth0")
	tells("not synced", 3, "", "problem   ", "--iface=eth0", "history   ")
	tells("its errors", 3, "--history", "history   ", "eth0: does not exist")
	must(t, n.Plug())
	tells("synced again", 0, "--json", `"ready": true`, `"in-step"`)

	must(t, n.Signal(syscall.SIGSTOP))
	tells("hanging", 5, "--timeout=300ms", status.ErrNoAnswer.Error(), "/run/flannel/flanneld.sock")
	must(t, n.Signal(syscall.SIGCONT))
	tells("it goes on", 0, "--json", `"ready": true`, `"in-step"`)
	must(t, n.Kill())
	tells("killed", 4, "", status.ErrNotRunning.Error(), "/run/flannel/flanneld.sock")
	must(t, n.Start())
	tells("started again", 0, "--json", `"ready": true`, `"in-step"`)
	if owner := in(t, n.Namespaces, "stat -c %a%U /run/flannel/flanneld.sock"); owner != "600root\n" {
		t.Errorf("mode and owner of the socket are %s", owner)
	}
	stopped(t, n)
	tells("stopped", 4, "", status.ErrNotRunning.Error(), "/run/flannel/flanneld.sock")
}
