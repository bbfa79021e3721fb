package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/changes"
	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/logtest"
)

// The commands of these tests are this program: TestMain runs it in the role that its first argument names.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "command" {
		os.Exit(role(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

func role(name string, args []string) int {
	switch name {
	case "print":
		fmt.Println(strings.Join(args, "|"))
	case "record": // into a file of its own, since commands run at the same time
		in, _ := io.ReadAll(os.Stdin)
		f, err := os.CreateTemp(args[0], args[1]+".*")
		if err != nil {
			return 9
		}
		fmt.Fprintf(f, "%s %s %s %s %s %q %q", args[1], os.Getenv("SUBNET"), os.Getenv("PUBLIC_IP"), os.Getenv("IPV6SUBNET"), os.Getenv("PUBLIC_IPV6"), in, args[2:])
		if f.Close() != nil {
			return 9
		}
		if _, err := os.Stat(filepath.Join(args[0], "fail-"+strings.ReplaceAll(os.Getenv("SUBNET"), "/", "-"))); err == nil {
			fmt.Println("told to fail")
			return 3
		}
		if _, err := os.Stat(filepath.Join(args[0], "stall-"+strings.ReplaceAll(os.Getenv("SUBNET"), "/", "-"))); err == nil {
			_, _ = os.CreateTemp(args[0], "stalled.*")
			time.Sleep(time.Hour)
		}
		if _, err := os.Stat(filepath.Join(args[0], "hang-"+strings.ReplaceAll(os.Getenv("SUBNET"), "/", "-"))); err == nil {
			child := exec.Command(os.Args[0], "command", "hang", args[0])
			child.Stdout = os.Stdout
			_ = child.Run()
		}
	case "run": // runs a command, until this process is killed
		_, err := run(context.Background(), command{line: strings.Join(args[1:], " ")}, markOf(args[0]))
		fmt.Println(err)
	case "hang":
		_ = os.WriteFile(filepath.Join(args[0], "hanging"), []byte(fmt.Sprint(os.Getpid())), 0o600)
		time.Sleep(time.Hour)
	case "leave": // a process that goes on
		child := exec.Command(os.Args[0], "command", "hang", args[0])
		if child.Start() != nil {
			return 9
		}
		for {
			if text, _ := os.ReadFile(filepath.Join(args[0], "hanging")); len(text) > 0 {
				return 0
			}
			time.Sleep(10 * time.Millisecond)
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
	n.Dataplane = New(n.kernel, driver.Options{Log: n.log.Logger(), StateDir: n.dir})
	n.retry = 200 * time.Millisecond // a removal is given up after 1,023 times that
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

var v4Network = netip.MustParsePrefix("10.5.0.0/16")

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
			text, err := os.ReadFile(file)
			if err != nil || os.Remove(file) != nil {
				n.t.Fatal(err)
			}
			all = append(all, string(text))
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
// The function that hang returns returns the children's PIDs.
func (n *node) hang(subnet string) (children func() []string) {
	n.tell("hang-"+strings.ReplaceAll(subnet, "/", "-"), true)
	file := filepath.Join(n.dir, "hanging")
	var mu sync.Mutex
	var pids []string
	n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		if slices.Contains(c.env, "SUBNET="+subnet) {
			_ = os.Remove(file) // of the command before
			go func() {
				for ctx.Err() == nil {
					if pid, _ := os.ReadFile(file); len(pid) > 0 {
						mu.Lock()
						pids = append(pids, string(pid))
						mu.Unlock()
						cancel(context.DeadlineExceeded)
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
		}
		return ctx, func() { cancel(nil) }
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(pids)
	}
}

const post = `post 10.5.1.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::1 "" ["10.5.0.0/16"]`

func TestLife(t *testing.T) {
	n := newNode(t)
	one := peerPaths(2, `key "; touch /pwned; $(touch /pwned) --help`)
	n.mustPass(one...)
	if n.pre.output != "|pre" { // PreStartup has no subnet yet
		t.Errorf("the output is %q", n.pre.output)
	}
	const add = `add 10.5.2.0/24 192.168.0.2 fd05:0:0:2::/64 fd00::2 "key \"; touch /pwned; $(touch /pwned) --help\n" ["10.5.2.0/24"]`
	n.expect(add, post)
	if s := n.kernel.state; s.Paths != nil || !s.Unrouted || !s.KeepDevices || s.Keep {
		t.Errorf("the kernel gets %+v", s)
	}
	n.mustPass(one...)
	n.expect()

	// A changed peer: in order.
	n.tell("fail-10.5.2.0-24", true)
	refused, err := n.pass(peerPaths(2, "new")...)
	var failed *CommandError
	if err != nil || len(refused) != 2 || refused[0].Dst != one[0].Dst || refused[1].Dst != one[1].Dst || !errors.As(refused[0].Err, &failed) || failed.Key != "SubnetRemoveCommand" {
		t.Errorf("%v, %v", refused, err)
	}
	for _, line := range n.recorded() {
		if !strings.HasPrefix(line, "remove ") {
			t.Errorf("ran %s while the removal failed", line)
		}
	}
	n.tell("fail-10.5.2.0-24", false)
	changed := peerPaths(2, "new")
	for refused != nil { // the retry
		<-n.Changes()
		refused, err = n.pass(changed...)
	}
	if got := n.recorded(); err != nil || !strings.HasPrefix(got[0], "add ") || !strings.HasPrefix(got[len(got)-1], "remove ") {
		t.Errorf("ran %q: %v", got, err)
	}

	// A restart knows nothing of before, and adds again.
	n.start()
	n.mustPass(changed...)
	if got := n.recorded(); len(got) != 2 || got[1] != post {
		t.Errorf("after a restart ran %q", got)
	}

	// A read failed: nothing is removed, until a read succeeds.
	if _, err := n.Apply(t.Context(), dataplane.Links{"x": {}}, dataplane.State{Networks: []netip.Prefix{v4Network}, Keep: true}); err != nil {
		t.Fatal(err)
	}
	n.expect()
	n.mustPass()
	n.expect(`remove 10.5.2.0/24 192.168.0.2 fd05:0:0:2::/64 fd00::2 "new\n" []`)
	if len(n.peers) != 0 {
		t.Errorf("%d peers are left", len(n.peers))
	}
}

// markOf is what New makes of a directory.
func markOf(dir string) string { return filepath.Join(dir, ".command-.") }

// A command that runs when flanneld is killed ends, with the process that it started, before the next flanneld runs
// others. One that has succeeded may leave a process.
func TestFormerCommands(t *testing.T) {
	n := newNode(t)
	hangs := func(role string) (pid string, daemon *exec.Cmd) {
		dir := t.TempDir()
		words := strings.Fields(self(t, "run") + " " + n.dir + " " + self(t, role) + " " + dir + " x")
		daemon = exec.Command(words[0], words[1:]...)
		daemon.Env = append(os.Environ(), "SUBNET=10.5.9.0/24")
		daemon.Stderr = os.Stderr
		if err := os.WriteFile(filepath.Join(dir, "hang-10.5.9.0-24"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(5 * time.Minute); pid == ""; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the command does not run")
			}
			text, _ := os.ReadFile(filepath.Join(dir, "hanging"))
			pid = string(text)
		}
		t.Cleanup(func() {
			if running(t, pid) {
				kill(t, pid)
			}
		})
		return pid, daemon
	}
	pid, daemon := hangs("record")
	stays, left := hangs("leave")
	if err := left.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait()
	n.mustPass(peerPaths(2, "")...)
	for end := time.Now().Add(5 * time.Minute); running(t, pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what a killed flanneld ran is left")
		}
	}
	if files, err := filepath.Glob(markOf(n.dir) + "*"); err != nil || len(files) > 0 {
		t.Errorf("left are %q, %v", files, err)
	}
	if !running(t, stays) {
		t.Error("the process that a command had left when it succeeded has ended")
	}
}

// A peer whose command fails, or hangs, is behind, and no other.
func TestOneFails(t *testing.T) {
	n := newNode(t)
	n.tell("fail-10.5.3.0-24", true)
	hung := n.hang("10.5.4.0/24")
	var paths []*dataplane.Path
	for i := 2; i < 30; i++ {
		paths = append(paths, peerPaths(i, "")...)
	}
	refused, err := n.pass(paths...)
	if err != nil || len(refused) != 4 {
		t.Fatal(refused, err)
	}
	for i, want := range []string{"10.5.3.0/24", "10.5.4.0/24", "fd05:0:0:3::/64", "fd05:0:0:4::/64"} {
		if refused[i].Dst.String() != want {
			t.Errorf("refused %v, want %s", refused[i], want)
		}
	}
	var exit *exec.ExitError
	if !errors.As(refused[0].Err, &exit) || exit.ExitCode() != 3 || !errors.Is(refused[1].Err, context.DeadlineExceeded) {
		t.Errorf("%v; %v", refused[0].Err, refused[1].Err)
	}
	added := map[string]bool{}
	for _, line := range n.recorded() {
		if words := strings.Fields(line); len(words) > 1 { // otherwise it was killed before it wrote anything
			added[words[1]] = true
		}
	}
	if len(added) != 29 { // 28 peers, and the node itself
		t.Errorf("%d commands", len(added))
	}
	n.tell("fail-10.5.3.0-24", false)
	n.tell("hang-10.5.4.0-24", false)
	for len(refused) > 0 {
		<-n.Changes()
		if refused, err = n.pass(paths...); err != nil {
			t.Fatal(err)
		}
	}
	// What hung is dead, with the process that it had started.
	pids := hung()
	if len(pids) == 0 {
		t.Error("nothing hung")
	}
	for _, pid := range pids {
		for running(t, pid) {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// More peers than there are slots, whose commands failed slowly and now hang, are behind. Nobody waits for them: neither
// a new peer, nor one that changes or whose command failed fast, nor the node's own PostStartup.
func TestSlowPeers(t *testing.T) {
	n := newNode(t)
	setSlow := func(limit time.Duration) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.slow = limit
	}
	setSlow(0)
	var paths []*dataplane.Path
	for i := 2; i < 2+2*atOnce; i++ {
		paths = append(paths, peerPaths(i, "")...)
		n.tell(fmt.Sprintf("fail-10.5.%d.0-24", i), true)
		n.tell(fmt.Sprintf("stall-10.5.%d.0-24", i), true)
	}
	slow := len(paths)
	if refused, err := n.pass(paths...); err != nil || len(refused) != slow {
		t.Fatalf("%d refused, want %d: %v", len(refused), slow, err)
	}
	for i := 2; i < 2+2*atOnce; i++ {
		n.tell(fmt.Sprintf("fail-10.5.%d.0-24", i), false)
	}
	for stalled := []string(nil); len(stalled) < slowAtOnce; time.Sleep(10 * time.Millisecond) {
		stalled, _ = filepath.Glob(filepath.Join(n.dir, "stalled.*"))
	}
	setSlow(time.Hour)
	n.recorded()

	n.tell("fail-10.5.101.0-24", true)
	paths = append(paths, slices.Concat(peerPaths(100, ""), peerPaths(101, ""))...)
	refused, err := n.pass(paths...)
	if err != nil || len(refused) != slow+2 {
		t.Errorf("%d refused, want %d: %v", len(refused), slow+2, err)
	}
	n.tell("fail-10.5.101.0-24", false)
	for err == nil && len(refused) > slow {
		<-n.Changes()
		refused, err = n.pass(paths...)
	}
	changed := slices.Concat(peerPaths(2, "new"), paths[2:slow], peerPaths(100, "new"), peerPaths(101, ""))
	n.commands.V4 = end("10.5.1.0/24", "192.168.0.99")
	if refused, err = n.pass(changed...); err != nil || len(refused) != slow {
		t.Errorf("%d refused, want %d: %v", len(refused), slow, err)
	}
	for _, r := range refused { // the error of a changed peer is not that of its former command
		_, waits := errors.AsType[*driver.WaitError](r.Err)
		if is := r.Dst == paths[0].Dst || r.Dst == paths[1].Dst; waits != is {
			t.Errorf("%s is refused with %v", r.Dst, r.Err)
		}
	}
	var ran []string
	for _, line := range n.recorded() {
		if words := strings.Fields(line); len(words) > 4 && (words[0] == "post" || words[1] == "10.5.100.0/24") {
			ran = append(ran, strings.Join([]string{words[0], words[1], words[2], words[5]}, " "))
		}
	}
	if want := []string{`add 10.5.100.0/24 192.168.0.100 "\n"`, `add 10.5.100.0/24 192.168.0.100 "new\n"`,
		`post 10.5.1.0/24 192.168.0.99 ""`, `remove 10.5.100.0/24 192.168.0.100 "\n"`}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

// The commands of a peer stay in order when it gets or loses a family.
func TestFamilyChanges(t *testing.T) {
	n := newNode(t)
	both := peerPaths(2, "")
	by := both[0].Encap.(dataplane.ByCommands)
	by.V6 = dataplane.Family{}
	alone := &dataplane.Path{Dst: both[0].Dst, Via: both[0].Via, Device: "x", Encap: by}
	for _, c := range [][2][]*dataplane.Path{{{alone}, both}, {both, {alone}}} {
		n.start()
		n.retry = time.Hour
		n.mustPass(c[0]...)
		n.recorded()
		n.tell("fail-10.5.2.0-24", true)
		if refused, err := n.pass(c[1]...); err != nil || len(refused) != len(c[1]) {
			t.Errorf("%v, %v", refused, err)
		}
		if got := n.recorded(); len(got) != 1 || !strings.HasPrefix(got[0], "remove ") {
			t.Errorf("ran %q while the removal failed", got)
		}
		n.tell("fail-10.5.2.0-24", false)
	}
}

// A peer that comes back after its removal failed, perhaps half done, is added
// again.
func TestBackAfterFailedRemoval(t *testing.T) {
	n := newNode(t)
	n.retry = time.Hour
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	n.tell("fail-10.5.2.0-24", true)
	n.mustPass()
	if got := n.recorded(); len(got) != 1 || !strings.HasPrefix(got[0], "remove ") {
		t.Errorf("ran %q", got)
	}
	n.tell("fail-10.5.2.0-24", false)
	n.mustPass(peerPaths(2, "")...)
	if got := n.recorded(); len(got) != 1 || !strings.HasPrefix(got[0], "add ") {
		t.Errorf("ran %q when the peer was back", got)
	}
}

// A removal that fails is given up after ten attempts. The peer is added when it comes back.
func TestRemovalIsGivenUp(t *testing.T) {
	n := newNode(t)
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	n.retry = time.Microsecond
	n.tell("fail-10.5.2.0-24", true)
	n.mustPass()
	givenUp := []string{"cause=" + causeFailed, "given_up=true", "subnet=10.5.2.0/24"}
	for n.log.Count(givenUp...) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	n.tell("fail-10.5.2.0-24", false)
	n.mustPass(peerPaths(2, "")...)
	got := n.recorded()
	removals := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return !strings.HasPrefix(line, "remove ") })
	if len(removals) != 10 || len(got) != 11 || n.log.Count(givenUp...) != 1 {
		t.Errorf("ran %q", got)
	}
}

// PostStartup runs again for another subnet or address of the node, and no other command does.
func TestNodeChanges(t *testing.T) {
	n := newNode(t)
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	pre := n.pre.have
	n.commands.V4 = end("10.5.7.0/24", "192.168.0.1")
	n.mustPass(peerPaths(2, "")...)
	n.expect(`post 10.5.7.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::1 "" ["10.5.0.0/16"]`)
	n.commands.V6 = end("fd05:0:0:1::/64", "fd00::7")
	n.mustPass(peerPaths(2, "")...)
	n.expect(`post 10.5.7.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::7 "" ["10.5.0.0/16"]`)
	n.mustPass(peerPaths(2, "")...)
	n.expect()
	if n.pre.have != pre {
		t.Error("PreStartup ran again")
	}

	// Commands of peers that hang have all slots.
	var paths []*dataplane.Path
	for i := 10; i < 10+atOnce; i++ {
		paths = append(paths, peerPaths(i, "")...)
		n.tell(fmt.Sprintf("stall-10.5.%d.0-24", i), true)
	}
	ran := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.post.have == n.post.want
	}
	for again := false; !again || !ran(); {
		if stalled, _ := filepath.Glob(filepath.Join(n.dir, "stalled.*")); len(stalled) == atOnce {
			again, n.commands.V4 = true, end("10.5.8.0/24", "192.168.0.1")
		}
		links, _ := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
		_, _ = n.Apply(t.Context(), links, dataplane.State{Networks: []netip.Prefix{v4Network}, Paths: paths}) // waits for the peers
	}
	if !slices.Contains(n.recorded(), `post 10.5.8.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::7 "" ["10.5.0.0/16"]`) {
		t.Error("PostStartup did not run for the last change")
	}
}

func TestStartFails(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		line string
		want func(error) bool
	}{
		{self(t, "much"), func(err error) bool { return logtest.Names(err.Error(), "2048") }},
		{filepath.Join(n.dir, "missing"), func(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) }},
	} {
		n.commands.PreStartup = c.line
		_, err := n.pass(peerPaths(2, "")...)
		var failed *CommandError
		if !errors.As(err, &failed) || failed.Key != "PreStartupCommand" || !c.want(err) {
			t.Errorf("%s: %v", c.line, err)
		}
	}
	n.commands.PreStartup = ""
	n.tell("fail-10.5.1.0-24", true)
	_, err := n.pass(peerPaths(2, "")...)
	var failed *CommandError
	if !errors.As(err, &failed) || failed.Key != "PostStartupCommand" || failed.Output != "told to fail" {
		t.Errorf("%v", err)
	}
	for _, line := range n.recorded() {
		if line != post {
			t.Errorf("ran %s before PostStartup had succeeded", line)
		}
	}
	n.tell("fail-10.5.1.0-24", false)
	for err != nil {
		<-n.Changes()
		_, err = n.pass(peerPaths(2, "")...)
	}
}

// Another backend takes over: what commands made is removed before it adds anything.
func TestAnotherBackend(t *testing.T) {
	n := newNode(t)
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	links, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
	if err != nil {
		t.Fatal(err)
	}
	next := []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Device: "eth0", Encap: dataplane.Direct{}}}
	if _, err := n.Apply(t.Context(), links, dataplane.State{Paths: next, Since: n.paths, Changes: []changes.Change[dataplane.Path]{{Old: n.paths[0], New: next[0]}}}); err != nil {
		t.Fatal(err)
	}
	n.expect(`remove 10.5.2.0/24 192.168.0.2 fd05:0:0:2::/64 fd00::2 "\n" []`)
	if !slices.Equal(n.kernel.state.Paths, next) {
		t.Errorf("the kernel gets %+v", n.kernel.state)
	}
	n.mustPass(peerPaths(2, "")...)
	if got := n.recorded(); len(got) != 2 || got[1] != post {
		t.Errorf("back again ran %q", got)
	}
}

// A pass of another backend costs nothing where no peer is left.
func TestOtherBackendAlone(t *testing.T) {
	n := newNode(t)
	next := []*dataplane.Path{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Encap: dataplane.Direct{}}}
	if _, waits := n.another(next); waits || !n.deadline.IsZero() {
		t.Error("peers are being removed, and none was there")
	}
	n.mustPass(peerPaths(2, "")...)
	for waits := true; waits; {
		_, waits = n.another(next)
	}
	s := dataplane.State{Paths: next}
	if allocs := testing.AllocsPerRun(100, func() { _, _ = n.leave(t.Context(), s) }); allocs > 0 {
		t.Errorf("a pass allocates %v times", allocs)
	}
}

// another makes a pass with another backend that has one path for each of the peers. It returns the paths that the kernel
// gets, and whether others have to wait.
func (n *node) another(next []*dataplane.Path) ([]*dataplane.Path, bool) {
	n.t.Helper()
	links, err := n.Ensure(n.t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
	if err != nil {
		n.t.Fatal(err)
	}
	_, err = n.Apply(n.t.Context(), links, dataplane.State{Paths: next, Since: n.paths})
	waits, ok := errors.AsType[*driver.WaitError](err)
	if err != nil && !ok || ok && (waits.Cause() != causeCommands || n.kernel.state.Since != nil) {
		n.t.Fatalf("%v; %+v", err, n.kernel.state)
	}
	return n.kernel.state.Paths, ok
}

// adds makes passes with some peers, from 10.5.2.0/24 on, and returns their paths of another backend.
func (n *node) adds(number int) (next []*dataplane.Path) {
	n.t.Helper()
	var paths []*dataplane.Path
	for i := 2; i < 2+number; i++ {
		paths = append(paths, peerPaths(i, "")...)
		next = append(next, &dataplane.Path{Dst: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", i)), Device: "eth0", Encap: dataplane.Direct{}})
	}
	n.mustPass(paths...)
	return next
}

// Another backend gets the path to a peer only when its removal has succeeded, or has been tried for as long as a command
// may run. Other peers do not wait for that.
func TestAnotherBackendWaits(t *testing.T) {
	n := newNode(t)
	next := n.adds(3)
	n.patient = 50 * time.Millisecond
	n.tell("fail-10.5.2.0-24", true)
	n.tell("stall-10.5.3.0-24", true)
	// until makes passes until the kernel gets these paths.
	until := func(want ...*dataplane.Path) {
		t.Helper()
		for {
			got, waits := n.another(next)
			if !waits || slices.Contains(got, next[1]) {
				t.Fatalf("while a removal hangs, the kernel gets %+v", got)
			}
			if slices.Equal(got, want) {
				return
			}
			<-n.Changes()
		}
	}
	until(next[2])
	n.tell("fail-10.5.2.0-24", false)
	until(next[0], next[2])
	n.deadline = time.Now()
	for _, n.patient = range []time.Duration{time.Millisecond, time.Hour} { // the second does not wait, although a command runs
		if got, waits := n.another(next); waits || !slices.Equal(got, next) {
			t.Errorf("after the limit, the kernel gets %+v", got)
		}
	}
	if n.log.Count("cause="+causeFailed, "given_up=true", "subnet=10.5.3.0/24") != 1 {
		t.Errorf("the log is %s", n.log.String())
	}
}

// A pass that must not delete anything adds no path to a peer whose removal runs, or comes later: it would delete the path.
func TestAnotherBackendKeeps(t *testing.T) {
	n := newNode(t)
	next := n.adds(2)
	n.recorded()
	n.patient = time.Millisecond
	newcomer := &dataplane.Path{Dst: netip.MustParsePrefix("10.5.9.0/24"), Device: "eth0", Encap: dataplane.Direct{}}
	keep := func(want ...*dataplane.Path) {
		t.Helper()
		_, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = n.Apply(t.Context(), nil, dataplane.State{Paths: append(slices.Clone(next), newcomer), Keep: true})
		if waits, ok := errors.AsType[*driver.WaitError](err); !ok || waits.Cause() != causeCommands {
			t.Error(err)
		}
		if got := n.kernel.state; !slices.Equal(got.Paths, want) || !got.Keep {
			t.Errorf("the kernel gets %+v", got)
		}
	}
	keep(newcomer)
	n.expect()
	if !n.deadline.IsZero() {
		t.Error("a removal that must not run is given up after the limit")
	}
	n.tell("stall-10.5.2.0-24", true)
	for got, _ := n.another(next); !slices.Equal(got, next[1:]); got, _ = n.another(next) {
		<-n.Changes()
	}
	keep(next[1], newcomer)
}

// Another backend waits for removals for as long as a command may run, and for many peers for as long as commands that
// are not slow may take. A removal that is then given up before it was tried never runs.
func TestRemovalLimit(t *testing.T) {
	for _, c := range []struct {
		peers   int
		runs    time.Duration // each removal
		want    time.Duration
		givenUp int
	}{
		{atOnce + 1, time.Hour, timeLimit, atOnce + 1},
		{1000, time.Hour, 1000 / atOnce * slowAfter, 1000},
		{1000, slowAfter * 9 / 10, 1000 / atOnce * slowAfter * 9 / 10, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.commands = dataplane.Commands{V4: n.commands.V4} // no program runs in the bubble
			var removals atomic.Int64
			n.limit = func(ctx context.Context, cmd command) (context.Context, context.CancelFunc) {
				if cmd.key == "SubnetRemoveCommand" {
					removals.Add(1)
					time.Sleep(c.runs)
				}
				return ctx, func() {}
			}
			var paths, next []*dataplane.Path
			for i := range c.peers {
				by := dataplane.ByCommands{V4: end(fmt.Sprintf("10.%d.%d.0/24", 6+i/250, i%250), "192.168.0.2")}
				paths = append(paths, &dataplane.Path{Dst: by.V4.Subnet, Device: "x", Encap: by})
				next = append(next, &dataplane.Path{Dst: by.V4.Subnet, Device: "eth0", Encap: dataplane.Direct{}})
			}
			n.mustPass(paths...)
			began := time.Now()
			for _, waits := n.another(next); waits; _, waits = n.another(next) {
				<-n.Changes()
			}
			if took, count := time.Since(began), n.log.Count("cause="+causeFailed, "given_up=true"); took != c.want || count != c.givenUp {
				t.Errorf("%d peers took %s, %d given up, want %s, %d", c.peers, took, count, c.want, c.givenUp)
			}
			time.Sleep(c.runs)
			synctest.Wait()
			if ran := int(removals.Load()); c.givenUp > 0 && ran != atOnce || len(n.peers) > 0 {
				t.Errorf("%d removals ran, %d peers are left", ran, len(n.peers))
			}
		})
	}
}

// A removal that was given up while it ran leaves nothing behind when it ends.
func TestGivenUpRemovalEnds(t *testing.T) {
	for _, back := range []bool{false, true} {
		n := newNode(t)
		n.slow = 0
		next := n.adds(1)
		n.patient = time.Millisecond
		hung := make(chan context.CancelCauseFunc, 1)
		n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			if c.key == "SubnetRemoveCommand" {
				hung <- cancel
			}
			return ctx, func() { cancel(nil) }
		}
		n.tell("stall-10.5.2.0-24", true)
		n.another(next)
		for stalled := []string(nil); len(stalled) == 0; stalled, _ = filepath.Glob(filepath.Join(n.dir, "stalled.*")) {
			time.Sleep(10 * time.Millisecond)
		}
		n.deadline = time.Now()
		n.another(next)
		n.tell("stall-10.5.2.0-24", false)
		if back { // wanted again while the removal runs
			links, _ := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
			_, _ = n.Apply(t.Context(), links, dataplane.State{Networks: []netip.Prefix{v4Network}, Paths: peerPaths(2, "")})
		}
		(<-hung)(context.DeadlineExceeded)
		if back {
			n.mustPass(peerPaths(2, "")...)
			n.mu.Lock()
			if p := n.peers[peerPaths(2, "")[0].Dst]; p.slow || !p.added || p.have == nil {
				t.Errorf("the peer is %+v", p)
			}
			n.mu.Unlock()
		}
		for left := true; left && !back; time.Sleep(10 * time.Millisecond) {
			n.mu.Lock()
			left = len(n.peers) > 0
			n.mu.Unlock()
		}
		if n.log.Count("cause="+causeFailed) != 1 || n.log.Count("given_up=true") != 1 {
			t.Errorf("the log is %s", n.log.String())
		}
	}
}

// No command runs beside one of a former process, as long as that may yet end. It has the time limit of a command from the
// first attempt to end it, however long flanneld waits for the store before.
func TestFormerCommandsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.former = func(context.Context) bool { return false }
		n.commands.PreStartup = "" // no program runs in the bubble
		ensure := func() error {
			_, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
			return err
		}
		for range 2 { // the first attempt, late, and the last before its limit
			time.Sleep(timeLimit - 1)
			if waits, ok := errors.AsType[*driver.WaitError](ensure()); !ok || waits.Cause() != causeFormer {
				t.Fatal(waits)
			}
			if n.pre.want != "" {
				t.Error("PreStartup runs")
			}
		}
		time.Sleep(time.Nanosecond)
		if err := ensure(); err != nil {
			t.Error(err)
		}
	})
}

