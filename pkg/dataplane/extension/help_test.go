package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
)

// The commands of these tests are this program: TestMain runs it in the role that its first argument names.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "command" {
		os.Exit(role(os.Args[2], os.Args[3:]))
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each command takes a second longer with the race detector
	os.Exit(m.Run())
}

func role(name string, args []string) int {
	switch name {
	case "print":
		fmt.Println(strings.Join(args, "|"))
	case "record": // into a file of its own, since commands run at the same time
		in, _ := io.ReadAll(os.Stdin)
		f, err := os.CreateTemp(args[0], "unfinished.*")
		if err != nil {
			return 9
		}
		fmt.Fprintf(f, "%s %s %s %s %s %q %q", args[1], os.Getenv("SUBNET"), os.Getenv("PUBLIC_IP"), os.Getenv("IPV6SUBNET"), os.Getenv("PUBLIC_IPV6"), in, args[2:])
		// A test may look at any time. On Windows, it cannot remove an open file.
		if f.Close() != nil || os.Rename(f.Name(), filepath.Join(args[0], args[1]+filepath.Ext(f.Name()))) != nil {
			return 9
		}
		if _, err := os.Stat(filepath.Join(args[0], "fail-"+strings.ReplaceAll(os.Getenv("SUBNET"), "/", "-"))); err == nil {
			fmt.Println("told to fail: PID", os.Getpid())
			return 3
		}
		if _, err := os.Stat(filepath.Join(args[0], "stall-"+strings.ReplaceAll(os.Getenv("SUBNET"), "/", "-"))); err == nil {
			_, _ = os.CreateTemp(args[0], "stalled.*")
			time.Sleep(time.Hour) // until it is killed
		}
		if _, err := os.Stat(filepath.Join(args[0], "hang-"+strings.ReplaceAll(os.Getenv("SUBNET"), "/", "-"))); err == nil {
			child := exec.Command(os.Args[0], "command", "hang", args[0])
			child.Stdout = os.Stdout
			_ = child.Run()
		}
	case "run": // runs a command, until this process is killed
		_, err := run(context.Background(), command{line: strings.Join(args[1:], " ")}, marksOf(args[0]))
		fmt.Println(err)
	case "hang":
		return hang(args[0])
	case "leave": // a process that goes on
		child := exec.Command(os.Args[0], "command", "hang", args[0])
		out, err := child.StdoutPipe()
		if err != nil || child.Start() != nil {
			return 9
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return 9
		}
	case "much":
		fmt.Print(strings.Repeat("x", maxOutput+1))
	}
	return 0
}

// self is the start of a command line that runs a role.
func self(t *testing.T, role string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil || strings.ContainsAny(exe, " \t") {
		t.Fatalf("%q: %v", exe, err)
	}
	return exe + " command " + role
}

// kernel stands for the dataplane of the operating system, which is tested elsewhere.
type kernel struct {
	dataplane.Dataplane
	changes chan struct{}
	mu      sync.Mutex
	state   dataplane.State
}

func (k *kernel) Changes() <-chan struct{} { return k.changes }
func (k *kernel) Close() error             { return nil }
func (k *kernel) Ensure(context.Context, []dataplane.Device) (dataplane.Links, error) {
	return dataplane.Links{"eth0": {Index: 2}}, nil
}
func (k *kernel) Apply(_ context.Context, _ dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state = s
	return nil, nil
}

// node is a node with commands that record in dir.
type node struct {
	*Dataplane
	t        *testing.T
	dir      string
	kernel   *kernel
	commands dataplane.Commands
	log      logtest.Log
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir(), kernel: &kernel{changes: make(chan struct{})}}
	if strings.ContainsAny(n.dir, " \t") {
		t.Fatalf("%q", n.dir)
	}
	record := self(t, "record") + " " + n.dir + " "
	n.commands = dataplane.Commands{
		PreStartup: self(t, "print") + " $SUBNET pre", PostStartup: record + "post $NETWORK",
		SubnetAdd: record + "add ${SUBNET}", SubnetRemove: record + "remove",
		V4: end("10.5.1.0/24", "192.168.0.1"), V6: end("fd05:0:0:1::/64", "fd00::1"),
	}
	n.start()
	return n
}

