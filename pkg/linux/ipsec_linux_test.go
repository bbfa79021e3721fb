package linux

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/nstest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/charon"
	"flannel/pkg/reconcile"
)

var ike = ikeKey{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3"), netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.2.0/24")}

// Only names in exactly flannel's form are those of our connections.
func TestParseIKE(t *testing.T) {
	const name = "192.168.0.2-10.5.1.0/24-10.5.2.0/24-192.168.0.3"
	if key, ok := parseIKE(name); !ok || key != ike || ike.String() != name || ike.child() != "10.5.1.0/24-10.5.2.0/24" {
		t.Errorf("%s is %v, %t; the name is %s, the child's %s", name, key, ok, ike, ike.child())
	}
	for _, other := range []string{"", "vpn", "a-b-c-d", name + "-1", "192.168.0.2-10.5.1.0/24-10.5.2.0-192.168.0.3", "192.168.0.2-10.5.1.0/024-10.5.2.0/24-192.168.0.3"} {
		if key, ok := parseIKE(other); ok {
			t.Errorf("%q is %v", other, key)
		}
	}
}

// What is printed of a connection, also of one that somebody has changed, has neither the secret nor a digest of it.
func TestConnectionIsPrintedWithoutSecret(t *testing.T) {
	const secret = "hunter2-hunter2"
	sum := sha256.Sum256([]byte(secret))
	conn := ikeConn{proposal: "aes256gcm16", secret: conf.NewSecret(secret)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		text := fmt.Sprintf(verb, ikeEntry{Key: ike, Value: conn}) + fmt.Sprintf(verb, conn) + fmt.Sprintf(verb, ipsec{filled: dataplane.IPsec{Secret: conn.secret}})
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), strings.Trim(fmt.Sprint(sum[:8]), "[]"), fmt.Sprintf("%x", sum[:4]), fmt.Sprintf("%#x, %#x", sum[0], sum[1])} {
			if strings.Contains(text, form) {
				t.Errorf("%s prints %q", verb, text)
			}
		}
		if verb != "%x" && !strings.Contains(text, "aes256gcm16") {
			t.Errorf("%s prints no proposal: %q", verb, text)
		}
	}
}

// The names of security associations tell the options by which they were negotiated, but not the secret. Those of others tell
// nothing.
func TestFormerOptions(t *testing.T) {
	conn := ikeConn{proposal: "aes128gcm16", udpEncap: true, secret: conf.NewSecret("1")}
	other := func(change func(*ikeConn)) ikeEntry {
		c := conn
		change(&c)
		return ikeEntry{Key: ike, Value: c}
	}
	for name, test := range map[string]struct {
		of     string
		inUDP  bool
		former bool
	}{
		"the same":      {childOf(ikeEntry{Key: ike, Value: conn}), true, false},
		"proposal":      {childOf(other(func(c *ikeConn) { c.proposal = "aes256gcm16" })), true, true},
		"UDPEncap":      {childOf(other(func(c *ikeConn) { c.udpEncap = false })), false, true},
		"secret":        {childOf(other(func(c *ikeConn) { c.secret = conf.NewSecret("2") })), true, false},
		"flannel":       {ike.child(), true, false},
		"not in UDP":    {ike.child(), false, true},
		"strongSwan":    {"", true, false}, // a version that does not tell
		"another child": {"10.5.1.0/24-10.5.2.0/244-00000000", true, false},
	} {
		state := (&ikeStore{}).observe(ike, []charon.SA{{State: "ESTABLISHED", Pairs: []charon.Pair{{State: "INSTALLED", Child: test.of, UDPEncap: test.inUDP, In: 1, Out: 2}}}}, map[uint32]bool{1: true, 2: true})
		if got := state.hasFormer(ikeEntry{Key: ike, Value: conn}); got != test.former {
			t.Errorf("%s: former options: %t", name, got)
		}
	}
	plain := other(func(c *ikeConn) { c.udpEncap = false })
	if (&ikeState{pairs: []charon.Pair{{Child: childOf(plain)}}}).hasFormer(ikeEntry{Key: ike, Value: unknownConn}) {
		t.Error("of unknown options, there are former ones")
	}
}

