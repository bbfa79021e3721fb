package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/eventually"
)

func TestMain(m *testing.M) {
	Init()
	os.Exit(m.Run())
}

// start creates a lab whose flanneld is a shell script.
func start(t *testing.T, o Options, script string) *Lab {
	t.Helper()
	o.Flanneld = filepath.Join(t.TempDir(), "flanneld")
	must(t, os.WriteFile(o.Flanneld, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	l, err := New(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error("close the lab:", err)
		}
	})
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNodesAreIsolated(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := start(t, Options{Nodes: 3, Subnets: 2, Family: Dual, MTU: 1400}, "")
	for i, n := range l.Nodes {
		name, err := n.Run(ctx, "hostname")
		must(t, err)
		if strings.TrimSpace(name) != n.Name {
			t.Errorf("host name of %s is %s", n.Name, name)
		}
		for _, file := range []string{"/etc/cni/net.d/x", "/run/x", "/var/lib/cni/x", "/run/flannel/x"} {
			must(t, n.WriteFile(file, n.Name))
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s of a node is visible outside", file)
			}
			if got, err := l.Nodes[0].ReadFile(file); err != nil || string(got) != "node1" {
				t.Errorf("%s of node1 is %q %v", file, got, err)
			}
		}
		link, err := n.Run(ctx, "ip", "link", "show", Uplink)
		must(t, err)
		if !strings.Contains(link, "mtu 1400") {
			t.Errorf("the uplink of %s: %s", n.Name, link)
		}
		for _, to := range l.Nodes {
			for _, ip := range []netip.Addr{to.IP4, to.IP6} {
				if _, err := n.Reach(ctx, ip, 5*time.Minute); err != nil { // the first pings may come before the carrier
					t.Error(err)
				}
			}
		}
		if want := i % 2; n.Network != want {
			t.Errorf("%s is on network %d", n.Name, n.Network)
		}
	}
}

func TestDaemon(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l := start(t, Options{Nodes: 1}, `trap 'exit 7' TERM; echo "$@" "$HELLO" $NODE_NAME; while :; do sleep 0.01; done`)
	n := l.Nodes[0]
	if n.Running() {
		t.Error("Running before Start")
	}
	n.Env = []string{"HELLO=hello"}
	must(t, n.Start("-v=4"))
	if err := n.Start(); err == nil {
		t.Error("a second Start succeeded")
	}
	_, err := machine.Until(ctx, 2*time.Minute, func(context.Context) error {
		if !strings.Contains(n.Log(), "-etcd-endpoints="+l.Etcd.Endpoint()) ||
			!strings.Contains(n.Log(), "-v=4 hello node1") {
			return errors.New(n.Log())
		}
		return nil
	})
	must(t, err)
	if code, err := n.Stop(ctx); code != 7 || err != nil {
		t.Errorf("Stop: %d %v", code, err)
	}
	must(t, n.Start())
	must(t, n.Kill())
	if code, err := n.Wait(ctx); code != 128+int(syscall.SIGKILL) || err != nil {
		t.Errorf("Wait after Kill: %d %v", code, err)
	}
	if err := n.Ready(ctx); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("Ready after flanneld ended: %v", err)
	}
	if _, err := n.AddPod(ctx, "a"); err == nil {
		t.Error("AddPod succeeded without subnet.env")
	}
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := start(t, Options{Nodes: 1}, "")
	must(t, l.SetConfig(ctx, "{}"))
	answers := func() bool {
		code, _, err := l.Nodes[0].Get(ctx, l.Etcd.Endpoint()+"/health")
		return err == nil && code == 200
	}
	for name, fault := range map[string][2]func() error{
		"kill":  {l.Etcd.Kill, func() error { return l.Etcd.Start(ctx) }},
		"stop":  {func() error { return l.Etcd.Stop(ctx) }, func() error { return l.Etcd.Start(ctx) }},
		"pause": {l.Etcd.Pause, l.Etcd.Resume},
	} {
		if !answers() {
			t.Fatalf("before %s: etcd does not answer", name)
		}
		must(t, fault[0]())
		if answers() {
			t.Errorf("etcd answers after %s", name)
		}
		must(t, fault[1]())
		if got, err := l.Etcd.list(ctx, "/coreos.com/network/"); got["config"] != "{}" || err != nil {
			t.Errorf("after %s: %v %v", name, got, err)
		}
	}
	c, err := l.Etcd.Client()
	must(t, err)
	old, err := c.Put(ctx, "a", "1")
	must(t, err)
	_, err = c.Put(ctx, "a", "2")
	must(t, err)
	must(t, l.Etcd.Compact(ctx))
	if r := <-c.Watch(ctx, "a", clientv3.WithRev(old.Header.Revision)); r.CompactRevision == 0 {
		t.Error("a watch from before Compact did not fail")
	}
	must(t, l.Etcd.Wipe(ctx))
	if got, err := l.Etcd.list(ctx, "/"); len(got) > 0 || err != nil {
		t.Errorf("after Wipe: %v %v", got, err)
	}
}

