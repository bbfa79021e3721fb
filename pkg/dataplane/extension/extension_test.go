package extension

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/pkg/dataplane"
)

var v4Network = netip.MustParsePrefix("10.5.0.0/16")

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

	// A changed peer: the removal is tried three times.
	n.tell("fail-10.5.2.0-24", true)
	began := make(chan string, 4)
	n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
		select {
		case began <- c.key:
		default: // after the first four
		}
		return context.WithCancel(ctx)
	}
	changed := peerPaths(2, "new")
	refused, err := n.pass(changed...)
	var failed *commandError
	if err != nil || len(refused) != 2 || refused[0].Dst != one[0].Dst || refused[1].Dst != one[1].Dst || !errors.As(refused[0].Err, &failed) {
		t.Fatalf("%v, %v", refused, err)
	}
	for failed.Key != "SubnetAddCommand" {
		<-n.Changes()
		if refused, err = n.pass(changed...); err != nil || len(refused) != 2 || !errors.As(refused[0].Err, &failed) {
			t.Fatalf("%v, %v", refused, err)
		}
	}
	for _, want := range []string{"SubnetRemoveCommand", "SubnetRemoveCommand", "SubnetRemoveCommand", "SubnetAddCommand"} {
		if got := <-began; got != want {
			t.Errorf("while both commands failed, ran %s, want %s", got, want)
		}
	}
	n.recorded()
	n.tell("fail-10.5.2.0-24", false)
	for refused != nil { // the retry
		<-n.Changes()
		refused, err = n.pass(changed...)
	}
	if got := n.recorded(); err != nil || len(got) == 0 || !strings.HasPrefix(got[len(got)-1], "add ") {
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
		added[strings.Fields(line)[1]] = true
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
	children := hung()
	if len(children) == 0 {
		t.Error("nothing hung")
	}
	for _, child := range children {
		mustEnd(t, child)
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
	eventually.True(t, "as many commands as may run have stalled", func() bool {
		stalled, _ := filepath.Glob(filepath.Join(n.dir, "stalled.*"))
		return len(stalled) >= slowAtOnce
	})
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
		_, waits := errors.AsType[*dataplane.WaitError](r.Err)
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
		began := make(chan string, 10) // more than there are commands
		n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
			began <- c.key
			return context.WithCancel(ctx)
		}
		n.mustPass(c[0]...)
		n.mustPass(c[1]...)
		close(began)
		var got []string
		for key := range began {
			got = append(got, key)
		}
		if want := []string{"PreStartupCommand", "PostStartupCommand", "SubnetAddCommand", "SubnetRemoveCommand", "SubnetAddCommand"}; !slices.Equal(got, want) {
			t.Errorf("ran %q, want %q", got, want)
		}
	}
}

// Corrected commands connect a peer at once, although the former command does not remove it.
func TestCommandsAreCorrected(t *testing.T) {
	n := newNode(t)
	n.retry = time.Hour
	right := n.commands.SubnetRemove
	n.commands.SubnetRemove = filepath.Join(n.dir, "missing")
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	n.commands.SubnetRemove = right
	n.mustPass(peerPaths(2, "")...)
	n.expect(`add 10.5.2.0/24 192.168.0.2 fd05:0:0:2::/64 fd00::2 "\n" ["10.5.2.0/24"]`)
	if n.log.Count("cause="+causeFailed, "given_up=true", "subnet=10.5.2.0/24") != 1 {
		t.Errorf("the log is %s", n.log.String())
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
	eventually.True(t, "the removal is given up", func() bool { return n.log.Count(givenUp...) > 0 })
	n.tell("fail-10.5.2.0-24", false)
	n.mustPass(peerPaths(2, "")...)
	got := n.recorded()
	removals := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return !strings.HasPrefix(line, "remove ") })
	if len(removals) != 10 || len(got) != 11 || n.log.Count(givenUp...) != 1 {
		t.Errorf("ran %q", got)
	}
}

// counting is a kernel that knows its traffic.
type counting struct{ kernel }

func (*counting) Traffic() map[netip.Prefix]dataplane.TunnelReport {
	return map[netip.Prefix]dataplane.TunnelReport{netip.MustParsePrefix("10.5.2.0/24"): {Sent: 7}}
}
func (*counting) Forwarded() *dataplane.Forwarded {
	return &dataplane.Forwarded{Sent: dataplane.Flow{Packets: 9}}
}

// What the inner dataplane knows of its traffic is not hidden.
func TestTrafficOfInner(t *testing.T) {
	var d dataplane.Dataplane = New(&counting{kernel{changes: make(chan struct{})}}, dataplane.Options{Log: slog.New(slog.DiscardHandler)})
	f := d.Forwarded()
	if traffic := d.Traffic(); len(traffic) != 1 || f == nil || f.Sent.Packets != 9 {
		t.Errorf("%v, %v", traffic, f)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
