package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
)

// What the tests of faults have in common. Each ends with unharmed: the kernel is what the store says, and beside that
// a node has what it had before.

// inFull is how long, or how often, a fault is to last: as a real one under `make soak` (SOAK is set), else just
// long enough to be one.
func inFull[T any](brief, full T) T {
	if os.Getenv("SOAK") != "" {
		return full
	}
	return brief
}

// phantom is a node that does not exist; i is below 128. Each generation has another MAC and another address.
func phantom(i, generation int) (string, *value) {
	key, v := ghost(i, generation)
	v.PublicIP = fmt.Sprintf("172.16.%d.%d", generation, i)
	return key, v
}

// storm adds, changes and removes phantoms' leases, so many a second, until the function that it returns is called.
func storm(t *testing.T, l *lab.Lab, rate int) (stop func()) {
	t.Helper()
	c, seed := etcdClient(t, l), rand.Uint64()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	var sent, failed atomic.Int64
	began := time.Now()
	const writers = 4
	for w := range writers {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		done.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				if change(ctx, c, random) != nil {
					failed.Add(1) // etcd is away, too, in some tests
				}
				sent.Add(1)
				time.Sleep(time.Until(began.Add(time.Duration(n) * writers * time.Second / time.Duration(rate))))
			}
		})
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			cancel()
			done.Wait()
			took := time.Since(began)
			t.Logf("a storm of %d changes in %v, %d failed; seed %d", sent.Load(), took.Round(time.Millisecond), failed.Load(), seed)
		})
	}
	t.Cleanup(end)
	return end
}

func change(ctx context.Context, c *clientv3.Client, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	key, v := phantom(1+random.IntN(120), 1+random.IntN(200))
	if random.IntN(3) == 0 {
		_, err := c.Delete(ctx, leasePrefix+key)
		return err
	}
	text, err := json.Marshal(v)
	if err == nil {
		_, err = c.Put(ctx, leasePrefix+key, string(text))
	}
	return err
}

// beside is what a node has beside the entries of its peers: rules, devices, files.
func beside(t *testing.T, n *lab.Node) string {
	t.Helper()
	return shell(t, n.Namespaces, `for f in iptables ip6tables; do $f-save | sed -e '/^#/d' -e 's/\[[0-9:]*\]//' | grep -i flannel || true; done
		nft list tables | grep flannel || true
		ls -A -I 'flanneld.*' /run/flannel; cat /run/flannel/subnet.env
		ls /sys/class/net | grep -v veth
		ip -o addr show scope global | awk '{print $2, $4}' | grep -v cni0 | sort`)
}

// patient are nodes before a fault, to be compared with after it.
type patient struct {
	lab    *lab.Lab
	beside map[*lab.Node]string
	keys   map[*lab.Node]string
}

func healthy(t *testing.T, l *lab.Lab) *patient {
	t.Helper()
	p := &patient{lab: l, beside: map[*lab.Node]string{}, keys: map[*lab.Node]string{}}
	for _, n := range l.Nodes {
		within(t, n.Name+" can be asked", func() error { // its socket is made beside the rest, and again where it vanished
			_, err := n.Run(t.Context(), l.Flanneld(), "status")
			return err
		})
		p.beside[n] = beside(t, n)
		p.keys[n], _ = leaseOf(t, l, n)
	}
	return p
}

// unharmed checks that nothing was lost and nothing is left over: entries, nexthop objects, rules, files, devices,
// leases, processes.
func (p *patient) unharmed(t *testing.T) {
	t.Helper()
	for _, n := range p.lab.Nodes {
		within(t, n.Name+" is in step", func() error { return ready(t, n) })
		inStep(t, p.lab, n)
		want := gateways(entriesOf(t, p.lab, n))
		eventually(t, n.Name+": nexthop objects", want, func(ctx context.Context) (string, error) {
			out, err := try(ctx, n.Namespaces, "ip nexthop show proto 70")
			return gateways(out), err
		})
		within(t, n.Name+" has what it had", func() error {
			if now := beside(t, n); now != p.beside[n] {
				return fmt.Errorf("it had\n%s\nand has\n%s", p.beside[n], now)
			}
			return nil
		})
		if key, _ := leaseOf(t, p.lab, n); key != p.keys[n] {
			t.Errorf("%s had the lease %s and has %s", n.Name, p.keys[n], key)
		}
		within(t, n.Name+" has no processes left over", func() error {
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.PID()))
			for _, thread := range threads {
				if children, _ := os.ReadFile(thread); len(children) > 0 {
					err = fmt.Errorf("flanneld's children are %s", children)
				}
			}
			return err
		})
	}
}

var gateway = regexp.MustCompile(`via (\S+)`)

// gateways are all that a text leads through, sorted.
func gateways(text string) string {
	var all []string
	for _, m := range gateway.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// once checks how often a node's log says something.
func once(t *testing.T, n *lab.Node, mark int, attrs ...string) {
	t.Helper()
	if found := n.Records(mark).With(attrs...); len(found) != 1 {
		t.Errorf("%s has logged %q %d times, want once:\n%s", n.Name, attrs, len(found), found)
	}
}
