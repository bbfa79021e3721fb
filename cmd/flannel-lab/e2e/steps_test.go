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
	"flannel/pkg/logtest"
)

// within waits until f succeeds, says how long that took, and fails the test when it never does.
func within(t *testing.T, what string, f func() error) time.Duration {
	t.Helper()
	return withinOf(t, patience, what, f)
}

func withinOf(t *testing.T, limit time.Duration, what string, f func() error) time.Duration {
	t.Helper()
	took, err := machine.Until(t.Context(), limit, func(context.Context) error {
		err := f()
		if err != nil {
			time.Sleep(5 * time.Millisecond) // what is asked costs more than the answer
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s after %v", what, took.Round(time.Millisecond))
	return took
}

// in runs a shell script on a node, and returns what it wrote.
func in(t *testing.T, n machine.Namespaces, script string) string {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-ec", script)
	must(t, err)
	return out
}

// says checks that a command's output holds a text.
func says(t *testing.T, n *lab.Node, text string, command ...string) error {
	out, err := n.Run(t.Context(), command...)
	if err == nil && !strings.Contains(out, text) {
		err = fmt.Errorf("%s says %q, without %q", strings.Join(command, " "), out, text)
	}
	return err
}

// silent is says turned round.
func silent(t *testing.T, n *lab.Node, text string, command ...string) error {
	out, err := n.Run(t.Context(), command...)
	if err == nil && strings.Contains(out, text) {
		err = fmt.Errorf("%s says %q", strings.Join(command, " "), out)
	}
	return err
}

// logged waits until a node's flanneld has logged records with all of the attributes, each given as key=value, after a
// mark (a length of its log), and returns them.
func logged(t *testing.T, n *lab.Node, mark int, attrs ...string) (found logtest.Records) {
	t.Helper()
	within(t, fmt.Sprintf("%q is logged", attrs), func() error {
		if found = n.Records(mark).With(attrs...); len(found) == 0 {
			return fmt.Errorf("the log says:\n%s", n.Log()[mark:])
		}
		return nil
	})
	return found
}

// loggedNaming is logged for records whose value at a key names the parts.
func loggedNaming(t *testing.T, n *lab.Node, mark int, cause, key string, parts ...string) {
	t.Helper()
	within(t, fmt.Sprintf("%s is logged with %q", cause, parts), func() error {
		if len(n.Records(mark).With("cause="+cause).Naming(key, parts...)) == 0 {
			return fmt.Errorf("the log says:\n%s", n.Log()[mark:])
		}
		return nil
	})
}

// ready tells whether /readyz says ok.
func ready(t *testing.T, n *lab.Node) error {
	code, body, err := n.Ask(t.Context(), "/readyz")
	if err == nil && code != 200 {
		err = fmt.Errorf("/readyz: %d %s", code, body)
	}
	return err
}

// unready tells whether /readyz says 503 and names something.
func unready(t *testing.T, n *lab.Node, names ...string) error {
	code, body, err := n.Ask(t.Context(), "/readyz")
	if err == nil && (code != 503 || !logtest.Names(body, names...)) {
		err = fmt.Errorf("/readyz: %d %q, want 503 with %q", code, body, names)
	}
	return err
}

// ends waits until flanneld ends, and checks its exit status.
func ends(t *testing.T, n *lab.Node, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	code, err := n.Wait(ctx)
	must(t, err)
	t.Logf("%s: flanneld ended with %d after %v", n.Name, code, time.Since(began).Round(time.Millisecond))
	if code != want {
		t.Errorf("flanneld ended with %d, want %d", code, want)
	}
}

// stopped sends SIGTERM and checks that flanneld ends well. How long it took is in the test's log: the 2 s that the
// documentation promises, but for what a busy machine takes.
func stopped(t *testing.T, n *lab.Node) {
	t.Helper()
	must(t, n.Signal(syscall.SIGTERM))
	ends(t, n, 0)
}

// unlost floods an address with pings, 200 a second; the function that it returns stops and allows no loss.
func unlost(t *testing.T, from *lab.Pod, to netip.Addr) (stop func()) {
	t.Helper()
	f, err := from.Flood(to, 200)
	must(t, err)
	return func() {
		t.Helper()
		r, err := f.Stop()
		must(t, err)
		t.Logf("%s to %s: %v", from.IP(), to, r)
		if r.Lost > 0 {
			t.Errorf("%s to %s: %v, an outage of %v", from.IP(), to, r, r.Outage)
		}
	}
}

// reaches waits until a pod gets an answer.
func reaches(t *testing.T, what string, from *lab.Pod, to netip.Addr) {
	t.Helper()
	took, err := from.Reach(t.Context(), to, patience)
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

// keyOf finds a node's lease by its address on the underlay; the key is without the prefix.
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

// address is the first address of the subnet that a lease's key names: that of its owner's tunnel device.
func address(t *testing.T, key string) netip.Addr {
	t.Helper()
	text, _, _ := strings.Cut(key, "-")
	a, err := netip.ParseAddr(text)
	must(t, err)
	return a
}
