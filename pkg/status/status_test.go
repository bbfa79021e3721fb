package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
)

var update = flag.Bool("update", false, "update the golden files")

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func sample() Report {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	peer := func(name string, s State, reason string, n int) Peer {
		return Peer{Name: name, State: s, Reason: reason, Subnets: []netip.Prefix{prefix(fmt.Sprintf("10.5.%d.0/24", n))},
			PublicIPs: []netip.Addr{addr(fmt.Sprintf("192.168.64.%d", n))}}
	}
	retained := peer("e", RetainedPeer, "", 8)
	retained.Until = noon.Add(time.Minute)
	a := peer("a", UpToDate, "", 4)
	a.Reach = &Reach{State: Reachable, Via: ViaTunnel, Target: netip.MustParseAddr("10.5.4.0"), Since: noon.Add(-time.Hour),
		Probed: noon.Add(-3 * time.Second), Answered: noon.Add(-3 * time.Second), Heard: noon.Add(-5 * time.Second), RTT: Duration(1234 * time.Microsecond)}
	b := peer("b", Behind, "", 5)
	b.Reach = &Reach{State: Unreachable, Via: ViaUnderlay, Target: netip.MustParseAddr("192.168.64.5"), Since: noon.Add(-90 * time.Second)}
	a.Tunnels = []dataplane.TunnelReport{{Endpoint: netip.MustParseAddrPort("203.0.113.7:40001"), Handshake: noon.Add(-100 * time.Second), Received: 1023, Sent: 5 << 30},
		{Endpoint: netip.MustParseAddrPort("[fd00::4]:51821"), Sent: 1536}}
	return Report{
		Version: "v1.2.3 go1.26", PID: 4711, Store: "etcd", Started: noon.Add(-time.Hour), Since: noon.Add(-time.Minute), PeersKnown: true,
		Problem: "devices: device flannel.1: no\nfirewall: exit status 4", Outage: "etcd does not answer: \x1b[31mred", Advice: "b runs Windows: set Port to 4789",
		OutageSince: noon.Add(-3 * time.Minute), LeaseExpires: noon.Add(23 * time.Hour),
		Node: &Node{Backend: "vxlan", MTU: 1450, IPMasq: true, SubnetFile: "/run/flannel/subnet.env",
			Networks: []Network{{prefix("10.5.0.0/16"), prefix("10.5.3.0/24"), addr("192.168.64.3"), json.RawMessage(`{"VNI":1}`)}},
			Underlay: Underlay{"eth0", 2, 1500, []netip.Addr{addr("192.168.64.3"), addr("fd00::3")}, "tun0"},
			Devices: []Device{{"eth0", 2, 1500, "02:00:00:00:00:01", ""}, {"flannel.1", 7, 1450, "02:00:00:00:00:02", ""},
				{"flannel-wg", 8, 1420, "", "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="}, {"flannel0", 9, 1472, "", ""}},
			LastPass: noon.Add(-time.Second), Took: Duration(1234567), UDPEncap: true},
		Forwarded: &dataplane.Forwarded{Sent: dataplane.Flow{Packets: 3, Bytes: 400}, Received: dataplane.Flow{Packets: 5, Bytes: 600}, Dropped: map[string]uint64{"malformed": 7, "foreign": 0, "expired": 8}},
		Guard:     &dataplane.GuardReport{Waiting: "enforces when 192.0.2.7 is quiet", Packets: map[string]uint64{"spoofed": 3, "inner": 0, "outsider": 1000}},
		Retained:  &Retained{Count: 1, Cause: "mass-withdrawal", Until: retained.Until, Own: true},
		Peers: []Peer{retained, a, b, peer("c", Pending, "", 6),
			peer("d", Rejected, `its VNI is "4096"`, 7), {Name: "key\nof \x1b[2J", State: Rejected, Reason: "no lease"}},
		Errors: []Error{{"dataplane", "set routes: no", 1, noon, noon}, {"firewall", "exit status 4", 12, noon.Add(-time.Minute), noon}},
	}
}

