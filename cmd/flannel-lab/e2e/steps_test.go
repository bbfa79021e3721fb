package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/logtest"
	"flannel/pkg/status"
)

// within waits until f returns nil, logs how long that took, and fails the test
// after timeout.
func within(t *testing.T, what string, f func() error) time.Duration {
	t.Helper()
	return withinOf(t, timeout, what, f)
}

func withinOf(t *testing.T, limit time.Duration, what string, f func() error) time.Duration {
	t.Helper()
	took, err := machine.Until(t.Context(), limit, func(context.Context) error {
		err := f()
		if err != nil {
			time.Sleep(5 * time.Millisecond) // f costs more than waiting
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s after %v", what, took.Round(time.Millisecond))
	return took
}

// in runs a shell script and returns its output.
func in(t *testing.T, n machine.Namespaces, script string) string {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-ec", script)
	must(t, err)
	return out
}

// says returns an error unless the output of a command contains a text.
func says(t *testing.T, n *lab.Node, text string, command ...string) error {
	out, err := n.Run(t.Context(), command...)
	if err == nil && !strings.Contains(out, text) {
		err = fmt.Errorf("output of %s is %q, without %q", strings.Join(command, " "), out, text)
	}
	return err
}

// silent returns an error if the output of a command contains a text.
func silent(t *testing.T, n *lab.Node, text string, command ...string) error {
	out, err := n.Run(t.Context(), command...)
	if err == nil && strings.Contains(out, text) {
		err = fmt.Errorf("output of %s is %q", strings.Join(command, " "), out)
	}
	return err
}

// logged waits until flanneld on a node has logged records with all of the
// attributes, given as key=value. It considers and returns records after mark,
// which is a length of the log.
func logged(t *testing.T, n *lab.Node, mark int, attrs ...string) (found logtest.Records) {
	t.Helper()
	within(t, fmt.Sprintf("%q is logged", attrs), func() error {
		if found = n.Records(mark).With(attrs...); len(found) == 0 {
			return fmt.Errorf("the log is:\n%s", n.Log()[mark:])
		}
		return nil
	})
	return found
}

// once waits until flanneld on a node has logged a record with all of the
// attributes, see logged, and fails if there are more.
func once(t *testing.T, n *lab.Node, mark int, attrs ...string) {
	t.Helper()
	if found := logged(t, n, mark, attrs...); len(found) > 1 {
		t.Errorf("%s has logged %q %d times, want once:\n%s", n.Name, attrs, len(found), found)
	}
}

// loggedNaming waits for a record with a cause whose value of a key contains
// the parts.
func loggedNaming(t *testing.T, n *lab.Node, mark int, cause, key string, parts ...string) {
	t.Helper()
	within(t, fmt.Sprintf("%s is logged with %q", cause, parts), func() error {
		if len(n.Records(mark).With("cause="+cause).Naming(key, parts...)) == 0 {
			return fmt.Errorf("the log is:\n%s", n.Log()[mark:])
		}
		return nil
	})
}

// ready returns an error unless /readyz answers 200.
func ready(t *testing.T, n *lab.Node) error {
	code, body, err := n.Ask(t.Context(), "/readyz")
	if err == nil && code != 200 {
		err = fmt.Errorf("/readyz: %d %s", code, body)
	}
	return err
}

// becomesReady waits until /readyz answers 200. A test has no other way to say
// that a node is ready: a node is not for the moments in which it publishes its
// lease again or compares after a change.
func becomesReady(t *testing.T, n *lab.Node) {
	t.Helper()
	within(t, n.Name+" is ready", func() error { return ready(t, n) })
}

// hasPeers waits until a node counts peers: the pass that has made their entries is
// over. The kernel also shows what a pass has done so far.
func hasPeers(t *testing.T, n *lab.Node, count int) {
	t.Helper()
	within(t, fmt.Sprintf("%s has %d peers", n.Name, count), func() error { return has(t, n, fmt.Sprintf("flanneld_peers %d", count)) })
}

// acquainted waits until each running node has a path to each other one. Before that, their
// guards count, or drop, each other's probes: a node that joins sends some before its peers
// have read its lease.
func acquainted(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Nodes {
		if n.Windows != nil || !n.Running() {
			continue
		}
		within(t, n.Name+" knows the other nodes", func() error {
			r, err := reportOf(t, n)
			for _, other := range l.Nodes {
				known := func(p status.Peer) bool { return p.State == status.UpToDate && isOf(p, other) }
				if other != n && other.Running() && !slices.ContainsFunc(r.Peers, known) {
					err = errors.Join(err, fmt.Errorf("not %s: %+v", other.Name, r.Peers))
				}
			}
			return err
		})
	}
}

// envHas waits until a variable of a node's subnet file has a value. A pass writes the
// file last.
func envHas(t *testing.T, n *lab.Node, name, want string) {
	t.Helper()
	within(t, fmt.Sprintf("subnet.env of %s has %s=%s", n.Name, name, want), func() error {
		env, err := n.SubnetEnv()
		if err == nil && env[name] != want {
			err = fmt.Errorf("it has %v", env)
		}
		return err
	})
}

// unready returns an error unless /readyz answers 503 and the body contains the
// names.
func unready(t *testing.T, n *lab.Node, names ...string) error {
	code, body, err := n.Ask(t.Context(), "/readyz")
	if err == nil && (code != 503 || !logtest.Names(body, names...)) {
		err = fmt.Errorf("/readyz: %d %q, want 503 with %q", code, body, names)
	}
	return err
}

// ends waits until flanneld has ended, and checks its exit status.
func ends(t *testing.T, n *lab.Node, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	began := time.Now()
	code, err := n.Wait(ctx)
	must(t, err)
	t.Logf("%s: flanneld exited with status %d after %v", n.Name, code, time.Since(began).Round(time.Millisecond))
	if code != want {
		t.Errorf("exit status of flanneld is %d, want %d", code, want)
	}
}

// stopped sends SIGTERM and checks that flanneld exits with status 0. It logs
// the time, which the documentation limits to 2 s, but does not check it,
// because the machine may be busy.
func stopped(t *testing.T, n *lab.Node) {
	t.Helper()
	must(t, n.Signal(syscall.SIGTERM))
	ends(t, n, 0)
}

// expectNoLoss pings an address 200 times a second. The function that it
// returns stops this and fails the test if a ping was lost.
func expectNoLoss(t *testing.T, from *lab.Pod, to netip.Addr) (stop func()) {
	t.Helper()
	f, err := from.Flood(to, 200)
	must(t, err)
	return func() {
		t.Helper()
		r, err := f.Stop()
		must(t, err)
		t.Logf("%s to %s: %v", from.IP(), to, r)
		if r.Lost > 0 {
			t.Errorf("%s to %s: %v, longest outage %v", from.IP(), to, r, r.Outage)
		}
	}
}

// reaches waits until an address answers a pod.
func reaches(t *testing.T, what string, from *lab.Pod, to netip.Addr) {
	t.Helper()
	took, err := from.Reach(t.Context(), to, timeout)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %s reaches %s after %v", what, from.IP(), to, took.Round(time.Millisecond))
}

func etcdClient(t *testing.T, l *lab.Lab) *clientv3.Client {
	t.Helper()
	c, err := l.Etcd.Client()
	must(t, err)
	return c
}

const subnetKeys = "/coreos.com/network/subnets/"

// keyOf returns the lease with the underlay address of a node. The key is
// without the prefix.
func keyOf(t *testing.T, l *lab.Lab, n *lab.Node) (key, value string, err error) {
	leases, err := l.Leases(t.Context())
	if err != nil {
		return "", "", err
	}
	for _, key := range slices.Sorted(maps.Keys(leases)) {
		if strings.Contains(leases[key], `"`+n.IP4.String()+`"`) {
			return key, leases[key], nil
		}
	}
	return "", "", errors.New("no lease has the address " + n.IP4.String())
}

func leaseOf(t *testing.T, l *lab.Lab, n *lab.Node) (key, value string) {
	t.Helper()
	key, value, err := keyOf(t, l, n)
	must(t, err)
	return key, value
}

// address returns the base address of the subnet in the key of a lease, which
// is that of the owner's tunnel device.
func address(t *testing.T, key string) netip.Addr {
	t.Helper()
	text, _, _ := strings.Cut(key, "-")
	a, err := netip.ParseAddr(text)
	must(t, err)
	return a
}
