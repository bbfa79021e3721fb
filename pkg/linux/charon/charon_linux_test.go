package charon

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"flannel/internal/test/nstest"
	"flannel/internal/test/vicitest"
	"flannel/pkg/conf"
)

// The example of strongSwan's documentation of VICI.
func TestMessage(t *testing.T) {
	want := "\x03\x04key1\x00\x06value1\x01\x08section1\x01\x0bsub-section\x03\x04key2\x00\x06value2\x02\x04\x05list1\x05\x00\x05item1\x05\x00\x05item2\x06\x02"
	m := message{{"key1", "value1"}, {"section1", message{{"sub-section", message{{"key2", "value2"}}}, {"list1", []string{"item1", "item2"}}}}}
	b, err := appendMessage(nil, m)
	if err != nil || string(b) != want {
		t.Errorf("%q, %v", b, err)
	}
	back, err := parseMessage([]byte(want))
	if err != nil || !reflect.DeepEqual(back, m) {
		t.Errorf("%v, %v", back, err)
	}
	if s := back.section("section1"); s.section("sub-section").text("key2") != "value2" || len(s.list("list1")) != 2 || s.text("list1") != "" || s.list("none") != nil {
		t.Errorf("%v", s)
	}
	for i := range want {
		if _, err := parseMessage([]byte(want[:i])); err == nil && i != 0 && i != len("\x03\x04key1\x00\x06value1") {
			t.Errorf("the first %d bytes are a message", i)
		}
	}
}

func TestMessageTooLong(t *testing.T) {
	for _, m := range []message{{{strings.Repeat("x", 256), ""}}, {{"x", strings.Repeat("x", 1<<16)}}, {{"x", []string{strings.Repeat("x", 1<<16)}}}} {
		if _, err := appendMessage(nil, m); !errors.Is(err, errTooLong) {
			t.Errorf("%v", err)
		}
	}
	if _, err := appendMessage(nil, message{{"x", 1}}); err == nil {
		t.Error("a number was encoded")
	}
}

func FuzzMessage(f *testing.F) {
	for _, s := range []string{"", "\x03\x01a\x00\x01b", "\x01\x01a\x02", "\x04\x01a\x05\x00\x01b\x06", strings.Repeat("\x01\x00", 100), "\x02", "\x06\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		if again, err := appendMessage(nil, m); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x becomes %x, %v", b, again, err)
		}
	})
}

// The bytes of a command, a registration and their answers, as the documentation of VICI defines them.
func TestPackets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vici")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for _, c := range []struct {
			size   int
			answer string
		}{
			{13, "\x00\x00\x00\x01\x05"}, // EVENT_CONFIRM
			{14, "\x00\x00\x00\x11\x07\x07list-sa\x03\x01a\x00\x03xyz" + "\x00\x00\x00\x01\x01"}, // EVENT, CMD_RESPONSE
			{13, "\x00\x00\x00\x01\x05"},                                                  // EVENT_CONFIRM
			{13, "\x00\x00\x00\x01\x05"},                                                  // EVENT_CONFIRM
			{14, "\x00\x00\x00\x0e\x01\x03\x07success\x00\x02no"},                         // CMD_RESPONSE
			{13, "\x00\x00\x00\x01\x05"},                                                  // EVENT_CONFIRM
			{34, "\x00\x00\x00\x1a\x01\x03\x07success\x00\x02no\x03\x06errmsg\x00\x02no"}, // CMD_RESPONSE
			{13, "\x00\x00\x00\x01\x02"},                                                  // CMD_UNKNOWN
		} {
			packet := make([]byte, c.size)
			if _, err := io.ReadFull(conn, packet); err != nil {
				return
			}
			got = append(got, string(packet))
			_, _ = io.WriteString(conn, c.answer)
		}
	}()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var events []message
	if err := c.stream("list-sas", "list-sa", nil, func(m message) { events = append(events, m) }); err != nil || !reflect.DeepEqual(events, []message{{{"a", "xyz"}}}) {
		t.Errorf("%v, %v", events, err)
	}
	if err := c.stream("list-sas", "list-sa", nil, func(message) {}); !isRefusal(err) {
		t.Errorf("a refused list: %v", err)
	}
	if _, err := c.call("initiate", message{{"child", "net"}, {"l", []string{"i"}}}); !isRefusal(err) {
		t.Errorf("%v", err)
	}
	if _, err := c.Version(); !isRefusal(err) {
		t.Errorf("%v", err)
	}
	_ = c.Close()
	<-done
	if want := []string{
		"\x00\x00\x00\x09\x03\x07list-sa",  // EVENT_REGISTER
		"\x00\x00\x00\x0a\x00\x08list-sas", // CMD_REQUEST
		"\x00\x00\x00\x09\x04\x07list-sa",  // EVENT_UNREGISTER
		"\x00\x00\x00\x09\x03\x07list-sa", "\x00\x00\x00\x0a\x00\x08list-sas", "\x00\x00\x00\x09\x04\x07list-sa",
		"\x00\x00\x00\x1e\x00\x08initiate\x03\x05child\x00\x03net\x04\x01l\x05\x00\x01i\x06",
		"\x00\x00\x00\x09\x00\x07version",
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("charon received %q, want %q", got, want)
	}
}

