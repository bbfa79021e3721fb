package e2e

import (
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// wireGuardKeys returns the private key in a file, and the public keys of the node's devices.
func wireGuardKeys(t *testing.T, n *lab.Node, file string) (private string, public []string) {
	t.Helper()
	private = in(t, n.Namespaces, "cat "+file)
	return private, strings.Fields(in(t, n.Namespaces, "for d in $(ls /sys/class/net | grep ^flannel-wg); do wg show $d public-key; done"))
}

// Two nodes are clones with the same WireGuard key. The younger one replaces its key,
// once, and the older one keeps it.
func TestOwnKeyIsADuplicate(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"wireguard"}`+apart)
	older, younger := l.Nodes[0], l.Nodes[1]
	const file = "/run/flannel/wgkey"
	must(t, older.Start())
	must(t, older.Ready(t.Context()))
	cloned, public := wireGuardKeys(t, older, file)
	in(t, younger.Namespaces, "mkdir -p /run/flannel")
	must(t, younger.WriteFile(file, cloned))
	must(t, younger.Start())
	must(t, younger.Ready(t.Context()))
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	must(t, reach(t.Context(), b, a))
	for _, n := range l.Nodes {
		within(t, n.Name+" rejects nobody", func() error { return has(t, n, "flanneld_invalid_peers 0") })
		becomesReady(t, n)
	}
	if kept, devices := wireGuardKeys(t, older, file); kept != cloned || fmt.Sprint(devices) != fmt.Sprint(public) {
		t.Errorf("the older node has the public keys %s, had %s", devices, public)
	}
	fresh, devices := wireGuardKeys(t, younger, file)
	if fresh == cloned || len(devices) != 2 || devices[0] != devices[1] || devices[0] == public[0] {
		t.Errorf("the younger node has the public keys %s, the older one %s", devices, public)
	}
	within(t, "the younger node has logged it for each device", func() error {
		if found := younger.Records(0).With("cause=duplicate-key"); len(found) != 2 {
			return fmt.Errorf("it has logged\n%s", found)
		}
		return nil
	})
	if found := older.Records(0).With("cause=duplicate-key"); len(found) > 0 { // it is the older one, whoever is late
		t.Errorf("the older node has logged\n%s", found)
	}

	// A restart keeps the new key.
	f := flood(t, a, b)
	must(t, younger.Kill())
	must(t, younger.Start())
	must(t, younger.Ready(t.Context()))
	if kept, _ := wireGuardKeys(t, younger, file); kept != fresh {
		t.Error("after a restart, the younger node has another key")
	}
	f.checkNoLoss(t, "the younger node restarts")
}

// WIREGUARD_KEY_FILE names the file of the private key: one that does not exist is
// created, and used again after the device and /run are gone, as after a reboot. Nothing is
// in the usual place.
func TestWireGuardKeyFile(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"wireguard"}`)
	n := l.Nodes[0]
	const file = "/etc/flanneld/keys/wg"
	n.Env = append(n.Env, "WIREGUARD_KEY_FILE="+file)
	must(t, l.StartAll(t.Context()))
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	key, public := wireGuardKeys(t, n, file)
	check := func(what string) {
		t.Helper()
		if out := in(t, n.Namespaces, "stat -c '%a %U %s' "+file+"; ls /run/flannel/wgkey 2>/dev/null || true"); out != "400 root 44\n" {
			t.Errorf("%s: the file, and one at the usual place: %s", what, out)
		}
		if has := strings.TrimSpace(in(t, n.Namespaces, "wg pubkey <"+file)); len(public) != 1 || has != public[0] {
			t.Errorf("%s: the file has the key %s, the device %s", what, has, public)
		}
		after, devices := wireGuardKeys(t, n, file)
		if after != key || fmt.Sprint(devices) != fmt.Sprint(public) {
			t.Errorf("%s: the key is that of %s, was that of %s", what, devices, public)
		}
		must(t, reach(t.Context(), a, b))
	}
	check("created")
	must(t, n.Kill())
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	check("restarted")
	stopped(t, n)
	in(t, n.Namespaces, "ip link del flannel-wg; rm -r /run/flannel")
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	check("rebooted")
	stopped(t, n)
	in(t, n.Namespaces, l.Flanneld()+" cleanup")
	if kept := in(t, n.Namespaces, "cat "+file); kept != key {
		t.Error("cleanup has changed the file of the key")
	}
}