func TestFloodCountsLostPings(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := start(t, Options{Nodes: 2}, "")
	a, b := l.Nodes[0], l.Nodes[1]
	pings := func() (n int) { // that the node has sent
		out, err := a.Run(ctx, "sh", "-c", `awk '$1 == "Icmp:" && $0 ~ /OutEchos/ { for (i = 1; i <= NF; i++) if ($i == "OutEchos") f = i } $1 == "Icmp:" { v = $f } END { print v }' /proc/net/snmp`)
		must(t, err)
		_, err = fmt.Sscan(out, &n)
		must(t, err)
		return n
	}
	more := func(n int) { // waits until n more are sent
		was := pings()
		eventually.True(t, fmt.Sprint(n, " pings"), func() bool { return pings() >= was+n })
	}
	f, err := a.Flood(b.IP4, 500)
	must(t, err)
	more(50)
	_, err = l.Infra.Run(ctx, "ip", "link", "set", b.Name, "down")
	must(t, err)
	more(10)
	begin := time.Now()
	time.Sleep(time.Second) // of the outage
	outage := time.Since(begin)
	more(2)
	_, err = l.Infra.Run(ctx, "ip", "link", "set", b.Name, "up")
	must(t, err)
	_, err = a.Reach(ctx, b.IP4, 5*time.Minute) // the first pings may come before the carrier
	must(t, err)
	r, err := f.Stop()
	must(t, err)
	t.Logf("%v, %v at a time; the link was down for %v", r, r.Outage, outage)
	if r.Sent < 50 || r.Lost < 10 || r.Lost >= r.Sent || r.Outage < outage/2 {
		t.Errorf("%+v", r)
	}
	f, err = a.Flood(b.IP4, 500)
	must(t, err)
	more(20)
	if r, err := f.Stop(); r.Lost != 0 || r.Sent < 20 || err != nil {
		t.Errorf("undisturbed: %+v %v", r, err)
	}
}

func TestRunErrorNamesCommand(t *testing.T) {
	t.Parallel()
	l := start(t, Options{Nodes: 1}, "")
	const script, last = "echo first; echo last words >&2; exit 3", "exit status 3: last words"
	_, err := l.Nodes[0].Run(t.Context(), "sh", "-c", script)
	if err == nil || err.Error() != "sh -c "+script+": "+last {
		t.Errorf("%v", err)
	}
	begin := time.Now()
	for range 20 {
		_, err := l.Nodes[0].Run(t.Context(), "true")
		must(t, err)
	}
	t.Logf("%v for a command", time.Since(begin)/20)
}

// A pod whose ADD fails leaves neither an address of host-local nor a network namespace, nor an open file of it.
func TestFailedPodLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := start(t, Options{Nodes: 1}, "")
	n := l.Nodes[0]
	must(t, n.WriteFile("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"))
	const config, given = "/etc/cni/net.d/00-test.conflist", "/var/lib/cni/networks/test"
	chain := func(sysctl string) { // the second plugin fails if there is no such sysctl, after the first one has an address
		must(t, n.WriteFile(config, `{"cniVersion": "0.3.1", "name": "test", "plugins": [
			{"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.5.1.0/24"}},
			{"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.`+sysctl+`": "1"}}]}`))
	}
	chain("absent")
	if p, err := n.AddPod(ctx, "a"); err == nil {
		t.Fatalf("ADD succeeded: %v", p)
	}
	left, err := n.Run(ctx, "sh", "-c", "ls "+given+" | grep 10.5.1; ls /run/netns")
	must(t, err)
	if left != "" {
		t.Errorf("left: %s", left)
	}
	must(t, n.WriteFile(config, `{"cniVersion": "0.3.1", "name": "test", "plugins": [{"type": "absent"}]}`)) // DEL fails, too
	if p, err := n.AddPod(ctx, "a"); err == nil {
		t.Fatalf("ADD succeeded: %v", p)
	}
	chain("arp_notify")
	p, err := n.AddPod(ctx, "a")
	must(t, err)
	must(t, p.Delete(ctx))
}
