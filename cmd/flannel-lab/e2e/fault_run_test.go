package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// TestRunDirectory starts flanneld on a new node where no file can be written in
// /run/flannel: the directory is read-only, or full. Peers are added all the same, no
// file is there in part, and no line is logged twice. When files can be written, the
// node becomes ready.
func TestRunDirectory(t *testing.T) {
	for name, backend := range map[string]string{"vxlan": `{"Type":"vxlan"}`, "wireguard": `{"Type":"wireguard"}`, "extension": commands} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := prepare(t, lab.Options{Nodes: 2}, backend+apart)
			for _, n := range l.Nodes {
				must(t, n.WriteFile("/run/script", extensionScript))
				in(t, n.Namespaces, "chmod +x /run/script")
			}
			n, peer := l.Nodes[0], l.Nodes[1]
			must(t, errors.Join(peer.Start(), peer.Ready(t.Context())))
			in(t, n.Namespaces, "mkdir -p /run/flannel; mount -t tmpfs -o size=16k tmpfs /run/flannel")
			for _, c := range []struct{ harm, undo, says string }{
				{"mount -o remount,ro /run/flannel", "mount -o remount,rw /run/flannel", unix.EROFS.Error()},
				{"dd if=/dev/zero of=/run/flannel/ballast bs=4k 2>/dev/null || true", "rm /run/flannel/ballast", unix.ENOSPC.Error()},
			} {
				runDirectoryFails(t, l, c.harm, c.undo, c.says)
			}
		})
	}
}

func runDirectoryFails(t *testing.T, l *lab.Lab, harm, undo, says string) {
	t.Helper()
	n, peer := l.Nodes[0], l.Nodes[1]
	in(t, n.Namespaces, harm)
	mark := len(n.Log())
	must(t, n.Start())
	within(t, "/readyz says "+says, func() error { return unready(t, n, says) })
	within(t, "the peer is added with "+says, func() error { return hasRoute(t, n, baseOf(t, l, peer)) })
	putRaw(t, l, "10.5.9.0-24", `{"PublicIP":"192.168.100.79"}`)
	passes := numbers(t, n)["flanneld_sync_seconds_count"]
	within(t, "it retries with "+says, func() error {
		if more := numbers(t, n)["flanneld_sync_seconds_count"] - passes; more < 3 { // with more, a slow start reaches the minute after which a line is repeated
			return fmt.Errorf("%v times", more)
		}
		return unready(t, n, says)
	})
	if parts := in(t, n.Namespaces, "find /run/flannel -ignore_readdir_race -type f -size +0 ! -name ballast"); parts != "" {
		t.Errorf("%s: there are %s", says, parts)
	}
	lines := map[string]int{} // without the time
	for _, r := range n.Records(mark).With("level=WARN") {
		if r["error"]+r["problem"] != "" {
			lines[r["msg"]+r["error"]+r["problem"]]++
		}
	}
	// The problem of a pass may change while the node starts: its lease is not yet published.
	if len(lines) > 6 || len(lines) < 1 {
		t.Errorf("%s: logged\n%s", says, n.Log())
	}
	for line, count := range lines {
		if count > 1 || strings.Contains(line, "/run/flannel/.") {
			t.Errorf("%s: logged %d times, or with a temporary name: %s", says, count, line)
		}
	}
	in(t, n.Namespaces, undo)
	becomesReady(t, n)
	if env, err := n.SubnetEnv(); err != nil || env["FLANNEL_MTU"] == "" {
		t.Errorf("after %s: %v, %v", says, env, err)
	}
	must(t, n.Kill())
	in(t, n.Namespaces, "rm -rf /run/flannel/* /run/flannel/.[!.]*")
}

func hasRoute(t *testing.T, n *lab.Node, to string) error {
	t.Helper()
	return says(t, n, to, "ip", "route")
}