func TestPrint(t *testing.T) {
	many := sample()
	many.Problem, many.Outage, many.Advice, many.Errors, many.Ready = "", "", "", nil, true
	many.OutageSince = time.Time{}
	many.Peers[1].Reach.State = SmallOnly
	for i := range 30 {
		many.Peers = append(many.Peers, Peer{Name: fmt.Sprint("key", i), State: Rejected, Reason: "because"})
	}
	var b bytes.Buffer
	for _, c := range []struct {
		name    string
		report  Report
		options PrintOptions
	}{
		{"not up to date", sample(), PrintOptions{}},
		{"with every peer, and history", sample(), PrintOptions{EveryPeer: true, History: true}},
		{"with every peer, wide", sample(), PrintOptions{EveryPeer: true, Wide: true}},
		{"many rejected peers", many, PrintOptions{}},
		{"starting", Report{Version: "dev", Started: noon, Since: noon, Problem: "waiting for a subnet lease",
			Settings: &Settings{Etcd: &Etcd{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/coreos.com/network"}}}, PrintOptions{}},
		{"with a guard that fails", Report{Version: "dev", Started: noon, Since: noon,
			Guard: &dataplane.GuardReport{Problem: "sets: no\nrules: no", Packets: map[string]uint64{"outsider": 5}}}, PrintOptions{}},
		{"in Kubernetes", Report{Version: "dev", Started: noon, Since: noon, Settings: &Settings{Kube: &Kube{}}}, PrintOptions{}},
	} {
		fmt.Fprintf(&b, "# %s\n", c.name)
		if err := Print(&b, c.report, noon, c.options); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "testdata/print.txt", b.Bytes())
	if strings.ContainsAny(b.String(), "\x1b\r") {
		t.Error("control characters from other nodes are not escaped")
	}
}

// A retained peer may be gone for good: that it does not answer is no problem to look for.
func TestRetainedUnreachable(t *testing.T) {
	r := sample()
	r.Peers = r.Peers[:1]
	r.Peers[0].Reach = &Reach{State: Unreachable, Since: noon}
	got := printed(t, r, PrintOptions{})
	if strings.Contains(got, alarms[Unreachable]) || strings.Contains(got, "doctor") || !strings.Contains(got, "probes    1 unknown\n") {
		t.Error(got)
	}
	if got = printed(t, r, PrintOptions{EveryPeer: true}); !strings.Contains(got, string(Unreachable)) {
		t.Errorf("the table does not say whether the peer may be gone:\n%s", got)
	}
}

// accept-withdrawal gives up retained peers. Without any, it would end the flanneld of a node whose own lease is
// withdrawn; with some, it does both.
func TestAcceptWithdrawalAdvice(t *testing.T) {
	for _, c := range []struct {
		count              int
		own, advised, ends bool
	}{{0, true, false, false}, {1, false, true, false}, {1, true, true, true}} {
		r := sample()
		r.Retained.Count, r.Retained.Own = c.count, c.own
		got := printed(t, r, PrintOptions{})
		if strings.Contains(got, "accept-withdrawal") != c.advised || strings.Contains(got, "ends then") != c.ends {
			t.Errorf("%+v:\n%s", c, got)
		}
	}
}

// printed returns what Print prints at noon.
func printed(t *testing.T, r Report, o PrintOptions) string {
	t.Helper()
	var b strings.Builder
	if err := Print(&b, r, noon, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The table has the handshakes and bytes of tunnels without -o wide, too, if there are
// tunnels that know them.
func TestTableOfTunnels(t *testing.T) {
	for _, c := range []struct {
		tunnels, wide bool
		want          string
	}{
		{false, false, "PEER STATE REACH SUBNET ADDRESS REASON"},
		{true, false, "PEER STATE REACH SUBNET ADDRESS HANDSHAKE RECEIVED SENT REASON"},
		{false, true, "PEER STATE REACH SUBNET ADDRESS VIA ANSWERED ENDPOINT HANDSHAKE RECEIVED SENT REASON"},
		{true, true, "PEER STATE REACH SUBNET ADDRESS VIA ANSWERED ENDPOINT HANDSHAKE RECEIVED SENT REASON"},
	} {
		r := sample()
		if !c.tunnels {
			for i := range r.Peers {
				r.Peers[i].Tunnels = nil
			}
		}
		_, table, _ := strings.Cut(printed(t, r, PrintOptions{EveryPeer: true, Wide: c.wide}), "\n\n")
		head, _, _ := strings.Cut(table, "\n")
		if got := strings.Join(strings.Fields(head), " "); got != c.want {
			t.Errorf("tunnels %t, wide %t: the columns are %s, want %s", c.tunnels, c.wide, got, c.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{`C:\run\new "x"`: `C:\run\new "x"`, "a\nb\x1b[2J\r": `a; b\x1b[2J\r`, `\"`: `\"`, "": ""} {
		if got := Printable(s); got != want {
			t.Errorf("%q is printed as %s, want %s", s, got, want)
		}
	}
}

// TestFormat checks that the format of the JSON document does not change,
// because other programs read it.
func TestFormat(t *testing.T) {
	got, err := json.MarshalIndent(sample(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/report.json", append(got, '\n'))
	var back Report
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	again, _ := json.MarshalIndent(back, "", "  ")
	if d := cmp.Diff(string(got), string(again)); d != "" {
		t.Error(d)
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: run with -update if the change is intended\n%s", path, d)
	}
}

// loggedNoSocket reports whether the log has a warning that there is no socket,
// with an error that contains the names.
func loggedNoSocket(log *logtest.Log, names ...string) bool {
	return len(log.With("cause="+causeNoSocket).Naming("error", names...)) > 0
}

// keep runs Keep until the returned function is called. It returns Keep's log.
func keep(t *testing.T, path string, h http.Handler) (*logtest.Log, func()) {
	t.Helper()
	var log logtest.Log
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Keep(ctx, path, h, log.Logger()) }()
	return &log, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// needSockets skips a test if the system has no unix sockets, such as Wine
// before version 10. TestNoSockets tests that case.
func needSockets(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if withoutSockets(err) {
		t.Skip("no unix sockets here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestNoSockets checks that on a system without unix sockets the daemon logs
// this once, and that clients get the reason.
func TestNoSockets(t *testing.T) {
	if !withoutSockets(&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EAFNOSUPPORT)}) || withoutSockets(nil) || withoutSockets(syscall.ENOENT) {
		t.Error("wrong result of withoutSockets")
	}
	path := filepath.Join(t.TempDir(), "s")
	if err := explain(t.Context(), path, fmt.Errorf("socket: %w", wsaNoFamily)); !errors.Is(err, ErrNoSockets) || errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	if l, err := net.Listen("unix", path); !withoutSockets(err) {
		if err == nil {
			l.Close()
		}
		return // the rest needs a system without unix sockets
	}
	if _, err := Ask(t.Context(), path); !errors.Is(err, ErrNoSockets) || errors.Is(err, ErrNotRunning) {
		t.Errorf("Ask: %v", err)
	}
	log, stop := keep(t, path, http.NotFoundHandler())
	eventually.True(t, "the reason is logged", func() bool { return loggedNoSocket(log, ErrNoSockets.Error()) })
	stop()
	if log.Count() != 1 {
		t.Errorf("logged more than once:\n%s", log)
	}
}

func TestSocket(t *testing.T) {
	needSockets(t)
	t.Parallel() // it waits for Keep, which checks every 2 s
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "sub", "s")
	if _, err := Ask(ctx, path); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no socket: %v", err)
	}
	handler := Handler(reported(sample()), func() []byte { return []byte("a line") }, func() int { return 7 }, http.NotFoundHandler())
	answers := func() bool { r, err := Ask(ctx, path); return err == nil && r.PID == 4711 && len(r.Peers) == 6 }

	_, stop := keep(t, path, handler)
	eventually.True(t, "it answers", answers)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if done, err := Accept(ctx, path); err != nil || done.Dropped != 7 {
		t.Errorf("Accept: %+v, %v", done, err)
	}
	if raw, err := Get(ctx, path, LogPath); err != nil || string(raw) != "a line" {
		t.Errorf("the log: %q, %v", raw, err)
	}
	if raw, err := Get(ctx, path, acceptPath); err != nil || bytes.Contains(raw, []byte("dropped")) {
		t.Errorf("a GET request accepts: %s, %v", raw, err)
	}
	log, stopSecond := keep(t, path, handler)
	eventually.True(t, "a second daemon detects the first", func() bool { return loggedNoSocket(log, errTaken.Error(), path) })
	if !answers() {
		t.Error("the second daemon took the socket of a running one")
	}
	stop()
	eventually.True(t, "the second takes over", answers)
	if n := log.Count(); n != 1 {
		t.Errorf("%d lines:\n%s", n, log)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the socket is created again", answers)
	stopSecond()
	if exists(path) {
		t.Error("the socket was not removed")
	}
}

func TestStaleSocket(t *testing.T) {
	needSockets(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	if _, err := Ask(t.Context(), path); !errors.Is(err, ErrNotRunning) || !logtest.Names(err.Error(), path) {
		t.Errorf("a stale socket: %v", err)
	}
	_, stop := keep(t, path, Handler(reported(sample()), func() []byte { return []byte("a line") }, func() int { return 7 }, http.NotFoundHandler()))
	defer stop()
	eventually.True(t, "the next daemon uses it", func() bool { _, err := Ask(t.Context(), path); return err == nil })
}

// TestNoAnswer checks that a daemon that hangs is distinguished from one that
// has ended: its socket accepts connections, but there is no answer.
func TestNoAnswer(t *testing.T) {
	needSockets(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // nobody answers
	defer cancel()
	if _, err := Ask(ctx, path); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("a daemon that hangs: %v", err)
	}
	log, stop := keep(t, path, http.NotFoundHandler())
	eventually.True(t, "a second daemon does not replace the socket", func() bool { return loggedNoSocket(log, errTaken.Error(), path) })
	stop()
}

func TestListenErrors(t *testing.T) {
	needSockets(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file:                     file,
		filepath.Join(file, "s"): syscall.ENOTDIR.Error(),
		filepath.Join(dir, strings.Repeat("x", 200)): syscall.EINVAL.Error(), // longer than the system's limit for the path of a socket
	} {
		log, stop := keep(t, path, http.NotFoundHandler())
		eventually.True(t, "the reason is logged", func() bool { return loggedNoSocket(log, want) })
		stop()
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("a regular file was removed")
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go http.Serve(l, http.NotFoundHandler()) //nolint:errcheck // it ends with the listener
	if _, err := Ask(t.Context(), filepath.Join(dir, "s")); err == nil || errors.Is(err, fs.ErrPermission) {
		t.Errorf("answer of another program: %v", err)
	}
}