// Flags of flanneld may be secrets; words are split before values are put in.
func TestEnvironment(t *testing.T) {
	t.Setenv("FLANNELD_ETCD_PASSWORD", "secret")
	t.Setenv("TWO", "a  b")
	out, err := run(t.Context(), command{line: self(t, "print") + ` "$TWO  ${TWO}x" $FLANNELD_ETCD_PASSWORD $NONE $(id)`, env: []string{"TWO=c d"}}, markOf(t.TempDir()))
	if want := `"c d|c dx"|||$(id)`; err != nil || out != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

// counting is a kernel that knows its traffic.
type counting struct{ kernel }

func (*counting) Traffic() map[netip.Prefix]dataplane.Traffic {
	return map[netip.Prefix]dataplane.Traffic{netip.MustParsePrefix("10.5.2.0/24"): {Sent: 7}}
}
func (*counting) Forwarded() (dataplane.Forwarded, bool) {
	return dataplane.Forwarded{Sent: dataplane.Flow{Packets: 9}}, true
}

// What the inner dataplane can do beside the interface is not hidden.
func TestTrafficOfInner(t *testing.T) {
	for _, test := range []struct {
		inner   dataplane.Dataplane
		traffic int // peers
		ever    bool
		packets uint64
	}{
		{&counting{kernel{changes: make(chan struct{})}}, 1, true, 9},
		{&kernel{changes: make(chan struct{})}, 0, false, 0},
	} {
		var d dataplane.Dataplane = New(test.inner, driver.Options{Log: slog.New(slog.DiscardHandler)})
		f, ever := d.(dataplane.Forwarder).Forwarded()
		if traffic := d.(dataplane.TrafficReader).Traffic(); len(traffic) != test.traffic || ever != test.ever || f.Sent.Packets != test.packets {
			t.Errorf("%T: %v, %v %t", test.inner, traffic, f, ever)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