// The table takes a connection without keys for one that nobody has changed, if this run has loaded it and the kernel
// lacks none of the keys that charon has.
func TestLapsedConnection(t *testing.T) {
	installed := []charon.SA{{State: "ESTABLISHED", Pairs: []charon.Pair{{State: "INSTALLED", In: 1, Out: 2}}}}
	loaded := ikeConn{id: ike.Local, proposal: "aes256gcm16"}
	k := newIPsec(host{devices: &devices{}, rows: &rows{}}).(*ipsec)
	for name, test := range map[string]struct {
		conn   ikeConn
		sas    []charon.SA
		lapsed bool
	}{
		"no keys":        {loaded, nil, true},
		"keys deleted":   {loaded, installed, false},
		"loaded no more": {ikeConn{}, nil, false},
	} {
		conn := k.ike.listed(ike, test.conn, k.ike.observe(ike, test.sas, nil))
		if got := k.ikes.Lapsed(conn); got != test.lapsed || conn == loaded {
			t.Errorf("%s: listed as %s, lapsed is %t", name, conn, got)
		}
	}
}

// Which node negotiates when: see the table at ikeStore.
func TestWhoNegotiates(t *testing.T) {
	reversed := ikeKey{ike.Remote, ike.Local, ike.RemoteNet, ike.LocalNet}
	installed := []charon.SA{{State: "ESTABLISHED", Pairs: []charon.Pair{{State: "INSTALLED", In: 1, Out: 2}}}}
	synctest.Test(t, func(t *testing.T) {
		s := &ikeStore{}
		observe := func(key ikeKey, sas []charon.SA, spis ...uint32) *ikeState {
			numbers := map[uint32]bool{}
			for _, n := range spis {
				numbers[n] = true
			}
			state := s.observe(key, sas, numbers)
			s.states = map[ikeKey]*ikeState{key: state}
			return state
		}
		if state := observe(ike, nil); state.up || !state.due(ike) {
			t.Errorf("the smaller address, at first: %+v", state)
		}
		s.states = nil
		if state := observe(reversed, nil); state.up || state.due(reversed) {
			t.Errorf("the larger address, at first: %+v", state)
		}
		time.Sleep(pollInterval - 100*time.Millisecond) // the poll before this one was late
		if state := observe(reversed, nil); state.up || !state.due(reversed) {
			t.Errorf("the larger address, later: %+v", state)
		}
		s.states = nil
		for name, sas := range map[string][]charon.SA{"being negotiated": {{State: "CONNECTING"}}, "busy": {{State: "ESTABLISHED", Busy: true}}} {
			if state := observe(reversed, sas); !state.up || state.wasUp {
				t.Errorf("%s: %+v", name, state)
			}
		}
		if state := observe(reversed, installed, 1, 2); !state.up || !state.wasUp || state.lost {
			t.Errorf("installed: %+v", state)
		}
		if state := observe(reversed, installed, 1); state.up || !state.lost || !state.due(reversed) {
			t.Errorf("half of it is not in the kernel: %+v", state)
		}
		state := observe(reversed, nil)
		if state.up || !state.due(reversed) {
			t.Errorf("gone: %+v", state)
		}
		state.retry = time.Now().Add(minIKEDelay)
		if state = observe(reversed, nil); state.due(reversed) {
			t.Errorf("just tried: %+v", state)
		}
		time.Sleep(pollInterval - 100*time.Millisecond)
		if !state.due(reversed) {
			t.Errorf("after the delay: %+v", state)
		}
	})
}

// A charon that ends at once is not waited for. Passes that follow at once have the same error, with what charon printed,
// and do not start it again.
func TestCharonEndsAtOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		started := filepath.Join(dir, "started")
		script := fmt.Sprintf("#!/bin/sh\necho >>%s\necho '00[LIB] no-vici'\necho '00[DMN] initialization failed - aborting charon'\nexit 3\n", started)
		if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		s := &ikeStore{log: slog.New(slog.DiscardHandler), config: filepath.Join(dir, "strongswan.conf"), starts: reconcile.Backoff{First: time.Hour}}
		for range 2 {
			err := s.reach()
			exit, _ := errors.AsType[*exec.ExitError](err)
			if !errors.Is(err, charon.ErrNotRunning) || exit == nil || exit.ExitCode() != 3 || !strings.HasSuffix(err.Error(), " no-vici") {
				t.Errorf("%v", err)
			}
		}
		if text, err := os.ReadFile(started); err != nil || len(text) != 1 {
			t.Errorf("started %d times, %v", len(text), err)
		}
	})
}
