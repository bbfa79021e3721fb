// Package e2e runs flanneld as its users do: several nodes, a real etcd, pods
// created by the CNI plugins, traffic. The environment variable LAB_FLANNELD is
// the path of another flannel-compatible binary to test.
package e2e

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// timeout is how long a test waits for an event that takes milliseconds on an
// idle machine.
const timeout = 5 * time.Minute

// bare creates a lab without a network configuration and without a running
// flanneld. It ends with the test. If the test fails, the logs of all flannelds
// are shown.
func bare(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	o.Flanneld = os.Getenv("LAB_FLANNELD")
	l, err := lab.New(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
				if n.Windows != nil && n.Log() == "" { // what Wine waits for
					out, err := try(context.Background(), n.Namespaces, "head /proc/[0-9]*/cmdline /proc/[0-9]*/wchan /proc/[0-9]*/stack | tr '\\0' ' '")
					t.Logf("processes of %s: %v\n%s", n.Name, err, out)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Error("close the lab:", err)
		}
	})
	return l
}

// prepare creates a lab with a network configuration, in which no flanneld
// runs.
func prepare(t *testing.T, o lab.Options, backend string) *lab.Lab {
	t.Helper()
	l := bare(t, o)
	must(t, l.SetConfig(t.Context(), l.Config(backend)))
	return l
}

// start creates a lab with a network configuration, and starts flanneld on
// every node.
func start(t *testing.T, o lab.Options, backend string, args ...string) *lab.Lab {
	t.Helper()
	l := prepare(t, o, backend)
	must(t, l.StartAll(t.Context(), args...))
	return l
}

func pod(t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(t.Context(), name)
	must(t, err)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPodsOfTwoNodesTalk(t *testing.T) {
	t.Parallel()
	for name, family := range map[string]lab.Family{"IPv4": lab.V4, "dual": lab.Dual, "IPv6": lab.V6} {
		for _, backend := range []string{"vxlan", "host-gw", "wireguard"} {
			t.Run(backend+" "+name, func(t *testing.T) {
				l := start(t, lab.Options{Nodes: 2, Family: family}, `{"Type":"`+backend+`"}`)
				a, b := pair(t, l)
				must(t, reach(t.Context(), a, b))
				must(t, reach(t.Context(), b, a))
				t.Cleanup(noneForged(t, l))
				if family.Has4() {
					talk(t, a, b, a.IP4, b.IP4, lab.Outside4)
				}
				if family.Has6() {
					talk(t, a, b, a.IP6, b.IP6, lab.Outside6)
				}
				inFullSize(t, a, b, podMTU(backend, family))
				must(t, a.Check(t.Context()))
				gone := a.IP()
				must(t, a.Delete(t.Context()))
				if b.Answers(t.Context(), gone) {
					t.Error("a deleted pod answers")
				}
			})
		}
	}
}

// talk checks that two pods reach each other and an address outside of the
// cluster, and can transfer data.
func talk(t *testing.T, a, b *lab.Pod, ofA, ofB, outside netip.Addr) {
	t.Helper()
	ctx := t.Context()
	there, err := a.Reach(ctx, ofB, timeout)
	must(t, err)
	back, err := b.Reach(ctx, ofA, timeout)
	must(t, err)
	moved, err := machine.Transfer(ctx, a.Namespaces, b.Namespaces, ofB, 200*time.Millisecond)
	must(t, err)
	t.Logf("%s reaches %s after %v, and is reached after %v; %.1f Gbit/s", ofA, ofB, there, back, moved.Gbit())
	must(t, a.Ping(ctx, outside))
}
