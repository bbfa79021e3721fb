package linux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/internal/test/nstest"
	"flannel/internal/test/vicitest"
	"flannel/pkg/conf"
	"flannel/pkg/linux/charon"
	"flannel/pkg/reconcile"
)

// viciServer stands for charon: it keeps connections and secrets, and shows one IKE security association, which stays.
type viciServer struct {
	mu      sync.Mutex
	conns   map[string][]byte // by name, as they were loaded
	secrets map[string][]byte
	count   map[string]int // commands by name
	keys    bool           // the IKE SA has a CHILD_SA with the SPIs 1 and 2
	silent  string         // the next command of this name is carried out, and its connection ends without an answer
	refused string         // the next command of this name is refused
}

// answer answers a packet of charon.Client.
func (s *viciServer) answer(kind byte, name string, message []byte) (packets []string, ends bool) {
	if kind != 0 {
		return []string{"\x05"}, false // EVENT_CONFIRM, to a registration
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[name]++
	if s.refused == name {
		s.refused = ""
		return []string{"\x01\x03\x07success\x00\x02no"}, false
	}
	answer := "\x01" // CMD_RESPONSE
	switch name {
	case "load-conn": // a section, which begins with 1, and its name
		s.conns[string(message[2:2+message[1]])] = message
	case "load-shared":
		s.secrets[viciValue(message, "id")] = message
	case "unload-conn":
		delete(s.conns, viciValue(message, "name"))
	case "unload-shared":
		delete(s.secrets, viciValue(message, "id"))
	case "get-conns":
		answer += viciList("conns", s.conns)
	case "get-shared":
		answer += viciList("keys", s.secrets)
	case "list-sas":
		sa, child := ike.String(), ""
		if s.keys {
			child = "\x01\x09child-sas" + "\x01\x01c" + "\x03\x05state\x00\x09INSTALLED" + "\x03\x06spi-in\x00\x011" + "\x03\x07spi-out\x00\x012" + "\x02\x02"
		}
		packets = []string{"\x07\x07list-sa" + "\x01" + string(rune(len(sa))) + sa + "\x03\x08uniqueid\x00\x011" + "\x03\x05state\x00\x0bESTABLISHED" + child + "\x02"}
	}
	if s.silent == name {
		s.silent = ""
		return nil, true
	}
	return append(packets, answer), false
}

// viciValue returns the value of a key: a byte 3, the key after its length, and the value after its length of two bytes.
func viciValue(message []byte, key string) string {
	_, after, _ := strings.Cut(string(message), "\x03"+string(rune(len(key)))+key)
	return after[2 : 2+binary.BigEndian.Uint16([]byte(after))]
}

// viciList returns a message with a list of names.
func viciList(name string, of map[string][]byte) string {
	m := append([]byte{4, byte(len(name))}, name...)
	for _, item := range slices.Sorted(maps.Keys(of)) {
		m = append(binary.BigEndian.AppendUint16(append(m, 5), uint16(len(item))), item...)
	}
	return string(append(m, 6))
}

// set sets silent and refused.
func (s *viciServer) set(silent, refused string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.refused = silent, refused
}

// has reports whether the server has a content of the connection ike, and returns the numbers of commands that have loaded
// the connection and ended its security association.
func (s *viciServer) has(e ikeEntry) (has bool, loads, ends int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := connectionOf(e)
	return bytes.Contains(s.conns[conn.Name], []byte(conn.Child)) && bytes.Contains(s.secrets[conn.Name], []byte(e.Value.secret.Reveal())),
		s.count["load-conn"], s.count["terminate"]
}

// newIKETable returns the table of connections, and its store. server is the charon that the store talks to. newIKETable
// sets the server's maps. spis is that of ikeStore.
func newIKETable(t *testing.T, server *viciServer, spis func() (map[uint32]bool, error)) (*ikeStore, *reconcile.Table[ikeKey, ikeConn]) {
	server.conns, server.secrets, server.count = map[string][]byte{}, map[string][]byte{}, map[string]int{}
	vicitest.Serve(t, charon.Socket, server.answer)
	var ours scopePointer
	ours.Store(&scope{networks: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}})
	always := func() bool { return true }
	store := &ikeStore{log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), scope: &ours, replaced: map[ikeKey]bool{}, used: always, needed: always,
		notify: func() {}, spis: spis}
	t.Cleanup(store.disconnect)
	table := reconcile.NewTable[ikeKey, ikeConn](store)
	table.Lapsed = ikeConn.lapsed
	return store, table
}