// start begins anew, as after a kill -9.
func (n *node) start() {
	if n.Dataplane != nil {
		n.close()
	}
	n.Dataplane = New(n.kernel, dataplane.Options{Log: n.log.Logger(), StateDir: n.dir})
	n.retry = 200 * time.Millisecond // a removal is given up after 1,023 times that
	n.slow = time.Hour               // a command of a busy machine is not slow
	n.limit = func(ctx context.Context, _ command) (context.Context, context.CancelFunc) {
		return context.WithCancel(ctx)
	}
	n.t.Cleanup(n.close)
}

func (n *node) close() {
	if err := n.Close(); err != nil {
		n.t.Error(err)
	}
}

func end(subnet, ip string) dataplane.Family {
	return dataplane.Family{Subnet: netip.MustParsePrefix(subnet), PublicIP: netip.MustParseAddr(ip)}
}

// peerPaths are the paths to a dual-stack peer.
func peerPaths(i int, data string) []*dataplane.Path {
	by := dataplane.ByCommands{Data: data,
		V4: end(fmt.Sprintf("10.5.%d.0/24", i), fmt.Sprintf("192.168.0.%d", i)), V6: end(fmt.Sprintf("fd05:0:0:%d::/64", i), fmt.Sprintf("fd00::%d", i))}
	return []*dataplane.Path{{Dst: by.V4.Subnet, Via: by.V4.PublicIP, Device: "x", Encap: by}, {Dst: by.V6.Subnet, Via: by.V6.PublicIP, Device: "x", Encap: by}}
}

// pass makes passes, as the daemon's loop, until one has nothing to wait for.
func (n *node) pass(paths ...*dataplane.Path) ([]dataplane.Refused, error) {
	n.t.Helper()
	state := dataplane.State{Networks: []netip.Prefix{v4Network}, Paths: paths}
	for {
		links, err := n.Ensure(n.t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}, {Name: "x", Kind: n.commands}})
		refused, applyErr := n.Apply(n.t.Context(), links, state)
		err = errors.Join(err, applyErr)
		if waits := (interface{ Cause() string })(nil); errors.As(err, &waits) && waits.Cause() == causeCommands {
			<-n.Changes()
			continue
		}
		return refused, err
	}
}

func (n *node) mustPass(paths ...*dataplane.Path) {
	n.t.Helper()
	if refused, err := n.pass(paths...); err != nil || refused != nil {
		n.t.Fatal(refused, err)
	}
}

// recorded returns what the commands have recorded since the last call, sorted.
func (n *node) recorded() []string {
	n.t.Helper()
	var all []string
	for _, pattern := range []string{"post.*", "add.*", "remove.*"} {
		files, _ := filepath.Glob(filepath.Join(n.dir, pattern))
		for _, file := range files {
			// On Windows, a file that a command gives its name at this moment is open.
			eventually.True(n.t, file+" is read and removed", func() bool {
				text, err := os.ReadFile(file)
				if err != nil || os.Remove(file) != nil {
					return false
				}
				all = append(all, string(text))
				return true
			})
		}
	}
	slices.Sort(all)
	return all
}

func (n *node) expect(want ...string) {
	n.t.Helper()
	if got := n.recorded(); !slices.Equal(got, want) {
		n.t.Errorf("ran\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// tell makes the commands for a subnet fail or hang, or not any more.
func (n *node) tell(what string, on bool) {
	n.t.Helper()
	path := filepath.Join(n.dir, what)
	err := os.Remove(path)
	if on {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// hang makes the commands for a subnet hang, and exceed their limit as soon as they
// have started a child: under Wine, a child whose parent is killed while it starts
// it stays for ever, and keeps the ends of other processes from being noticed.
// The function that hang returns returns the children's connections.
func (n *node) hang(subnet string) (children func() []net.Conn) {
	n.tell("hang-"+strings.ReplaceAll(subnet, "/", "-"), true)
	started := listen(n.t, n.dir)
	var mu sync.Mutex
	var all []net.Conn
	n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		if slices.Contains(c.env, "SUBNET="+subnet) {
			go func() {
				select {
				case child := <-started:
					mu.Lock()
					all = append(all, child)
					mu.Unlock()
					cancel(context.DeadlineExceeded)
				case <-ctx.Done():
				}
			}()
		}
		return ctx, func() { cancel(nil) }
	}
	return func() []net.Conn {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}