// server answers commands, and records them.
type server struct {
	answers map[string][]string // packets without length, by command or event; "end", as the last one, closes the connection
	mu      sync.Mutex
	got     []string // commands and their messages in hexadecimal
}

// serve returns a client of s at a socket of the test.
func serve(t *testing.T, s *server) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vici")
	vicitest.Serve(t, path, s.answer)
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) answer(kind byte, name string, message []byte) (packets []string, ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, name+" "+hex.EncodeToString(message))
	if kind == eventRegister || kind == eventUnregister {
		packets = []string{string(rune(eventConfirm))}
	}
	packets = append(packets, s.answers[name]...)
	if ends = slices.Contains(packets, "end"); ends {
		packets = packets[:len(packets)-1]
	}
	return packets, ends
}

// packet returns a packet without its length.
func packet(t *testing.T, kind byte, name string, m message) string {
	t.Helper()
	b := []byte{kind}
	if name != "" {
		b = append(append(b, byte(len(name))), name...)
	}
	b, err := appendMessage(b, m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSAs(t *testing.T) {
	sa := message{{"a-b", message{{"uniqueid", "3"}, {"state", "ESTABLISHED"}, {"remote-host", "192.0.2.1"}, {"remote-port", "4500"}, {"established", "60"}, {"tasks-queued", []string{"CHILD_REKEY"}},
		{"child-sas", message{{"b-1", message{{"state", "INSTALLED"}, {"name", "b"}, {"encap", "yes"}, {"spi-in", "c0000001"}, {"spi-out", "ffffffff"}, {"bytes-in", "7"}, {"bytes-out", "8"}}}}}}}}
	c := serve(t, &server{answers: map[string][]string{"list-sas": {packet(t, event, "list-sa", sa), packet(t, event, "list-sa", nil), packet(t, commandResponse, "", nil)}}})
	for range 2 {
		got, err := c.SAs()
		want := []SA{{id: "3", Name: "a-b", State: "ESTABLISHED", Busy: true, Remote: netip.MustParseAddrPort("192.0.2.1:4500"), Since: time.Minute,
			Pairs: []Pair{{State: "INSTALLED", Child: "b", UDPEncap: true, In: 0xc0000001, Out: 0xffffffff, Received: 7, Sent: 8}}}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// Only what matches is removed.
func TestTerminate(t *testing.T) {
	var answer []string
	for _, sa := range [][3]string{{"a-b", "1", "192.0.2.1"}, {unnamed, "2", "192.0.2.1"}, {unnamed, "3", "192.0.2.2"}} {
		answer = append(answer, packet(t, event, "list-sa", message{{sa[0], message{{"uniqueid", sa[1]}, {"remote-host", sa[2]}, {"remote-port", "500"}}}}))
	}
	s := &server{answers: map[string][]string{"list-sas": append(answer, packet(t, commandResponse, "", nil)),
		"terminate": {packet(t, commandResponse, "", message{{"success", "yes"}})}}}
	if err := serve(t, s).Terminate(func(sa SA) bool { return sa.Name == "" && sa.Remote.Addr() == netip.MustParseAddr("192.0.2.1") }); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, command := range s.got {
		if name, m, _ := strings.Cut(command, " "); name == "terminate" {
			got = append(got, m)
		}
	}
	want, err := appendMessage(nil, message{{"ike-id", "2"}, {"force", "yes"}, {"timeout", "-1"}})
	if err != nil || !reflect.DeepEqual(got, []string{hex.EncodeToString(want)}) {
		t.Errorf("%q, %v", got, err)
	}
}

// Nothing is lost of a long answer, which arrives faster than it is read.
func TestManySAs(t *testing.T) {
	var answer []string
	const count = 1000
	for i := range count {
		answer = append(answer, packet(t, event, "list-sa", message{{strconv.Itoa(i), message{{"state", "ESTABLISHED"}}}}))
	}
	c := serve(t, &server{answers: map[string][]string{"list-sas": append(answer, packet(t, commandResponse, "", nil))}})
	for range 5 {
		if got, err := c.SAs(); len(got) != count || err != nil {
			t.Errorf("%d of %d, %v", len(got), count, err)
		}
	}
}

// A refused command leaves the connection usable, and what does not exist is unloaded already.
func TestRefusals(t *testing.T) {
	no := packet(t, commandResponse, "", message{{"success", "no"}, {"errmsg", "because"}})
	s := &server{answers: map[string][]string{"initiate": {no}, "rekey": {string(rune(commandUnknown))}, "unload-conn": {no}, "unload-shared": {no}, "terminate": {no},
		"version": {packet(t, commandResponse, "", message{{"version", "6"}})}, "get-conns": {packet(t, commandResponse, "", message{{"conns", []string{"a", "b"}}})}}}
	c := serve(t, s)
	if err := c.Initiate("a", "b"); err == nil || !isRefusal(err) || !strings.HasSuffix(err.Error(), "because") {
		t.Errorf("initiate: %v", err)
	}
	if err := c.Rekey("a", "b"); !isRefusal(err) {
		t.Errorf("an unknown command: %v", err)
	}
	if err := c.Unload("a"); err != nil {
		t.Errorf("unload: %v", err)
	}
	if v, err := c.Version(); v != "6" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	if names, err := c.Connections(); !reflect.DeepEqual(names, []string{"a", "b"}) || err != nil {
		t.Errorf("connections %q, %v", names, err)
	}
}

// The secret goes to charon, and into no error; not if the connection is refused, which changes nothing.
func TestLoad(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	conn := Connection{Name: "a", Child: "b", Local: addr, Remote: addr, LocalID: addr, RemoteID: addr,
		LocalNet: netip.MustParsePrefix("10.5.1.0/24"), RemoteNet: netip.MustParsePrefix("10.5.2.0/24"), Proposal: "aes128", ReqID: 11}
	yes := packet(t, commandResponse, "", message{{"success", "yes"}})
	no := packet(t, commandResponse, "", message{{"success", "no"}, {"errmsg", "invalid"}})
	for _, c := range []struct {
		conn, shared string // the answers
		commands     int
	}{{no, yes, 1}, {yes, no, 2}, {yes, yes, 2}} {
		s := &server{answers: map[string][]string{"load-conn": {c.conn}, "load-shared": {c.shared}}}
		err := serve(t, s).Load(conn, conf.NewSecret("hunter2"))
		if want := c.conn == no || c.shared == no; isRefusal(err) != want || want && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", c, err)
		}
		s.mu.Lock()
		if len(s.got) != c.commands || !strings.Contains(s.got[0], hex.EncodeToString([]byte("10.5.2.0/24"))) ||
			strings.Contains(s.got[len(s.got)-1], hex.EncodeToString([]byte("hunter2"))) != (c.commands == 2) {
			t.Errorf("%+v: %q", c, s.got)
		}
		s.mu.Unlock()
	}
}

// Watch notifies of events, and ends with the daemon.
func TestWatch(t *testing.T) {
	up := packet(t, event, "child-updown", message{{"up", "yes"}})
	c := serve(t, &server{answers: map[string][]string{"child-updown": {up, up, "end"}}})
	count := 0
	if err := c.Watch(func() { count++ }); err == nil || count != 2 {
		t.Errorf("%d notifications, %v", count, err)
	}
}

// What is not VICI is an error, not a crash or a wait.
func TestMalformed(t *testing.T) {
	const value = "\x03\x01a\xff\xff"
	for name, answer := range map[string]string{
		"nothing": "", "cut event": "\x07\x20", "cut message": "\x01\x03",
		"longer than the protocol allows": "\x01" + strings.Repeat(value+strings.Repeat("x", 1<<16-1), 1+maxPacket>>16),
		"too many sections in each other": "\x01" + strings.Repeat("\x01\x00", maxDepth+1) + strings.Repeat("\x02", maxDepth+1),
	} {
		c := serve(t, &server{answers: map[string][]string{"version": {answer}}})
		if _, err := c.Version(); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := serve(t, &server{answers: map[string][]string{"version": {"end"}}})
	if _, err := c.Version(); err == nil || isRefusal(err) {
		t.Errorf("an ended daemon: %v", err)
	}
}

func TestNotRunning(t *testing.T) {
	if _, err := Dial(filepath.Join(t.TempDir(), "vici")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no socket: %v", err)
	}
	path := filepath.Join(t.TempDir(), "vici")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := Dial(path); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a socket that a killed daemon left: %v", err)
	}
}

// A daemon that this program has not started is never stopped.
func TestStopOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "strongswan.conf")
		if MayRun(config) {
			t.Error("a daemon may run")
		}
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		vicitest.Serve(t, Socket, (&server{}).answer) // in this process
		c, err := Dial(Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if pid, err := c.Started(config); pid != 0 || err != nil {
			t.Errorf("process %d was started by Start, %v", pid, err)
		}
		if err := Stop(config, syscall.SIGTERM); err != nil || MayRun(config) {
			t.Errorf("%v, may run: %t", err, MayRun(config))
		}
	})
}

// A daemon outside of this process' PID namespace may be ours: the file stays, so that Stop is tried again.
func TestStopCannotSee(t *testing.T) {
	const variable = "FLANNEL_CHARON_CONFIG"
	if config := os.Getenv(variable); config != "" { // the process that is started below
		if err := Stop(config, syscall.SIGTERM); err == nil || !strings.Contains(err.Error(), "PID namespace") || !MayRun(config) {
			t.Errorf("%v, may run: %t", err, MayRun(config))
		}
		return
	}
	nstest.Run(t, func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "strongswan.conf")
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		vicitest.Serve(t, Socket, (&server{}).answer)
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+config)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// parseMessage is the inverse of appendMessage.
func parseMessage(b []byte) (message, error) {
	d := decoder{b}
	return d.message(0)
}