// A connection of which nobody knows whether charon has loaded it is loaded again, also if the former options are wanted
// again, and what may have been negotiated by the others ends. One that charon has refused is not. If nobody knows whether
// charon has unloaded a connection, its keys end, also if it is wanted again.
func TestLoadWithoutAnswer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		server := &viciServer{}
		store, table := newIKETable(t, server, func() (map[uint32]bool, error) { return nil, nil })
		entry := func(udpEncap bool, secret string) ikeEntry {
			return ikeEntry{Key: ike, Value: ikeConn{id: ike.Local, proposal: "aes128gcm16", udpEncap: udpEncap, secret: conf.NewSecret(secret)}}
		}
		// pass makes the table want this content.
		pass := func(e ikeEntry) error {
			table.Want(e.Key, e.Value)
			table.Relist() // as each poll does
			_, err := table.Add(context.Background())
			return err
		}
		former := entry(false, "former-secret")
		for name, test := range map[string]struct {
			other           ikeEntry
			silent, refused string
			again           bool // it is loaded again, and its keys end
		}{
			"the connection":                      {entry(true, "former-secret"), "load-conn", "", true},
			"its secret":                          {entry(false, "other-secret"), "load-shared", "", true},
			"other options and another secret":    {entry(true, "other-secret"), "load-shared", "", true},
			"a refused secret":                    {entry(true, "other-secret"), "", "load-shared", true},
			"a refused connection is not unknown": {entry(true, "other-secret"), "", "load-conn", false},
		} {
			if err := pass(former); err != nil {
				t.Fatalf("%s: at first: %v", name, err)
			}
			server.set(test.silent, test.refused)
			if pass(test.other) == nil {
				t.Errorf("%s: the other content: no error", name)
			}
			_, loadsBefore, endsBefore := server.has(former)
			if err := pass(former); err != nil {
				t.Errorf("%s: the former content again: %v", name, err)
			}
			has, loads, ends := server.has(former)
			if !has || loads-loadsBefore > 0 != test.again {
				t.Errorf("%s: charon has the former content: %t, after %d more loads", name, has, loads-loadsBefore)
			}
			if ends-endsBefore > 0 != test.again {
				t.Errorf("%s: what may be of the other content was ended %d times", name, ends-endsBefore)
			}
		}

		for _, silent := range []string{"unload-conn", "unload-shared", "terminate"} {
			for _, again := range []bool{true, false} {
				if err := pass(former); err != nil {
					t.Fatalf("%s: at first: %v", silent, err)
				}
				server.set(silent, "")
				table.Drop(ike)
				if _, err := table.Prune(context.Background()); err == nil {
					t.Errorf("%s: no error", silent)
				}
				_, _, endsBefore := server.has(former)
				if again {
					if err := pass(entry(false, "other-secret")); err != nil {
						t.Errorf("%s: another secret: %v", silent, err)
					}
				} else {
					table.Relist()
					_, err1 := table.Add(context.Background())
					_, err2 := table.Prune(context.Background())
					if err := errors.Join(err1, err2); err != nil {
						t.Errorf("%s: again: %v", silent, err)
					}
				}
				if _, _, ends := server.has(former); ends == endsBefore {
					t.Errorf("%s, wanted again: %t: the keys stay", silent, again)
				}
				if len(store.replaced) != 0 {
					t.Errorf("%s, wanted again: %t: to end: %v", silent, again, store.replaced)
				}
			}
		}
	})
}

// charon is told to replace keys that somebody has deleted from the kernel, as often as it takes. That is one repair, when
// charon has accepted it.
func TestDeletedKeysAreOneRepair(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		server := &viciServer{keys: true}
		var kernel map[uint32]bool
		store, table := newIKETable(t, server, func() (map[uint32]bool, error) { return kernel, nil })
		table.Want(ike, ikeConn{id: ike.Local, proposal: "aes128gcm16", secret: conf.NewSecret("a-secret")})
		rekeys := func() int {
			server.mu.Lock()
			defer server.mu.Unlock()
			return server.count["rekey"]
		}
		both := map[uint32]bool{1: true, 2: true}
		for _, pass := range []struct {
			name            string
			kernel          map[uint32]bool
			refused         string // see viciServer
			rekeys, repairs int
		}{
			{"at first", nil, "", 0, 0},
			{"negotiated", both, "", 0, 0},
			{"deleted, and charon refuses", nil, "rekey", 1, 0},
			{"charon accepts", nil, "", 1, 1},
			{"not replaced", nil, "", 1, 0},
			{"replaced", both, "", 0, 0},
			{"deleted again", nil, "", 1, 1},
		} {
			kernel = pass.kernel
			if state, known := store.states[ike]; known {
				state.retry = time.Time{} // the delay is over
			}
			server.set("", pass.refused)
			before := rekeys()
			table.Relist()
			if _, err := table.Add(context.Background()); (err != nil) != (pass.refused != "") {
				t.Fatalf("%s: %v", pass.name, err)
			}
			if n, repairs := rekeys()-before, table.TakeRepairs().Entries; n != pass.rekeys || repairs != pass.repairs {
				t.Errorf("%s: replaced %d times, %d repairs; want %d, %d", pass.name, n, repairs, pass.rekeys, pass.repairs)
			}
		}
	})
}
