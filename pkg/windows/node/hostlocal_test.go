package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/pkg/windows/hns"
)

// hostLocal runs the real plugin for a pod and returns the address that it gave.
func (n *node) hostLocal(command, id string) (netip.Addr, error) {
	program, err := filepath.Abs("../../../bin/cni/host-local")
	if err != nil {
		return netip.Addr{}, err
	}
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+id, "CNI_IFNAME=eth0", "CNI_NETNS=/none", "CNI_PATH=/none")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"0.4.0","name":"small","ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.2.0/27"}]],"dataDir":%q}}`, n.DataDir))
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err == nil && command == "DEL" {
		return netip.Addr{}, nil
	} else if err != nil {
		return netip.Addr{}, fmt.Errorf("host-local (make tools; on Windows make test-windows): %w: %s", err, out.String())
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || len(result.IPs) != 1 {
		return netip.Addr{}, fmt.Errorf("host-local printed %s, %w", out.String(), err)
	}
	return result.IPs[0].Address.Addr(), nil
}

// Pods and three Ensure ask for addresses at the same time, until the subnet is
// full: each address has one owner, and no pod gets ours.
func TestHostLocal(t *testing.T) {
	n := newNode(t)
	n.make("small", hns.Overlay, "10.244.2.0/27")
	const room = 32 - 2 - 1 - 1 // without the network's and the broadcast address, the gateway's and kube-proxy's
	var mu sync.Mutex
	pods := map[netip.Addr]string{}
	give := func(id string) {
		a, err := n.hostLocal("ADD", id)
		mu.Lock()
		defer mu.Unlock()
		if other, twice := pods[a]; err != nil || twice {
			t.Errorf("%s got %s, which %q has, %v", id, a, other, err)
		}
		pods[a] = id
	}
	var all sync.WaitGroup
	vips := make(chan VIP, 3)
	for i := range 6 {
		all.Go(func() { give(fmt.Sprint("early-", i)) })
		if i < 3 {
			all.Go(func() {
				v, err := n.Ensure(t.Context(), pfx("10.244.2.0/27"))
				if err != nil {
					t.Error(err)
				}
				vips <- v
			})
		}
	}
	all.Wait()
	vip := <-vips
	if second, third := <-vips, <-vips; second != vip || third != vip {
		t.Fatalf("concurrent calls chose %s, %s and %s", vip.Addr, second.Addr, third.Addr)
	}
	for i := range room - len(pods) {
		give(fmt.Sprint("late-", i))
	}
	if id, has := pods[vip.Addr]; has || len(pods) != room {
		t.Errorf("%d pods have addresses; kube-proxy's, %s, has pod %q", len(pods), vip.Addr, id)
	}
	if _, err := n.hostLocal("DEL", "kube-proxy"); err != nil { // a pod with the name, but another interface
		t.Error(err)
	}
	if !strings.Contains(n.holds(), "small/"+vip.Addr.String()+" kube-proxy source-vip") {
		t.Error("host-local deleted the reservation with the one of a pod")
	}
}

// host-local waits while we hold its lock.
func TestHostLocalsLock(t *testing.T) {
	n := newNode(t)
	unlock, err := hostLocal(filepath.Join(n.DataDir, "small")).lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := n.hostLocal("ADD", "pod"); got <- err }()
	select {
	case err := <-got:
		t.Fatalf("host-local did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
