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

// Helpers of tests that inject faults. Each test ends with baseline.check: the
// entries match the leases, and everything else on the nodes is as before.

// inFull returns the duration or number of a fault: full under `make soak`
// (SOAK is set), else brief.
func inFull[T any](brief, full T) T {
	if os.Getenv("SOAK") != "" {
		return full
	}
	return brief
}

// fakePeer returns the lease of a node that does not exist. i must be below
// 128. Each generation has another MAC and another address.
func fakePeer(i, generation int) (string, *value) {
	key, v := fakeLease(i, generation)
	v.PublicIP = fmt.Sprintf("172.16.%d.%d", generation, i)
	return key, v
}

// storm adds, changes and removes leases of fake peers, rate per second, until
// stop is called.
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
					failed.Add(1) // in some tests etcd is down
				}
				sent.Add(1)
				time.Sleep(time.Until(began.Add(time.Duration(n) * writers * time.Second / time.Duration(rate)))) // for the rate of changes
			}
		})
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			cancel()
			done.Wait()
			took := time.Since(began)
			t.Logf("a storm of %d changes in %v, %d failed; seed %d", sent.Load(), took.Round(time.Millisecond),
				failed.Load(), seed)
		})
	}
	t.Cleanup(end)
	return end
}

func change(ctx context.Context, c *clientv3.Client, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the store may be away, and the next change is another
	defer cancel()
	key, v := fakePeer(1+random.IntN(120), 1+random.IntN(200))
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

// otherState returns, as text, the state of a node apart from the entries of
// its peers: rules, devices, files.
func otherState(t *testing.T, n *lab.Node) string {
	t.Helper()
	return shell(t, n.Namespaces, `for f in iptables ip6tables; do $f-save | sed -e '/^#/d' -e 's/\[[0-9:]*\]//' | grep -i flannel || true; done
		nft list tables | grep flannel || true
		ls -A -I 'flanneld.*' /run/flannel; cat /run/flannel/subnet.env
		ls /sys/class/net | grep -v veth
		ip -o addr show scope global | awk '{print $2, $4}' | grep -v cni0 | sort`)
}

// baseline is the state of all nodes before a fault.
type baseline struct {
	lab   *lab.Lab
	other map[*lab.Node]string
	keys  map[*lab.Node]string
}

func newBaseline(t *testing.T, l *lab.Lab) *baseline {
	t.Helper()
	p := &baseline{lab: l, other: map[*lab.Node]string{}, keys: map[*lab.Node]string{}}
	for _, n := range l.Nodes {
		within(t, n.Name+" answers", func() error { // its status socket is created asynchronously
			_, err := n.Run(t.Context(), l.Flanneld(), "status")
			return err
		})
		p.other[n] = otherState(t, n)
		p.keys[n], _ = leaseOf(t, l, n)
	}
	return p
}

// check waits until all nodes are synced, and checks that nothing was lost and
// nothing is left over: entries, nexthop objects, rules, files, devices,
// leases, processes.
func (p *baseline) check(t *testing.T) {
	t.Helper()
	for _, n := range p.lab.Nodes {
		becomesReady(t, n)
		waitSynced(t, p.lab, n)
		within(t, n.Name+": nexthop objects", func() error { // see checkSynced
			out, err := try(t.Context(), n.Namespaces, "ip nexthop show proto 70")
			if got, want := gateways(out), gateways(entriesOf(t, p.lab, n)); err == nil && got != want {
				err = fmt.Errorf("got\n%s\nwant\n%s", got, want)
			}
			return err
		})
		within(t, n.Name+" has its former state", func() error {
			if after := otherState(t, n); after != p.other[n] {
				return fmt.Errorf("the state was\n%s\nand is\n%s", p.other[n], after)
			}
			return nil
		})
		if key, _ := leaseOf(t, p.lab, n); key != p.keys[n] {
			t.Errorf("the lease of %s was %s and is %s", n.Name, p.keys[n], key)
		}
		within(t, n.Name+" has no child processes", func() error {
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.PID()))
			for _, thread := range threads {
				if children, _ := os.ReadFile(thread); len(children) > 0 {
					err = fmt.Errorf("children of flanneld: %s", children)
				}
			}
			return err
		})
	}
}

var gateway = regexp.MustCompile(`via (\S+)`)

// gateways returns all gateways in a text, sorted.
func gateways(text string) string {
	var all []string
	for _, m := range gateway.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
