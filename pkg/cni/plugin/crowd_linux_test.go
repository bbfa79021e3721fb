package plugin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
)

const crowdList = `{"name":"cbr0","cniVersion":"1.1.0","plugins":[
	{"type":"flannel","subnetFile":"DIR/subnet.env","dataDir":"DIR/saved","ipam":{"dataDir":"DIR/leases"},"delegate":{"hairpinMode":true,"isDefaultGateway":true}},
	{"type":"portmap","capabilities":{"portMappings":true}}]}`

// A hundred pods are added and deleted concurrently. For every second pod the
// plugin is killed, as a runtime does after its timeout: during ADD, while the
// delegate keeps running, or during DEL. The runtime calls DEL after a failed ADD,
// and retries a failed DEL. Nothing may remain.
func TestCrowd(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t, envText)
		m.configure(crowdList, "")
		const pods = 100
		for i := range pods + 1 {
			m.makeNetns(fmt.Sprint("pod", i))
		}
		// portmap creates its chains for the first pod, and fails if another portmap does so at the same time.
		if _, _, err := m.addAndDelete(pods); err != nil {
			t.Fatal(err)
		}
		killed := 0
		for killed < pods/5 && !t.Failed() { // fewer test nothing; on a busy machine, most commands may end before they are killed
			var wg sync.WaitGroup
			var mu sync.Mutex
			given := map[netip.Prefix]int{}
			for i := range pods {
				wg.Go(func() {
					addr, kills, err := m.addAndDelete(i)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("pod %d: %v", i, err)
					}
					if killed += kills; addr.IsValid() {
						given[addr]++
					}
				})
			}
			wg.Wait()
			t.Logf("%d pods, %d commands killed so far, %d addresses", pods, killed, len(given))
		}
		if left := m.leftovers(); len(left) > 0 {
			t.Errorf("remaining: %v", left)
		}
		for i := range pods + 1 {
			m.deleteNetns(fmt.Sprint("pod", i))
		}
	})
}

// addAndDelete adds and deletes a pod.
func (m *machine) addAndDelete(i int) (addr netip.Prefix, kills int, err error) {
	rt := m.runtime(fmt.Sprint("pod", i))
	rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8000 + i, "containerPort": 80, "protocol": "tcp"}}}
	ctx, cancel := context.WithCancel(m.Context())
	if i%4 == 1 {
		go m.killDuring(ctx, rt.ContainerID, true, cancel)
	}
	got, err := m.add(ctx, rt)
	if ctx.Err() != nil && err != nil {
		kills++
	} else if err != nil {
		cancel()
		return addr, kills, fmt.Errorf("ADD: %w", err)
	} else {
		addr = got[0]
	}
	cancel()
	ctx, cancel = context.WithCancel(m.Context())
	defer cancel()
	if i%4 == 3 {
		go m.killDuring(ctx, rt.ContainerID, false, cancel)
	}
	err = m.cni.DelNetworkList(ctx, m.list, rt)
	if ctx.Err() != nil && err != nil {
		kills++
		err = m.cni.DelNetworkList(m.Context(), m.list, rt)
	}
	if err != nil {
		err = fmt.Errorf("DEL: %w", err)
	}
	return addr, kills, err
}

// killDuring kills the plugin after a random time; in most ADDs after the
// configuration was saved, while the delegate runs.
func (m *machine) killDuring(ctx context.Context, pod string, adding bool, kill context.CancelFunc) {
	for adding && rand.IntN(4) > 0 && ctx.Err() == nil {
		if _, err := os.Stat(filepath.Join(m.dir, "saved", pod)); err == nil {
			break
		}
		time.Sleep(time.Millisecond) // of the wait that ctx ends
	}
	time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // to kill it at any moment
	kill()
}

// DEL and another ADD wait for the delegate of an ADD whose plugin was killed.
func TestDelWaitsForAnOrphan(t *testing.T) {
	n := newNode(t)
	n.write("bin/ADD.hang", "")
	cmd := n.command("ADD", "pod1", "eth0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the delegate is called", func() bool { return strings.HasPrefix(n.read("bin/calls"), "ADD pod1 eth0 ") })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the error is that it was killed
	del := n.start("DEL", "pod1", "eth0")
	again := n.start("ADD", "pod1", "eth0")
	time.Sleep(200 * time.Millisecond) // in which neither may call the delegate
	if calls := n.read("bin/calls"); strings.Count(calls, "\n") != 1 {
		t.Errorf("the delegate was called while an earlier call was running:\n%s", calls)
	}
	if err := os.Remove(n.path("bin/ADD.hang")); err != nil {
		t.Fatal(err)
	}
	for _, s := range []output{del(), again()} {
		if s.err != nil {
			t.Error(s.err)
		}
	}
}
